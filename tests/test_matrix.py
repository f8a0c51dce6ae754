"""Every way of pruning goes through every situation: adding one means adding a row."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_prune import (
    SET,
    Activation,
    Budget,
    Constant,
    Cosine,
    Cubic,
    Exponential,
    Fisher,
    FromFunction,
    GraSP,
    Linear,
    Movement,
    OneCycle,
    OneShot,
    Polynomial,
    PruningCallback,
    Rewind,
    RigL,
    Steps,
    SynFlow,
    Taylor,
)
from lightning_prune.prune import BasePruningMethod
from tests.expected import ENDED_EARLY, FEW_SELECTED
from tests.models import net, random_data, trainer, zeros

pytestmark = [ENDED_EARLY, FEW_SELECTED]

EPOCHS, BATCHES = 4, 4
WEIGHTS = 8 * 16 + 16 * 3


class Ranked(BasePruningMethod):
    """A user's own method, by the smallest squares."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask = default_mask.clone()
        mask.view(-1)[t.flatten().square().argsort()[: self.amount]] = 0
        return mask


def halfway(time: int | float) -> float:
    return min(0.3 * time, 0.8)


EPOCH_CURVES: dict[str, Any] = {"begin": 1, "end": 3, "final": 0.7}
STEP_CURVES: dict[str, Any] = {"begin": 3, "end": 13, "every": 4, "unit": "step", "final": 0.7}
SCHEDULES = {
    "one shot": (OneShot(0.7, begin=2), OneShot(0.7, begin=5, unit="step")),
    "constant": (Constant(begin=1, final=0.7), Constant(begin=6, every=3, unit="step", final=0.7)),
    "linear": (Linear(**EPOCH_CURVES), Linear(**STEP_CURVES)),
    "polynomial": (Polynomial(power=2, **EPOCH_CURVES), Polynomial(power=2, **STEP_CURVES)),
    "cubic": (Cubic(**EPOCH_CURVES), Cubic(**STEP_CURVES)),
    "exponential": (Exponential(**EPOCH_CURVES), Exponential(**STEP_CURVES)),
    "cosine": (Cosine(**EPOCH_CURVES), Cosine(**STEP_CURVES)),
    "one cycle": (OneCycle(**EPOCH_CURVES), OneCycle(**STEP_CURVES)),
    "steps": (Steps({1: 0.3, 3: 0.6}), Steps({2: 0.25, 9: 0.5}, unit="step")),
    "function": (FromFunction(halfway, final=0.8), FromFunction(halfway, final=0.8, end=6, unit="step")),
}
METHODS: dict[str, Any] = {
    "l1": {"method": "l1_unstructured"},
    "random": {"method": "random_unstructured"},
    "own": {"method": Ranked},
    "channels": {"method": "ln_structured", "dim": "in"},
}


def calibrated(model: Any) -> Tensor:
    return model.loss(random_data(16)[:])


def inverse(targets: Any) -> list[Tensor]:
    """The largest weights go first."""
    return [1 / t.parameter.detach().abs().clamp_min(1e-9) for t in targets]


class Counting(PruningCallback):
    """Notes the time, the target and the zeros of the weights themselves at each event."""

    def on_pruned(self, trainer: Any, pl_module: Any, event: Any) -> None:
        self.seen = [*getattr(self, "seen", []), (event.demand.time, event.demand.sparsity, zeros(pl_module))]


