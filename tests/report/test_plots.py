import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from matplotlib.colors import to_hex
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lightning_prune import Linear, plots
from lightning_prune.prune import custom_from_mask, l1_unstructured, remove_all
from lightning_prune.report.history import History

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def points(line):
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


def history(tensors=3):
    names = {f"{i}.weight": ((0, 0.0), (2, i / tensors)) for i in range(tensors)}
    return History("epoch", ((0, 0.0), (2, 0.5)), ((0, 0.0), (2, 0.6)), names)


def test_sparsity_over_time():
    figure, axis = plots.sparsity_over_time(history())
    assert figure is axis.figure
    assert [points(line) for line in axis.lines] == [
        [(0, 0.0), (2, 0.0)],
        [(0, 0.0), (2, 1 / 3)],
        [(0, 0.0), (2, 2 / 3)],
        [(0, 0.0), (2, 0.5)],
    ]
    assert {line.get_drawstyle() for line in axis.lines} == {"steps-post"}
    names = [text.get_text() for text in axis.get_legend().get_texts()]
    assert names == ["0.weight", "1.weight", "2.weight", "all together"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("epoch", "sparsity")


def test_many_tensors_are_told_by_colours():
    figure, axis = plots.sparsity_over_time(history(30))
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["all together"]
    assert len({to_hex(line.get_color()) for line in axis.lines}) == 31
    assert "30" in figure.axes[1].get_ylabel()


def test_schedule_and_reached():
    schedule = Linear(final=0.6, begin=0, end=2)
    _, axis = plots.schedule_and_reached(history(), schedule)
    curve, target, reached = axis.lines
    assert points(curve)[0] == (0.0, 0.0)
    assert points(curve)[-1] == (2.0, 0.6)
    assert all(y == pytest.approx(0.3 * x, abs=1e-6) for x, y in points(curve))
    assert points(target) == [(0, 0.0), (2, 0.6)]
    assert points(reached) == [(0, 0.0), (2, 0.5)]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["Linear", "target", "reached"]


def test_a_schedule_in_another_unit_is_refused():
    with pytest.raises(ValueError, match="history counts times in epochs, the schedule in steps"):
        plots.schedule_and_reached(history(), Linear(final=0.5, end=9, unit="step"))


def layer():
    model = nn.Sequential(nn.Linear(5, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -2.0, 3.0, -4.0, 5.0], [6.0, -7.0, 8.0, -9.0, 10.0]]))
    return l1_unstructured(model[0], "weight", amount=4) and model


@pytest.mark.parametrize("model", [layer(), remove_all(layer())], ids=["pruned", "removed"])
def test_weight_histogram(model):
    _, axis = plots.weight_histogram(model, "0.weight", bins=10)
    assert sum(bar.get_height() for bar in axis.containers[0]) == 6
    assert [line.get_xdata()[0] for line in axis.lines] == [-5.0, 5.0]
    assert axis.get_title() == "0.weight: 4 of 10 are zero (40.0%)"
    _, axis = plots.weight_histogram(model, "0.weight", threshold=2.5)
    assert [line.get_xdata()[0] for line in axis.lines] == [-2.5, 2.5]


def test_a_histogram_without_zeros_marks_nothing():
    _, axis = plots.weight_histogram(nn.Linear(3, 3), "weight")
    assert len(axis.lines) == 0


def test_mask_of_a_matrix():
    model = nn.Linear(3, 2)
    custom_from_mask(model, "weight", torch.tensor([[1, 0, 1], [0, 0, 1]]))
    _, axis = plots.mask_picture(model, "weight")
    assert axis.images[0].get_array().tolist() == [[1, 0, 1], [0, 0, 1]]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("input channel (of 3)", "output channel (of 2)")
    assert axis.get_title() == "weight, 2x3\n50.0% pruned"


KERNELS = torch.tensor([[[[1, 0], [0, 1]], [[1, 1], [1, 1]], [[0, 0], [0, 0]]], [[[0, 1], [1, 0]]] * 3])


