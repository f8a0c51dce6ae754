import pytest
import torch
from torch import nn

from lightning_prune.fit import checks
from lightning_prune.prune import custom_from_mask, l1_unstructured, remove_all
from lightning_prune.targets.select import select


def test_dead_layers():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 1))
    l1_unstructured(model[0], "weight", amount=5)
    l1_unstructured(model[1], "weight", amount=6)
    message = "'1.weight' is dead: all of its 6 weights are zero"
    assert checks.dead_layers(select(model)) == [message]
    assert checks.dead_layers(select(remove_all(model))) == [message]
    assert checks.dead_layers(select(nn.Linear(2, 2))) == []


def cut(model, first, second, out, read):
    """Leaves the ``first`` layer the output channels `out`, and the ``second`` the input channels `read`."""
    for name, channels, make in ((first, out, True), (second, read, False)):
        layer = model.get_submodule(name)
        dim = int(make == isinstance(layer, nn.ConvTranspose2d))
        mask = torch.zeros_like(layer.weight)
        mask.index_fill_(dim, torch.tensor(channels), 1)
        custom_from_mask(layer, "weight", mask)
    return model


MIDDLES = {
    "nothing": [],
    "channel by channel": [nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d()],
}


@pytest.mark.parametrize("middle", MIDDLES.values(), ids=list(MIDDLES))
@pytest.mark.parametrize("first", [nn.Conv2d(2, 3, 1), nn.ConvTranspose2d(2, 3, 1)], ids=["conv", "transposed"])
@pytest.mark.parametrize("second", [nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(3, 4, 1)], ids=["conv", "transposed"])
def test_cut_layers(first, second, middle):
    def net(out, read):
        model = nn.ModuleDict({"body": nn.Sequential(*remove_all(nn.ModuleList([first, *middle, second])))})
        for layer in (first, second):
            nn.init.ones_(layer.weight)
        return cut(model, "body.0", f"body.{len(middle) + 1}", out, read)

    expected = (
        f"'body.{len(middle) + 1}' is cut off: all channels that it reads are dead in 'body.0' before it, so its "
        "output is constant"
    )
    assert checks.cut_layers(net([0, 1], [2])) == [expected]
    assert checks.cut_layers(net([0, 1], [1, 2])) == []


@pytest.mark.parametrize(
    "middle",
    [nn.LayerNorm(4), nn.Softmax(dim=-1), nn.Linear(4, 4), nn.Flatten(), nn.Sequential(nn.ReLU())],
    ids=lambda m: type(m).__name__,
)
def test_modules_that_mix_or_are_unknown_prove_nothing(middle):
    model = nn.Sequential(nn.Linear(2, 4), middle, nn.Linear(4, 2))
    assert checks.cut_layers(cut(model, "0", "2", [0, 1], [2, 3])) == []


def test_a_cut_layer_gives_the_same_for_every_input():
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    cut(model, "0", "2", [0, 1], [2, 3])
    assert len(checks.cut_layers(model)) == 1
    assert torch.equal(*model(torch.randn(2, 2)).unbind())


def test_layers_that_do_not_fit_together_are_left_alone():
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Conv2d(3, 3, 1, groups=3), nn.Conv2d(3, 2, 1))
    assert checks.cut_layers(cut(model, "0", "2", [0], [1, 2])) == []
    assert (
        checks.cut_layers(nn.ModuleList(cut(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "0", "1", [0], [1]))) == []
    )


def test_a_narrow_selection():
    model = nn.Sequential(nn.Embedding(10, 10), nn.Linear(10, 10, bias=False))
    assert checks.narrow_selection(model, select(model)) == []
    wide = nn.Sequential(nn.Embedding(11, 10), nn.Linear(10, 10, bias=False))
    assert checks.narrow_selection(wide, select(wide)) == [
        "only 100 of 210 weights (47.6%) are selected for pruning; the largest others: '0.weight' (110)"
    ]


def test_weights_that_no_optimizer_holds():
    model = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(7)])
    targets = select(model)
    optimizers = [torch.optim.SGD(model[i].parameters(), lr=1) for i in range(7)]
    assert checks.not_trained(targets, optimizers) == []
    assert checks.not_trained(targets, []) == []
    assert checks.not_trained(targets, optimizers[:5]) == [
        "selected for pruning, but held by no optimizer: '5.weight', '6.weight'"
    ]
    assert checks.not_trained(targets, optimizers[:1])[0].endswith("'4.weight', '5.weight' and 1 more")