@pytest.mark.parametrize("unit", [0, 1], ids=["epoch", "step"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scope", ["local", "global", "erk"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_zeros_after_each_event_are_those_of_the_plan(
    tmp_path: Path, schedule: str, scope: Any, method: str, unit: int
) -> None:
    plan = SCHEDULES[schedule][unit]
    callback = Counting(**METHODS[method], schedule=plan, scope=scope, verbose=False)
    trainer(tmp_path, callback, epochs=EPOCHS).fit(net())
    planned = plan.events(EPOCHS * BATCHES if unit else EPOCHS)
    slack = (16 + 3) / 2 if method == "channels" else 0  # half a channel of each layer
    assert [(time, target) for time, target, _ in callback.seen] == planned
    assert all(abs(found - round(target * WEIGHTS)) <= slack for _, target, found in callback.seen)


COUPLED: dict[str, Any] = {"method": "ln_structured", "groups": "dependency", "example_inputs": torch.zeros(2, 8)}
ROWS: dict[str, dict[str, Any]] = {
    "l1, amounts": {"amount": 0.3, "epochs": [1, 3]},
    "l1, amounts by step, global": {"amount": 20, "steps": [2, 7, 13], "scope": "global"},
    "l1, cubic": {"schedule": Cubic(**EPOCH_CURVES), "scope": "global"},
    "l1, cubic by step, in place": {"schedule": Cubic(**STEP_CURVES), "scope": "global", "enforce": "in_place"},
    "l1, by shape": {"schedule": Linear(**STEP_CURVES), "scope": "erk"},
    "l1, fractions": {"schedule": Linear(final=0.7, begin=0.1, end=0.9, unit="fraction")},
    "l1, lamp": {"schedule": Exponential(**EPOCH_CURVES), "scope": Budget("global", normalize="lamp")},
    "l1, rewound": {"amount": 0.3, "epochs": [1, 3], "rewind": Rewind(step=2)},
    "random": {"method": "random_unstructured", "schedule": Linear(**STEP_CURVES)},
    "random, global, in place": {
        "method": "random_unstructured",
        "amount": 0.4,
        "scope": "global",
        "enforce": "in_place",
    },
    "channels": {"method": "ln_structured", "schedule": Linear(**EPOCH_CURVES)},
    "channels, global": {"method": "ln_structured", "n": 1, "dim": "in", "amount": 0.2, "scope": "global"},
    "random channels": {"method": "random_structured", "schedule": Steps({1: 0.3, 3: 0.6})},
    "coupled channels": {**COUPLED, "schedule": Linear(**EPOCH_CURVES)},
    "coupled channels, global, read": {**COUPLED, "amount": 0.2, "scope": "global", "enforce": "read"},
    "coupled channels, rewound": {**COUPLED, "schedule": Linear(**STEP_CURVES), "rewind": Rewind(step=2)},
    "coupled channels, taylor": {**COUPLED, "criterion": Taylor(batches=3), "schedule": Cubic(**STEP_CURVES)},
    "coupled channels, movement": {
        **COUPLED,
        "criterion": "movement",
        "schedule": Linear(**STEP_CURVES),
        "scope": "global",
    },
    "random coupled channels": {**COUPLED, "method": "random_structured", "schedule": Cubic(**STEP_CURVES)},
    "own": {"method": Ranked, "schedule": Linear(**EPOCH_CURVES), "scope": Budget(overrides={"last.weight": 0.3})},
    "n of m": {"method": "n_m", "schedule": Linear(begin=1, end=3, final=0.5)},
    "n of m, global": {"method": "n_m", "n": 1, "schedule": Cubic(**STEP_CURVES), "scope": "global"},
    "blocks": {"method": "ln_blocks", "method_kwargs": {"block": (1, 4)}, "schedule": Linear(**EPOCH_CURVES)},
    "rows": {"schedule": Linear(**EPOCH_CURVES), "scope": "row"},
    "taylor": {"criterion": Taylor(batches=3), "schedule": Cubic(**STEP_CURVES), "scope": "global"},
    "taylor of each, read": {
        "criterion": Taylor(batches=2, order="each"),
        "schedule": Linear(**EPOCH_CURVES),
        "enforce": "read",
    },
    "taylor, channels": {
        "method": "ln_structured",
        "dim": "in",
        "criterion": "taylor",
        "schedule": Linear(**STEP_CURVES),
    },
    "snip": {"criterion": "snip", "schedule": OneShot(0.7), "scope": "global"},
    "fisher": {"criterion": Fisher(batches=5), "amount": 0.3, "epochs": [1, 3]},
    "movement": {"criterion": "movement", "schedule": Cubic(**STEP_CURVES), "scope": "global"},
    "movement, n of m": {"method": "n_m", "criterion": Movement(), "schedule": Linear(begin=1, end=3, final=0.5)},
    "grasp": {
        "criterion": GraSP(loss=calibrated, temperature=2.0),
        "schedule": OneShot(0.7, begin=1),
        "scope": "global",
    },
    "synflow": {"criterion": SynFlow(rounds=9, example_inputs=torch.zeros(2, 8)), "schedule": Linear(**EPOCH_CURVES)},
    "activation": {"criterion": Activation(batches=2), "schedule": Linear(**EPOCH_CURVES), "scope": "row"},
    "own criterion": {"criterion": inverse, "schedule": Linear(**EPOCH_CURVES), "scope": "global"},
    "rigl": {"schedule": Constant(final=0.7), "scope": "erk", "regrow": RigL(every=3, until=0.9)},
    "set, by epoch": {"schedule": Constant(final=0.7), "regrow": SET(every=1, until=4, unit="epoch", decay="constant")},
    "rigl, cubic": {"schedule": Cubic(**STEP_CURVES), "scope": "global", "regrow": RigL(every=3, begin=0.1, until=0.9)},
    "rigl, taylor": {
        "criterion": Taylor(batches=3),
        "schedule": Linear(**EPOCH_CURVES),
        "regrow": RigL(every=2, until=14, unit="step", strict=False),
    },
    "rigl, window": {
        "schedule": Constant(final=0.7),
        "regrow": RigL(every=5, until=14, unit="step", window=4),
    },
    "set, rising, fractions": {
        "schedule": Linear(final=0.7, begin=0.1, end=0.9, unit="fraction"),
        "scope": "global",
        "regrow": SET(every=3, strict=False),
    },
    "rigl, kept zeros": {"keep_zeros": True, "schedule": OneShot(0.6, begin=2), "regrow": RigL(every=3)},
    "kept zeros": {"keep_zeros": True, "schedule": OneShot(0.6, begin=2)},
}


@pytest.fixture
def _deterministic() -> Iterator[None]:
    """Lightning turns them on for good."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("row", ROWS)
def test_deterministic_algorithms_change_nothing(tmp_path: Path, row: str) -> None:
    models = [model(), model()]
    for deterministic, found in zip((False, True), models, strict=True):
        callback = PruningCallback(**ROWS[row], seed=3, verbose=False)
        trainer(tmp_path, callback, epochs=EPOCHS, deterministic=deterministic).fit(found)
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))
    assert zeros(models[1]) > 0


class Crash(Callback):
    """Saves the state after a batch, looks at copies of the pruned model, and crashes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.save_checkpoint(self.path)
            for twin in (copy.deepcopy(pl_module.first), pickle.loads(pickle.dumps(pl_module.first))):
                assert torch.equal(twin.weight, pl_module.first.weight)
                twin(torch.ones(2, 8)).sum().backward()
            raise RuntimeError("crashed on purpose")


def model() -> Any:
    torch.manual_seed(0)
    found = net()
    with torch.no_grad():
        found.first.weight[0, :4] = 0
    return found


@pytest.mark.parametrize("row", ROWS)
def test_trains_crashes_resumes_and_ends_plain(tmp_path: Path, row: str) -> None:
    def callback() -> PruningCallback:
        return PruningCallback(**ROWS[row], seed=3, verbose=False)

    whole = model()
    straight = trainer(tmp_path, callback(), epochs=EPOCHS)
    straight.fit(whole)
    assert type(whole.first) is type(whole.last) is nn.Linear
    assert not whole.first._forward_pre_hooks
    assert list(whole.state_dict()) == list(net().state_dict())
    assert zeros(whole) > WEIGHTS // 4

    file = tmp_path / "crash.ckpt"
    crashed = model()
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer(tmp_path, callback(), Crash(file), epochs=EPOCHS).fit(crashed)
    assert type(crashed.first) is nn.Linear

    state = torch.load(file, weights_only=True)["state_dict"]
    plain = net()
    plain.load_state_dict(state, strict=True)
    assert zeros(plain) == zeros(crashed)

    resumed = net()
    again = trainer(tmp_path, callback(), epochs=EPOCHS)
    again.fit(resumed, ckpt_path=file)
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())
    ends = [fit.optimizers[0].state_dict()["state"] for fit in (straight, again)]
    assert str(ends[0]) == str(ends[1])
