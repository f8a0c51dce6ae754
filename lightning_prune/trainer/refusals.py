"""What pruning does not go together with in a Trainer."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import Strategy

from lightning_prune.trainer.lightning import callbacks_of, is_a


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


def require_strategy(strategy: Strategy) -> None:
    """Refuses strategies under which masks would not hold.

    Args:
        strategy: That of the Trainer.

    Raises:
        ValueError: For FSDP1 and DeepSpeed; names the strategies to use instead.
    """
    if is_a(strategy, "strategies.FSDPStrategy"):
        raise ValueError(
            "pruning does not work under FSDPStrategy, which flattens the parameters of a layer into one: use "
            "ModelParallelStrategy with torch.distributed.fsdp.fully_shard in configure_model, or 'ddp' if the model "
            "fits on a device"
        )
    if is_a(strategy, "strategies.DeepSpeedStrategy"):
        raise ValueError(
            "pruning does not work under DeepSpeedStrategy, which trains copies of the weights that masks do not "
            "reach: use 'ddp', or ModelParallelStrategy with torch.distributed.fsdp.fully_shard in configure_model"
        )