@pytest.mark.parametrize("transposed", [False, True])
def test_mask_of_a_convolution_is_a_grid_of_kernels(transposed):
    model = (nn.ConvTranspose2d if transposed else nn.Conv2d)(3, 2, 2)
    custom_from_mask(model, "weight", KERNELS.transpose(0, 1) if transposed else KERNELS)
    _, axis = plots.mask_picture(model, "weight")
    gap = 2
    assert axis.images[0].get_array().tolist() == [
        [1, 0, gap, 1, 1, gap, 0, 0],
        [0, 1, gap, 1, 1, gap, 0, 0],
        [gap] * 8,
        [0, 1, gap, 0, 1, gap, 0, 1],
        [1, 0, gap, 1, 0, gap, 1, 0],
    ]
    assert axis.get_xticks().tolist() == [0.5, 3.5, 6.5]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["0", "1"]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Conv1d(3, 2, 4), (3, 14)),
        (lambda: nn.Conv3d(1, 1, (2, 3, 4)), (6, 4)),
        (lambda: nn.PReLU(3), (1, 3)),
    ],
    ids=["conv1d", "conv3d", "vector"],
)
def test_masks_of_other_dimensions(make, shape):
    _, axis = plots.mask_picture(make(), "weight")
    assert axis.images[0].get_array().shape == shape


def test_large_masks_show_shares():
    model = nn.Linear(2048, 1024, bias=False)
    mask = torch.zeros(1024, 2048)
    mask[::2, :1024] = 1
    custom_from_mask(model, "weight", mask)
    _, axis = plots.mask_picture(model, "weight")
    shares = np.asarray(axis.images[0].get_array())
    assert shares.shape == (512, 512)
    assert (shares[:, :256] == 0.5).all()
    assert (shares[:, 256:] == 0).all()
    assert axis.get_xlim() == (-0.5, 2047.5)


def test_every_picture_draws_where_it_is_told():
    figure, axes = plt.subplots(2, 2)
    plots.sparsity_over_time(history(), axes[0, 0])
    plots.schedule_and_reached(history(), ax=axes[0, 1])
    plots.weight_histogram(layer(), "0.weight", ax=axes[1, 0])
    given, axis = plots.mask_picture(layer(), "0.weight", ax=axes[1, 1])
    assert (given, axis) == (figure, axes[1, 1])
    assert all(len(ax.lines) + len(ax.images) for ax in axes.flat)
    figure.canvas.draw()


@pytest.mark.parametrize("picture", [plots.weight_histogram, plots.mask_picture])
def test_an_unknown_tensor_is_an_error(picture):
    with pytest.raises(ValueError, match=r"'0.wieght' matches no parameter.*0.weight"):
        picture(layer(), "0.wieght")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lightning-prune\[plot\]'"):
        plots.mask_picture(nn.Linear(2, 2), "weight")


def test_publish_writes_files_and_closes_the_figure(tmp_path):
    for name, file in (("mask", "mask.png"), ("fit/mask.svg", "fit/mask.svg")):
        figure, _ = plots.mask_picture(layer(), "0.weight")
        plots.publish(figure, tmp_path / "new", name)
        assert (tmp_path / "new" / file).stat().st_size > 1000
        assert not plt.fignum_exists(figure.number)


def test_publish_to_tensorboard(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    plots.publish(plots.mask_picture(layer(), "0.weight")[0], logger, "masks/0.weight", step=7)
    logger.experiment.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [image.step for image in events.Images("masks/0.weight")] == [7]


def test_publish_refuses_loggers_without_figures(tmp_path):
    figure, _ = plots.mask_picture(layer(), "0.weight")
    with pytest.raises(TypeError, match="CSVLogger takes no figures"):
        plots.publish(figure, CSVLogger(tmp_path), "mask")


class Images(CSVLogger):
    """Takes images as the logger of Weights & Biases does."""

    def log_image(self, key, images, step=None, **kwargs):
        self.logged = (key, [image.shape[2:] for image in images], step)


def test_a_logger_of_images_is_given_pixels(tmp_path):
    logger = Images(tmp_path)
    figure, _ = plots.mask_picture(nn.Linear(3, 2), "weight")
    plots.publish(figure, logger, "mask", step=4)
    assert logger.logged == ("mask", [(4,)], 4)
