"""Shrinking: what is zero goes, outputs stay, and the smaller network is a network like any other."""

import copy

import pytest
import torch
from torch import Tensor, nn

from lightning_prune import export
from lightning_prune.prune import l1_unstructured, ln_structured
from lightning_prune.pruner.calling import difference, outputs
from lightning_prune.pruner.dependency import find_groups
from lightning_prune.pruner.groups import Groups
from lightning_prune.pruner.proof import zero_out
from tests.channel_models import ZOO, ResNet, trained_looking, vgg


def dead_at(groups: Groups, share: float) -> list[list[bool]]:
    """The first channels of each group, one at least left."""
    return [[c < min(round(share * g.channels), g.channels - 1) for c in range(g.channels)] for g in groups.groups]


def with_dead_channels(name: str, share: float) -> tuple[nn.Module, Tensor, int]:
    """A network of the zoo with masked coupled channels, an input for it, and how many channels are masked."""
    make, inputs = ZOO[name]
    model = trained_looking(make)
    groups = find_groups(model, inputs())
    dead = dead_at(groups, share)
    zero_out(model, groups.groups, dead)
    return model, inputs(), sum(sum(flags) for flags in dead)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("share", [0.3, 0.5, 0.75])
@pytest.mark.parametrize("name", ZOO)
def test_every_masked_channel_is_cut_and_outputs_stay(name: str, share: float):
    model, inputs, masked = with_dead_channels(name, share)
    small, report = export.shrink(model, inputs)
    assert report.removed == masked > 0
    other = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(7))
    for example in (inputs, other):
        assert difference(outputs(model, example), outputs(small, example)) <= 1e-5
    assert report.difference <= 1e-5
    again, second = export.shrink(small, inputs)
    assert second.removed == 0
    assert [p.shape for p in again.parameters()] == [p.shape for p in small.parameters()]


@pytest.mark.parametrize("name", ZOO)
def test_training_goes_on_after_shrinking(name: str):
    model, inputs, _ = with_dead_channels(name, 0.5)
    small, _ = export.shrink(model, inputs)
    small.train()
    optimizer = torch.optim.Adam(small.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = small(inputs).square().mean()
        loss.backward()
        assert all(p.grad is not None and p.grad.shape == p.shape for p in small.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ZOO)
def test_a_file_and_the_plain_class_give_the_shrunk_network_back(name: str, tmp_path):
    model, inputs, _ = with_dead_channels(name, 0.5)
    small, _ = export.shrink(model, inputs)
    export.save(small, tmp_path / "small.safetensors")
    loaded = export.load(ZOO[name][0](), tmp_path / "small.safetensors").eval()
    assert all(torch.equal(a, b) for a, b in zip(outputs(small, inputs), outputs(loaded, inputs), strict=True))
    assert str(loaded) == str(small)


def test_numbers_of_the_report_are_those_of_the_networks():
    model, inputs, _ = with_dead_channels("vgg", 0.5)
    small, report = export.shrink(model, inputs[:1])
    assert (report.before.parameters, report.after.parameters) == (parameters(model), parameters(small))
    assert report.channels["0"] == (8, 4)
    assert report.channels["22"] == (32, 16)
    # first convolution: 16 x 16 places, 3 channels, 9 weights, 8 or 4 output channels
    convs = {"before": (8, [(3, 8, 16), (8, 8, 16), (8, 16, 8), (16, 16, 8), (16, 32, 4), (32, 32, 4)])}
    dense = sum(9 * i * o * side * side for i, o, side in convs["before"][1]) + 128 * 32 + 32 * 10
    assert report.before.multiply_adds == dense
    halves = [(3, 4, 16), (4, 4, 16), (4, 8, 8), (8, 8, 8), (8, 16, 4), (16, 16, 4)]
    assert report.after.multiply_adds == sum(9 * i * o * s * s for i, o, s in halves) + 64 * 16 + 16 * 10
    assert report.after.file_bytes == sum(t.numel() * t.element_size() for t in small.state_dict().values())
    assert "conv1" not in str(report)
    assert "multiply-adds" in str(report)


def test_the_model_stays_as_it_is_and_its_mode_is_kept():
    model, inputs, _ = with_dead_channels("resnet", 0.5)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    small, _ = export.shrink(model, inputs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert small.training


def test_channels_that_nobody_reads_go_whatever_makes_them():
    net = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2)).eval()
    with torch.no_grad():
        net[2].weight[:, [1, 5]] = 0
    small, report = export.shrink(net, torch.randn(3, 4))
    assert report.channels == {"0": (8, 6)}
    assert torch.equal(small[0].weight, net[0].weight[[0, 2, 3, 4, 6, 7]])


def test_channels_that_arrive_as_zero_go_and_constants_stay():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    with torch.no_grad():
        net[0].weight[:3] = 0
        net[0].bias[:] = torch.tensor([0.0, -1.0, 2.0, 1, 1, 1, 1, 1])  # zero, zero after the ReLU, a constant
    _, report = export.shrink(net, torch.randn(3, 4))
    assert report.channels == {"0": (8, 6)}


def test_a_channel_that_is_silent_only_on_the_examples_stays():
    net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 1.0], [-1e-6, -1e-6], [1.0, 0.0]]))
    _, report = export.shrink(net, torch.full((4, 2), 100.0))
    assert report.removed == 0


def test_a_zero_scale_behind_a_layer_makes_its_channel_constant():
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    with torch.no_grad():
        net[1].weight[:2] = 0
        net[1].bias[:] = torch.tensor([0.0, 0.5, 0.5, 0.5])
    _, report = export.shrink(net, torch.randn(2, 1, 3, 3))
    assert report.channels == {"0": (4, 3)}


