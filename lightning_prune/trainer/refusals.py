"""What pruning does not go together with in a Trainer."""

from __future__ import annotations

import re

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_warn

from lightning_prune.prune.warning import PruningWarning
from lightning_prune.schedules.plan import Plan
from lightning_prune.trainer.lightning import callbacks_of, is_a

_REFUSED = {
    "FSDPStrategy": "which flattens the parameters of a layer into one",
    "DeepSpeedStrategy": "which trains copies of the weights that masks do not reach",
}
_INSTEAD = """Use 'ddp' if the model fits on a device, or split it by fully_shard: give the Trainer \
strategy=ModelParallelStrategy() and the LightningModule

    def configure_model(self):
        from torch.distributed.fsdp import fully_shard

        mesh = self.device_mesh["data_parallel"]
        for layer in self.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(self, mesh=mesh)"""


def require_fit(trainer: Trainer) -> None:
    """Refuses a Trainer in which masks would not hold.

    Args:
        trainer: The Trainer that is to fit.

    Raises:
        ValueError: If its strategy keeps other weights, or another callback prunes too; says what to do.
    """
    require_strategy(trainer.strategy)
    if any(is_a(callback, "callbacks.ModelPruning") for callback in callbacks_of(trainer)):
        raise ValueError("a ModelPruning callback prunes in the same Trainer: leave it out, or leave this one out")


def require_rewindable(trainer: Trainer, plan: Plan) -> None:
    """Refuses to go back after another callback has put other learning-rate schedulers in place.

    Args:
        trainer: The Trainer whose fit begins, when its callbacks know its epochs.
        plan: When weights and schedulers go back; if it counts no epochs, it is only said.

    Raises:
        ValueError: If ``StochasticWeightAveraging`` begins before the last event.
    """
    averaging = [c for c in callbacks_of(trainer) if is_a(c, "callbacks.StochasticWeightAveraging")]
    for start in (int(callback.swa_start) for callback in averaging):  # type: ignore[attr-defined]
        swapped = f"StochasticWeightAveraging replaces the learning-rate schedulers at the start of epoch {start}"
        if plan.unit == "epoch" and plan.last is not None and plan.last >= start:
            raise ValueError(
                f"{swapped}, and rewind= cannot bring them back at epoch {plan.last}: end the plan before epoch "
                f"{start}, let averaging begin later (swa_epoch_start counts from 1), or use WeightAveraging"
            )
        if plan.unit != "epoch":
            message = f"{swapped}: an event after that cannot be rewound and ends the fit"
            rank_zero_warn(message, category=PruningWarning)


def explain(exception: BaseException) -> None:
    """Adds to the error of a checkpoint with masks of torch how it is made one that loads.

    Args:
        exception: What ended a fit.
    """
    missing, _, unexpected = str(exception).partition("Unexpected key(s)")
    names = re.findall(r'"([^"]+)_orig"', unexpected)
    if isinstance(exception, RuntimeError) and any(f'"{name}"' in missing for name in names):
        exception.args = (
            f"{exception}\nThe checkpoint was written while torch.nn.utils.prune or ModelPruning pruned the model. "
            "`python -m lightning_prune dense IN OUT` (or lightning_prune.checkpoint.to_dense on its state dict) "
            "makes it a plain one with zeros; go on from that with keep_zeros=True, loading it into the model: the "
            "optimizer's state is one of other parameters, so it cannot be a ckpt_path",
        )


def require_strategy(strategy: Strategy) -> None:
    """Refuses strategies under which masks would not hold.

    Args:
        strategy: That of the Trainer.

    Raises:
        ValueError: For FSDP1 and DeepSpeed; names the strategies to use instead.
    """
    for name, reason in _REFUSED.items():
        if is_a(strategy, f"strategies.{name}"):
            raise ValueError(f"pruning does not work under {name}, {reason}. {_INSTEAD}")
