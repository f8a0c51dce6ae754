import pytest

from lightning_prune import Demand, PruningEvent
from lightning_prune.report.history import History, of_events, read_csv

CSV = """epoch,sparsity,sparsity/a.weight,sparsity/target,step,val_loss
0,,,,9,0.7
0,0.25,0.5,0.3,9,
1,,,,19,0.6
1,0.5,0.75,0.6,19,
"""


def test_read_csv(tmp_path):
    (tmp_path / "metrics.csv").write_text(CSV)
    by_epoch = History("epoch", ((0, 0.25), (1, 0.5)), ((0, 0.3), (1, 0.6)), {"a.weight": ((0, 0.5), (1, 0.75))})
    assert read_csv(tmp_path) == by_epoch
    assert read_csv(tmp_path / "metrics.csv", unit="step").sparsity == ((9, 0.25), (19, 0.5))


def test_read_csv_with_a_prefix_and_without_targets(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,prune/sparsity,sparsity,step\n3,0.5,0.1,7\n")
    assert read_csv(tmp_path, prefix="prune/") == History("epoch", ((3, 0.5),))


@pytest.mark.parametrize("text", ["", "epoch,step,val_loss\n0,9,0.7\n"])
def test_a_file_without_sparsity_is_an_error(tmp_path, text):
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(ValueError, match=r"metrics.csv' has no values of 'sparsity'"):
        read_csv(tmp_path)


def test_an_unknown_unit_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="'step' or 'epoch', got 'batch'"):
        read_csv(tmp_path, unit="batch")


def test_of_events():
    events = [
        PruningEvent(Demand(time, amount=0.5), zeros=zeros, total=8, before=0, tensors={"a": zeros, "b": 0})
        for time, zeros in ((2, 1), (5, 2))
    ]
    tensors = {"a": ((2, 0.25), (5, 0.5)), "b": ((2, 0.0), (5, 0.0))}
    assert of_events(events, {"a": 4, "b": 4}, "step") == History("step", ((2, 0.125), (5, 0.25)), (), tensors)


def test_only_columns_of_sparsity_are_taken(tmp_path):
    text = "epoch,step,sparsity,sparsity_loss,sparsity/a\n0,9,0.5,7.0,0.25\n1,19,0.6,7.0,0.5,stray,cells\n2,29\n"
    (tmp_path / "metrics.csv").write_text(text, encoding="utf-8-sig")  # with the mark that spreadsheets write
    assert read_csv(tmp_path) == History("epoch", ((0, 0.5), (1, 0.6)), (), {"a": ((0, 0.25), (1, 0.5))})


def test_a_file_without_a_column_of_the_unit_is_an_error(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,sparsity\n9,0.5\n")
    assert read_csv(tmp_path, unit="step").sparsity == ((9, 0.5),)
    with pytest.raises(ValueError, match=r"has no values of 'epoch'; its columns are step, sparsity"):
        read_csv(tmp_path)