def test_what_only_dead_channels_read_goes_too():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        net[4].weight[:, 0] = 0  # nobody reads channel 0 of the second layer, the only one that reads 1 of the first
        net[2].weight[1:, 1] = 0
    _, report = export.shrink(net, torch.randn(3, 3))
    assert report.channels == {"0": (4, 3), "2": (4, 3)}


def test_one_channel_of_a_dead_layer_stays():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    nn.init.zeros_(net[2].weight)
    small, report = export.shrink(net, torch.randn(2, 3))
    assert report.channels == {"0": (4, 1)}
    assert export.shrink(small, torch.randn(2, 3))[1].removed == 0


def test_masks_of_a_model_that_is_being_pruned_count():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    ln_structured(net[2], "weight", amount=3, n=2, dim=1)
    small, report = export.shrink(net, torch.randn(2, 4))
    assert report.channels == {"0": (8, 5)}
    assert hasattr(net[2], "weight_mask")
    assert not hasattr(small[2], "weight_mask")


def test_outputs_beyond_the_tolerance_are_refused_with_the_layer():
    model, inputs, _ = with_dead_channels("vgg", 0.5)
    with pytest.raises(ValueError, match=r"tolerance=-1; most of it .* comes from the channels of '\d+'"):
        export.shrink(model, inputs, tolerance=-1)


def test_a_lightning_module_brings_its_inputs(tmp_path):
    from tests.models import Net

    module = Net()
    module.example_input_array = torch.randn(2, 8)
    with torch.no_grad():
        module.last.weight[:, :5] = 0
    small, report = export.shrink(module)
    assert report.channels == {"first": (16, 11)}
    assert small.norm.num_features == 11


@pytest.mark.parametrize(
    ("inputs", "message"),
    [(None, "give example_inputs="), (torch.zeros(1, 5), "Linear cannot be called with the example inputs")],
)
def test_missing_and_wrong_inputs_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        export.shrink(nn.Linear(4, 2), inputs)


def test_a_second_shrinking_is_saved_with_the_first(tmp_path):
    model, inputs, _ = with_dead_channels("resnet", 0.5)
    once, _ = export.shrink(model, inputs)
    groups = find_groups(once, inputs)
    zero_out(once, groups.groups, dead_at(groups, 0.5))
    twice, report = export.shrink(once, inputs)
    assert report.removed > 0
    export.save(copy.deepcopy(twice), tmp_path / "twice.safetensors")
    loaded = export.load(ResNet(), tmp_path / "twice.safetensors").eval()
    assert torch.equal(loaded(inputs), twice(inputs))


def test_a_file_for_another_model_is_refused_and_changes_nothing(tmp_path):
    model, inputs, _ = with_dead_channels("vgg", 0.5)
    export.save(export.shrink(model, inputs)[0], tmp_path / "small.safetensors")
    other = vgg(width=12)
    before = str(other)
    with pytest.raises(ValueError, match=r"'0.weight' of shape \(12, 3, 3, 3\) here would be \(12, 3, 3, 3\)"):
        export.load(other, tmp_path / "small.safetensors")
    with pytest.raises(ValueError, match=r"it lacks \['blocks"):
        export.load(ResNet(), tmp_path / "small.safetensors")
    assert str(other) == before


def test_files_of_other_kinds_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "plain.safetensors")
    torch.save({"a": torch.zeros(1)}, tmp_path / "torch.pt")
    with pytest.raises(ValueError, match=r"not one that lightning_prune.export.save wrote"):
        export.load(vgg(), tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        export.load(vgg(), tmp_path / "torch.pt")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        export.load(vgg(), tmp_path / "nothing")


def test_a_model_under_pruning_is_not_saved(tmp_path):
    net = nn.Sequential(l1_unstructured(nn.Linear(2, 2), "weight", amount=1))
    with pytest.raises(ValueError, match=r"'0.weight' is being pruned: shrink the model first"):
        export.save(net, tmp_path / "small.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_shared_tensors_are_written_once_and_shared_again(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.hidden, self.out = nn.Linear(6, 4), nn.Linear(4, 5), nn.Linear(5, 4)
            self.head = nn.Linear(4, 6)
            self.inside.weight = nn.Parameter(self.inside.weight.detach())
            self.again = nn.Linear(6, 4)
            self.again.weight = self.inside.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.out(torch.relu(self.hidden(self.inside(x) + self.again(x)))))

    model = Tied().eval()
    with torch.no_grad():
        model.out.weight[:, 0] = 0
    x = torch.randn(2, 6)
    small, report = export.shrink(model, x)
    assert report.channels == {"hidden": (5, 4), "out": (4, 4)}
    assert small.again.weight is small.inside.weight
    export.save(small, tmp_path / "tied.safetensors")
    loaded = export.load(Tied(), tmp_path / "tied.safetensors").eval()
    assert torch.equal(loaded(x), small(x))
    assert loaded.again.weight is loaded.inside.weight


def test_the_command_line_shows_a_shrunk_file(tmp_path, capsys):
    from lightning_prune.__main__ import main

    model, inputs, _ = with_dead_channels("vgg", 0.5)
    small, _ = export.shrink(model, inputs)
    export.save(small, tmp_path / "small.safetensors")
    assert main(["show", str(tmp_path / "small.safetensors")]) == 0
    shown = capsys.readouterr().out
    assert "16 of 32 channels kept in 14.weight[0], 14.bias[0]," in shown
    assert "0.weight" in shown
