"""How much faster shrunk networks are, beside how much smaller: ``python -m tests.benchmarks.shrink``.

Each network is pruned by ``Pruning(model, optimizer, "ln_structured", groups="dependency", ...)`` and shrunk by
``export.shrink``; calls of the dense and the shrunk network are timed in turn, in evaluation mode on one thread, inputs
of 32 x 32 pixels. Printed are medians of dense over shrunk processor time, and of the time of ``start_epoch`` with its
event with groups over that of one without.
"""

from __future__ import annotations

import argparse
import copy
import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightning_prune import OneShot, export
from lightning_prune.fit.pruning import Pruning
from tests.benchmarks.measure import keep_freed_memory
from tests.benchmarks.paired import in_turn
from tests.channel_models import ResNet, images, mobilenet, trained_looking, vgg

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "ResNet-18": lambda width: ResNet(width=width),
    "VGG": lambda width: vgg(width=width, size=32),
    "MobileNet-like": lambda width: mobilenet(width=width // 2),
}
SHARES = (0.5, 0.75, 0.9)


def faster(dense: nn.Module, small: nn.Module, x: Tensor, rounds: int) -> float:
    """Time of the dense network over that of the small one."""
    with torch.no_grad():
        seconds = in_turn({"dense": lambda: lambda: dense(x), "small": lambda: lambda: small(x)}, rounds)
    return over(seconds["dense"], seconds["small"])


def over(these: list[float], those: list[float]) -> float:
    """The median ratio."""
    return statistics.median(a / b for a, b in zip(these, those, strict=True))


def pruned(model: nn.Module, share: float, x: Tensor, rounds: int) -> tuple[nn.Module, float]:
    """The model pruned by coupled channels, and the time of the event over that of one of single tensors."""
    found = []

    def event(groups: dict[str, Any]) -> Callable[[], None]:
        net = copy.deepcopy(model)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        pruning = Pruning(net, optimizer, "ln_structured", schedule=OneShot(share), verbose=False, **groups)
        found.append((net, pruning))
        return lambda: pruning.start_epoch(0)

    coupled = {"groups": "dependency", "example_inputs": x}
    seconds = in_turn({"coupled": lambda: event(coupled), "single": lambda: event({})}, rounds)
    for _, pruning in found:
        pruning.finish()
    return found[0][0], over(seconds["coupled"], seconds["single"])


def main() -> None:
    """Prints one line for each network and share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="rounds of each comparison")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    heads = "parameters  multiply-adds  faster at 1  at 16  outputs differ  event over single"
    print(f"{'network':<15}  {'zeros':>5}  {heads}")
    for name, make in NETWORKS.items():
        for share in SHARES:
            model = trained_looking(functools.partial(make, options.width))
            net, event = pruned(model, share, images(1, size=32), options.repeats)
            small, report = export.shrink(net, images(1, size=32))
            before, after = report.before, report.after
            speed = [faster(net.eval(), small.eval(), images(batch, size=32), options.repeats) for batch in (1, 16)]
            print(
                f"{name:<15}  {share:>5.0%}  {before.parameters / after.parameters:>9.1f}x  "
                f"{before.multiply_adds / after.multiply_adds:>12.1f}x  {speed[0]:>10.1f}x  {speed[1]:>4.1f}x  "
                f"{report.difference:>14.0e}  {event:>17.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
