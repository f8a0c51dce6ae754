import builtins
import io

import pytest
import torch
from rich.console import Console
from torch import nn

from lightning_prune import prune, report
from lightning_prune.prune import custom_from_mask, l1_unstructured, remove_all
from lightning_prune.targets.select import select


class Terminal(io.StringIO):
    def isatty(self):
        return True


def net():  # one row of the first kernel is zero, and its bias not
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ConvTranspose2d(3, 4, 1, bias=False))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    mask = torch.ones(3, 2, 2, 2)
    mask[1] = 0
    mask[2, 0] = 0
    custom_from_mask(model[0], "weight", mask)
    mask = torch.ones(3, 4, 1, 1)
    mask[:, 2:] = 0
    custom_from_mask(model[2], "weight", mask)
    return model


def test_rows_by_hand():
    table = report.summary(net())
    assert table.rows == (
        report.Row("0.weight", (3, 2, 2, 2), 24, 12, channels=3, dead_channels=0),
        report.Row("0.bias", (3,), 3, 0),
        report.Row("1.weight", (3,), 3, 0),
        report.Row("1.bias", (3,), 3, 0),
        report.Row("2.weight", (3, 4, 1, 1), 12, 6, channels=4, dead_channels=2),
    )
    assert (table.weights, table.zeros, table.sparsity) == (45, 18, 0.4)
    assert [table.share(row) for row in table.rows] == [12 / 18, 0, 0, 0, 6 / 18]
    assert [row.sparsity for row in table.rows] == [0.5, 0, 0, 0, 0.5]


def test_channels_are_dead_when_their_bias_is_zero_too(tmp_path):
    model = net()
    model[0].bias.data[1] = 0
    assert [row.dead_channels for row in report.summary(model).rows] == [1, None, None, None, 2]
    assert report.summary(model, "0.weight").rows[0].dead_channels == 1
    torch.save(model.state_dict(), tmp_path / "model.pt")
    assert report.summary(tmp_path / "model.pt", "0.weight").rows[0].dead_channels == 1
    model[0].bias.data[1] = 0.5
    torch.save(model.state_dict(), tmp_path / "model.pt")
    assert report.summary(tmp_path / "model.pt", "0.weight").rows[0].dead_channels == 0
    custom_from_mask(model[0], "bias", torch.tensor([1, 0, 1]))  # what is read counts
    assert report.summary(model, "0.weight").rows[0].dead_channels == 1


def test_removed_models_give_the_same_and_dense_ones_no_zeros():
    assert report.summary(remove_all(net())) == report.summary(net())
    assert report.summary(nn.Linear(2, 2)).sparsity == 0.0
    assert report.summary(nn.Identity()).sparsity == 0.0


def test_selections():
    assert [row.name for row in report.summary(net(), "*").rows] == ["0.weight", "2.weight"]
    assert [row.name for row in report.summary(net(), exclude="2.*").rows] == ["0.weight"]


def test_files(tmp_path):
    path = tmp_path / "model.ckpt"
    model = net()
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, path)
    table = report.summary(path)
    of_model = report.summary(model)
    assert table.title == "model.ckpt"
    assert [(r.name, r.weights, r.zeros) for r in table.rows] == [(r.name, r.weights, r.zeros) for r in of_model.rows]
    assert report.summary(str(path), "0.*").rows == report.summary(model, "0.*").rows


def test_text():
    assert report.summary(net(), "*").text().splitlines() == [
        "Sequential",
        "tensor    shape    weights  zeros  sparsity  dead channels  share of zeros",
        "0.weight  3x2x2x2       24     12    50.00%            0/3          66.67%",
        "2.weight  3x4x1x1       12      6    50.00%            2/4          33.33%",
        "total                   36     18    50.00%            2/7         100.00%",
    ]


def test_long_tables_are_cut_in_the_middle():
    table = report.summary(nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(9)]))
    names = [line.split("  ")[0] for line in table.text(limit=3).splitlines()]
    assert names == ["Sequential", "tensor", "0.weight", "1.weight", "… 6 more", "8.weight", "total"]
    assert len(str(table).splitlines()) == 12


def test_start_and_end_of_a_fit():
    model = net()
    targets = select(model)
    assert report.selection(model, targets).startswith("pruning 2 tensors with 36 of 45 weights (80.0%): ")
    remove_all(model)
    table = report.end(targets, planned=0.75)
    assert (table.zeros, table.sparsity, table.planned) == (18, 0.5, 0.75)
    assert [line.split() for line in table.text().splitlines()[-2:]] == [
        ["reached", "36", "18", "50.00%", "2/7", "100.00%"],
        ["planned", "27", "75.00%"],
    ]


