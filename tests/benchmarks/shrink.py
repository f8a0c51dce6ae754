"""How much faster shrunk networks are, beside how much smaller: ``python -m tests.benchmarks.shrink``.

Each network is pruned by coupled channels, each group alike, and shrunk; times are of single calls of the dense and the
shrunk one in turn, in evaluation mode on one thread, inputs of 32 x 32 pixels. What is printed is the dense time over
the shrunk one (the smallest of each), and the time of an event with groups over that of one without.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lightning_prune import export
from lightning_prune.pruner.budgets import Budget
from lightning_prune.pruner.coupled import CoupledPruner, restricted
from lightning_prune.pruner.dependency import find_groups
from lightning_prune.pruner.groups import dead_channels
from lightning_prune.pruner.method import make_recipe
from lightning_prune.pruner.proof import zero_out
from lightning_prune.pruner.pruner import Pruner
from lightning_prune.schedules.plan import Demand
from lightning_prune.targets.select import all_targets, select
from tests.channel_models import ResNet, images, mobilenet, trained_looking, vgg

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "ResNet-18": lambda width: ResNet(width=width),
    "VGG": lambda width: vgg(width=width, size=32),
    "MobileNet-like": lambda width: mobilenet(width=width // 2),
}
SHARES = (0.5, 0.75, 0.9)


def seconds(call: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def faster(dense: nn.Module, small: nn.Module, x: Tensor, repeats: int) -> float:
    """Time of the dense network over that of the small one, each the best of some that take turns."""
    with torch.no_grad():
        pairs = [(seconds(lambda: dense(x)), seconds(lambda: small(x))) for _ in range(repeats + 1)][1:]
    return min(a for a, _ in pairs) / min(b for _, b in pairs)


def pruned(model: nn.Module, share: float, x: Tensor) -> float:
    """Prunes coupled channels in place; the time of the event over that of one of single tensors."""
    groups, targets = restricted(find_groups(model, x), select(model), all_targets(model))
    recipe, demand = make_recipe("ln_structured", 2, "out", None), Demand(0, sparsity=share)
    coupled, single = CoupledPruner(recipe, Budget("local"), share, groups), Pruner(recipe, Budget("local"), share)
    matrices = select(model)
    alone = min(seconds(lambda: single.masks(matrices, demand)) for _ in range(3))
    together = min(seconds(lambda: coupled.masks(targets, demand)) for _ in range(3))
    masks = dict(zip([t.name for t in targets], coupled.masks(targets, demand), strict=True))
    zero_out(model, groups.groups, [dead_channels(group, masks) for group in groups.groups])
    return together / alone


def main() -> None:
    """Prints one line for each network and share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="calls of each network")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = "parameters  multiply-adds  faster at 1  at 16  outputs differ  event over single"
    print(f"{'network':<15}  {'zeros':>5}  {heads}")
    for name, make in NETWORKS.items():
        for share in SHARES:
            model = trained_looking(functools.partial(make, options.width))
            event = pruned(model, share, images(1, size=32))
            small, report = export.shrink(model, images(1, size=32))
            before, after = report.before, report.after
            speed = [faster(model, small, images(batch, size=32), options.repeats) for batch in (1, 16)]
            print(
                f"{name:<15}  {share:>5.0%}  {before.parameters / after.parameters:>9.1f}x  "
                f"{before.multiply_adds / after.multiply_adds:>12.1f}x  {speed[0]:>10.1f}x  {speed[1]:>4.1f}x  "
                f"{report.difference:>14.0e}  {event:>17.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
