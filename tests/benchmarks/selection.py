"""Which entries to prune: time and memory of the choice, against torch.nn.utils.prune and one pass over the weights.

Both sides get the same weights, in ten layers, and prune a fifth of what is left of them. Ours is timed from the
weights to the masks, as an event of a fit makes them; "documented layout" and torch's are timed as the public functions
do it, on modules made beforehand. "pass" is
``weight.abs() > threshold`` over all layers, the least that magnitude pruning must do. Memory is the peak over what
there was before, the result included, as a multiple of the weights' bytes.

    python -m tests.benchmarks.selection [size ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from lightning_prune.prune import L1Unstructured, custom_from_mask, global_unstructured
from lightning_prune.prune.kernels.norms import channel_norms
from lightning_prune.prune.kernels.random import random_keep_masks
from lightning_prune.prune.kernels.smallest import keep_masks
from tests.benchmarks.measure import Prepare, Run, interleaved, peak_memory, print_table

LAYERS = 10
COLUMNS = 1000
AMOUNT = 0.2
SLOW = 20_000_000  # weights from which torch takes so many seconds that it runs once, unwarmed
HEADER = ["task", "ours", "torch", "pass", "torch/ours", "ours/pass", "memory ours", "torch"]

Masks = list[Tensor]


class Case(NamedTuple):
    """One task, done by us on tensors and by torch on modules."""

    name: str
    weights: list[Tensor]
    alive: list[Tensor] | None
    prepare_ours: Prepare
    theirs: Callable[[list[nn.Module]], object]

    def prepare_theirs(self) -> Run:
        return partial(self.theirs, _modules(self.weights, self.alive))

    def prepare_pass(self) -> Run:
        return lambda: [weight.abs() > 1.0 for weight in self.weights]


def _modules(
    weights: list[Tensor], alive: list[Tensor] | None, from_mask: Callable[..., object] = prune.custom_from_mask
) -> list[nn.Module]:
    modules: list[nn.Module] = []
    for index, weight in enumerate(weights):
        module = nn.Module()
        module.weight = nn.Parameter(weight)
        if alive is not None:
            from_mask(module, "weight", alive[index])
        modules.append(module)
    return modules


def cases(size: int) -> Iterator[Case]:
    """The tasks for `size` weights: global, local and random, in first and later rounds, and structured."""
    weights = [torch.randn(size // LAYERS // COLUMNS, COLUMNS) for _ in range(LAYERS)]
    yield from _unstructured(weights, None, "first round")
    for share in (0.5, 0.1):
        yield from _unstructured(weights, [torch.rand_like(w) < share for w in weights], f"{share:.0%} left")
    for dim in (0, 1):
        yield _structured(weights, dim)


def _unstructured(weights: list[Tensor], alive: list[Tensor] | None, when: str) -> Iterator[Case]:
    living = [w.numel() for w in weights] if alive is None else [int(mask.sum()) for mask in alive]
    masks: Sequence[Tensor | None] = [None] * LAYERS if alive is None else alive
    total = round(AMOUNT * sum(living))

    def local() -> list[Masks]:
        triples = zip(weights, living, masks, strict=True)
        return [keep_masks([w], round(AMOUNT * number), alive=[mask]) for w, number, mask in triples]

    def global_l1() -> Masks:
        return keep_masks(weights, total, alive=masks)

    def global_random() -> Masks:
        return random_keep_masks(weights, total, alive=masks)

    def documented() -> Run:
        return partial(_global, global_unstructured, L1Unstructured, _modules(weights, alive, custom_from_mask))

    torch_global = partial(_global, prune.global_unstructured, prune.L1Unstructured)
    yield Case(f"global L1, {when}", weights, alive, lambda: global_l1, torch_global)
    yield Case(f"documented layout, {when}", weights, alive, documented, torch_global)
    yield Case(f"local L1, {when}", weights, alive, lambda: local, partial(_torch_each, prune.l1_unstructured))
    random_each = partial(_torch_each, prune.random_unstructured)
    yield Case(f"random, {when}", weights, alive, lambda: global_random, random_each)


def _global(function: Callable[..., object], method: type, modules: list[nn.Module]) -> None:
    function([(module, "weight") for module in modules], method, amount=AMOUNT)


def _torch_each(function: Callable[..., object], modules: list[nn.Module], **options: int) -> None:
    for module in modules:
        function(module, "weight", amount=AMOUNT, **options)


def _structured(weights: list[Tensor], dim: int) -> Case:
    def ours() -> list[Masks]:
        return [keep_masks([channel_norms(w, 2, dim)], round(AMOUNT * w.shape[dim])) for w in weights]

    return Case(f"L2 dim={dim}", weights, None, lambda: ours, partial(_torch_each, prune.ln_structured, n=2, dim=dim))


def measure(case: Case, rounds: int) -> list[str]:
    """A row of the table."""
    size = sum(weight.numel() for weight in case.weights)
    contenders = {"ours": case.prepare_ours, "pass": case.prepare_pass}
    slow = {"torch": case.prepare_theirs}
    if size < SLOW:
        times = interleaved(contenders | slow, rounds)
    else:
        times = interleaved(contenders, rounds) | interleaved(slow, 1, warm_up=False)
    ours, theirs, one_pass = times["ours"], times["torch"], times["pass"]
    memory = [peak_memory(prepare) / (4 * size) for prepare in (case.prepare_ours, case.prepare_theirs)]
    ratios = f"{theirs.median / ours.median:.0f} x", f"{ours.median / one_pass.median:.2f} x"
    return [case.name, str(ours), str(theirs), str(one_pass), *ratios, *(f"{share:.2f} x" for share in memory)]


def main(sizes: Sequence[int] = (1_000_000, 10_000_000, 60_000_000), rounds: int = 5) -> None:
    """Prints one table for each number of weights."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for size in sizes:
        rows = (measure(case, rounds) for case in cases(size))
        print_table(f"selection, {size / 1e6:g}M float32 weights in {LAYERS} layers, 1 thread", HEADER, rows)


if __name__ == "__main__":
    main([int(float(size)) for size in sys.argv[1:]] or (1_000_000, 10_000_000, 60_000_000))