def test_show_prints_a_rich_table_on_a_terminal_and_plain_text_elsewhere(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    table = report.summary(net())
    terminal, pipe = Terminal(), io.StringIO()
    report.show(table, terminal)
    report.show(table, pipe)
    assert "────" in terminal.getvalue()
    assert "0.weight" in terminal.getvalue()
    assert pipe.getvalue() == f"{table}\n"


def test_show_does_without_rich(monkeypatch):
    real = builtins.__import__

    def without_rich(name, *args, **kwargs):
        if name.startswith("rich"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    table, terminal = report.summary(net()), Terminal()
    monkeypatch.setattr(builtins, "__import__", without_rich)
    report.show(table, terminal)
    assert terminal.getvalue() == f"{table}\n"


def test_long_names_leave_the_numbers_whole_on_a_narrow_terminal():
    names = nn.ModuleDict({"a_backbone_with_a_long_name": nn.Linear(1000, 1000)})
    console = Console(file=io.StringIO(), width=80)
    console.print(report.summary(names))
    lines = console.file.getvalue().splitlines()
    assert any("1000x1000" in line and "1,000,000" in line and "0/1,000" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_rich_prints_names_as_they_are():
    names = nn.ModuleDict({"[bold]": nn.Linear(2, 2)})
    console = Console(file=io.StringIO(), width=120)
    console.print(report.summary(names))
    assert "[bold].weight" in console.file.getvalue()


def test_zeros_of_tensors_that_share_memory_count_once(tmp_path):
    layer = l1_unstructured(nn.Linear(4, 4, bias=False), "weight", amount=8)
    tied = remove_all(nn.Sequential(layer, layer))
    torch.save(tied.state_dict(), tmp_path / "tied.pt")
    assert list(tied.state_dict()) == ["0.weight", "1.weight"]
    assert [(row.name, row.zeros) for row in report.summary(tmp_path / "tied.pt").rows] == [("0.weight", 8)]


def test_an_unknown_name_is_an_error():
    with pytest.raises(ValueError, match=r"near names: 0.weight"):
        report.summary(net(), "0.wieght")


def test_the_selection_of_a_deep_model_is_told_in_narrow_lines():
    deep = nn.Sequential()
    for i in range(60):
        deep.add_module(f"a_block_whose_name_is_very_long_and_says_all_that_it_does_{i}", nn.Linear(2, 2))
    told = report.selection(deep, select(deep))
    assert told.startswith("pruning 60 tensors with 240 of 360 weights (66.7%)")
    assert told.endswith("and 52 more")
    assert max(map(len, told.splitlines())) <= 100


def test_many_layers_are_told_by_what_their_names_have_in_common():
    deep = nn.ModuleDict({"blocks": nn.ModuleList(nn.ModuleList([nn.Linear(2, 2)]) for _ in range(60))})
    deep["head"] = nn.Linear(2, 2)
    assert report.selection(deep, select(deep)).endswith(": blocks.*.*.weight (60), head.weight")


def test_the_table_at_the_end_of_a_fit_has_narrow_lines_and_the_command_whole_names():
    name = "a_block_whose_name_is_very_long_and_says_all_that_it_does_and_some_of_what_it_does_not"
    table, narrow, wide = report.summary(nn.ModuleDict({name: nn.Linear(2, 2)})), io.StringIO(), io.StringIO()
    report.show(table, narrow)
    report.show(table, wide, limit=None)
    lines = narrow.getvalue().splitlines()
    assert {len(line) for line in lines[1:]} == {100}
    assert lines[2].startswith("a_block")
    assert lines[2].split()[0].endswith(".weight")
    assert f"{name}.weight" in wide.getvalue()


def test_tables_for_notebooks():
    table = report.Summary((report.Row("<a>", (2, 3), 6, 3, 2, 0),), title="t")._repr_html_()
    assert "<td>&lt;a&gt;</td><td>2x3</td><td>6</td><td>3</td><td>50.00%</td>" in table
    assert table.count("<tr>") == 3


def test_a_tensor_without_data_is_named():
    with pytest.raises(ValueError, match=r"'0.weight': a tensor of shape \(2, 2\) on the meta device has no data"):
        report.summary(nn.Sequential(nn.Linear(2, 2, device="meta")))


def test_tensors_with_n_of_m_are_named() -> None:
    net = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4), nn.ConvTranspose2d(4, 8, 1))
    prune.n_m_structured(net[0], "weight", n=2, m=4)
    prune.n_m_structured(net[1], "weight", n=1, m=8)
    prune.n_m_structured(net[2], "weight", n=1, m=2, dim=0)
    table = report.summary(net)
    assert table.patterns["2:4"] == ["0.weight"]
    assert table.patterns["1:8"] == ["1.weight"]
    assert table.patterns["1:2"] == ["2.weight"]
    assert {row.name: row.pattern for row in table.rows}["0.bias"] is None
    assert str(table).splitlines()[-3] == "2:4 along the inputs: 0.weight"


def test_sparse_tensors_without_a_pattern_are_not_named() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    for layer, amount in zip(net, (0.5, 0.9, 0.99), strict=True):
        prune.l1_unstructured(layer, "weight", amount=amount)
    assert report.summary(net).patterns == {}
