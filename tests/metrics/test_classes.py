import copy
import pickle
import socket

import matplotlib
import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed, nn
from torchmetrics import MetricCollection

from lightning_prune import metrics
from lightning_prune.prune import l1_unstructured, remove_all

matplotlib.use("Agg")


def layer(zeros):
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    return l1_unstructured(model, "weight", amount=zeros)


def pair(kept, also):
    return {"w": torch.arange(8) < kept}, {"w": torch.arange(8) >= 8 - also}


INPUTS = torch.ones(2, 4)
EXAMPLES = [
    # metric, two updates, value of the first, value of the second, value of both
    (metrics.Sparsity(), (layer(4),), (layer(8),), 0.25, 0.5, 0.375),
    (metrics.NonzeroParameters(), (layer(4),), (layer(8),), 12, 8, 10),
    (metrics.CompressionRate(), (layer(4),), (layer(8),), 16 / 12, 2.0, 32 / 20),
    (metrics.EffectiveFLOPs(), (layer(4), INPUTS), (layer(8), INPUTS), 48, 32, 40),
    (metrics.EffectiveFLOPs(relative=True), (layer(4), INPUTS), (layer(8), INPUTS), 0.75, 0.5, 0.625),
    (metrics.MaskOverlap(), pair(6, 6), pair(8, 4), 4 / 8, 4 / 8, 8 / 16),
    (metrics.MaskOverlap(adjusted=True), pair(6, 6), pair(8, 4), -0.25, 0.0, (0.5 - 8.5 / 15.5) / (1 - 8.5 / 15.5)),
    (metrics.MaskChurn(), pair(6, 6), pair(8, 4), 0.5, 0.5, 0.5),
]
every_metric = pytest.mark.parametrize(
    ("metric", "one", "two", "first", "second", "both"), EXAMPLES, ids=lambda v: repr(v) if hasattr(v, "reset") else ""
)


@every_metric
def test_forward_compute_and_reset(metric, one, two, first, second, both):
    metric = copy.deepcopy(metric)
    assert float(metric(*one)) == pytest.approx(first)
    assert float(metric(*two)) == pytest.approx(second)
    assert float(metric.compute()) == pytest.approx(both)
    metric.reset()
    metric.update(*two)
    assert float(metric.compute()) == pytest.approx(second)


@every_metric
def test_pickle_clone_and_merge(metric, one, two, first, second, both):
    metric = copy.deepcopy(metric)
    metric.update(*one)
    other = metric.clone()
    other.reset()
    other.update(*two)
    assert float(pickle.loads(pickle.dumps(metric)).compute()) == pytest.approx(first)
    metric.merge_state(other)
    assert float(metric.compute()) == pytest.approx(both)
    assert float(other.compute()) == pytest.approx(second)


@every_metric
def test_plot(metric, one, two, first, second, both):
    metric = copy.deepcopy(metric)
    values = [metric(*one), metric(*two)]
    for given in (None, values[0], values):
        figure, axis = metric.plot(given)
        assert figure is axis.figure
        assert axis.get_ylabel() == type(metric).__name__
        matplotlib.pyplot.close(figure)
    assert [float(y) for y in axis.lines[0].get_ydata()] == pytest.approx([first, second])


def test_sparsity_per_tensor():
    model = nn.Sequential(layer(4), nn.Linear(4, 1))
    metric = metrics.SparsityPerTensor("*")
    assert metric(model) == {"sparsity/0.weight": 0.25, "sparsity/1.weight": 0.0}
    l1_unstructured(model[0], "weight", amount=4)
    assert metric(model) == {"sparsity/0.weight": 0.5, "sparsity/1.weight": 0.0}
    assert metric.compute() == {"sparsity/0.weight": 0.375, "sparsity/1.weight": 0.0}
    figure, axis = metric.plot()
    assert axis.get_legend_handles_labels()[1] == ["sparsity/0.weight", "sparsity/1.weight"]
    matplotlib.pyplot.close(figure)


def test_a_metric_stays_with_one_model():
    metric = metrics.SparsityPerTensor()
    metric.update(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"only one of two has bias"):
        metric.update(nn.Linear(2, 2, bias=False))
    assert list(metric.compute()) == ["sparsity/weight", "sparsity/bias"]


def test_a_collection_keeps_selections_of_equal_size_apart():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    collection = MetricCollection({"first": metrics.Sparsity("0.weight"), "second": metrics.Sparsity("1.weight")})
    collection.update(model)
    l1_unstructured(model[1], "weight", amount=8)
    collection.reset()
    collection.update(model)
    assert collection.compute() == {"first": 0.0, "second": 0.5}


def test_a_collection_of_all_kinds():
    kinds = [metrics.Sparsity(), metrics.SparsityPerTensor(), metrics.NonzeroParameters(), metrics.EffectiveFLOPs()]
    collection = MetricCollection([*kinds, metrics.CompressionRate()], prefix="model/")
    for zeros in (2, 8):
        collection.update(layer(zeros), inputs=INPUTS)
        values = collection.compute()
        collection.reset()
    assert {name: float(value) for name, value in values.items()} == {
        "model/Sparsity": 0.5,
        "model/sparsity/weight": 0.5,
        "model/NonzeroParameters": 8.0,
        "model/EffectiveFLOPs": 32.0,
        "model/CompressionRate": 2.0,
    }


def test_removed_models_count_like_pruned_ones():
    metric = metrics.Sparsity()
    assert metric(layer(4)) == metric(remove_all(layer(4))) == 0.25


def test_before_the_first_update():
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert metrics.SparsityPerTensor().compute() == {}
    assert metrics.Sparsity().compute() == 0.0
    assert metrics.CompressionRate().compute() == 1.0


def _sync(rank, port, results):
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    values = {}
    for index, (metric, one, two, *_) in enumerate(EXAMPLES):
        metric.update(*(one, two)[rank])
        values[index] = float(metric.compute())
    per_tensor = metrics.SparsityPerTensor()
    per_tensor.update(layer((4, 8)[rank]))
    values["per_tensor"] = {key: float(value) for key, value in per_tensor.compute().items()}
    alike = metrics.NonzeroParameters()
    alike.update(layer(4))
    values["alike"] = int(alike.compute())
    results[rank] = values
    distributed.destroy_process_group()


def test_two_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.start_processes(_sync, args=(port, results), nprocs=2, start_method="spawn")
        first, second = results[0], results[1]
    assert first == second
    assert [first[i] for i in range(len(EXAMPLES))] == pytest.approx([example[-1] for example in EXAMPLES])
    assert first["per_tensor"] == {"sparsity/weight": 0.375}
    assert first["alike"] == 12


def test_a_model_is_no_pattern():
    with pytest.raises(TypeError, match=r"Sparsity is made without a model and then called with it: Sparsity\(\)\(mod"):
        metrics.Sparsity(nn.Linear(2, 2))


def test_a_tensor_without_data_is_named():
    with pytest.raises(ValueError, match=r"'weight': a tensor of shape \(2, 2\) on the meta device has no data"):
        metrics.sparsity(nn.Linear(2, 2, device="meta"))
