"""What pruning does not go together with in a Trainer."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import Strategy

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
