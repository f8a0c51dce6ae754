"""The public functions beside those of torch: each call below is made as written, with either package as ``prune``.

Both sides prune a fifth of what is left of the same ten modules, which are made beforehand, in the documented layout.
"pass" is ``weight.abs() > threshold`` over all modules. A second table is of 800 small tensors in one module.

    python -m tests.benchmarks functions
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

import lightning_prune.prune
from tests.benchmarks.events import COLUMNS, LAYERS, spread
from tests.benchmarks.measure import Watch, keep_freed_memory, print_table

EACH = (
    'prune.l1_unstructured(module, "weight", amount=0.2)',
    'prune.random_unstructured(module, "weight", amount=0.2)',
    'prune.ln_structured(module, "weight", amount=0.2, n=2, dim=0)',
    'prune.ln_structured(module, "weight", amount=0.2, n=2, dim=1)',
    'prune.random_structured(module, "weight", amount=0.2, dim=0)',
    'prune.random_structured(module, "weight", amount=0.2, dim=1)',
)
TOGETHER = ("prune.global_unstructured(pairs, pruning_method=prune.L1Unstructured, amount=0.2)",)
CALLS = (*TOGETHER, *EACH)
TENSORS = 800
MANY = (
    "prune.l1_unstructured(parameters, name, amount=0.2)",
    "prune.remove(parameters, name)",
)
STATES: dict[str, float | None] = {"first": None, "50 % left": 0.5, "10 % left": 0.1}
HEADER = ["call", "round", "ours / pass", "torch's / pass", "torch's / ours", "ms", "memory", "torch's"]


def run(call: str, package: ModuleType, modules: list[nn.Module]) -> None:
    """Makes the call for each module, or for all of them together."""
    code = compile(call, call, "eval")
    if call in TOGETHER:
        eval(code, {"prune": package, "pairs": [(module, "weight") for module in modules]})
        return
    for module in modules:
        eval(code, {"prune": package, "module": module})


def made(package: ModuleType, weights: list[Tensor], masks: list[Tensor] | None) -> list[nn.Module]:
    """Modules with these weights, pruned already by masks if there are any."""
    modules: list[nn.Module] = []
    for index, weight in enumerate(weights):
        module = nn.Module()
        module.weight = nn.Parameter(weight)
        if masks is not None:
            package.custom_from_mask(module, "weight", masks[index])
        modules.append(module)
    return modules


def measured(call: str, package: ModuleType, weights: list[Tensor], masks: list[Tensor] | None, **more: Any) -> Watch:
    """Time or memory of a call."""
    modules = made(package, weights, masks)
    with Watch(**more) as watch:
        run(call, package, modules)
    return watch


def row(call: str, state: str, weights: list[Tensor], rounds: int) -> list[str]:
    """A line of the table."""
    share = STATES[state]
    masks = None if share is None else [torch.rand_like(weight) < share for weight in weights]
    ours, theirs, passes = [], [], []
    for _ in range(rounds):
        passes.append(_pass(weights))
        ours.append(measured(call, lightning_prune.prune, weights, masks).seconds)
        theirs.append(measured(call, torch_prune, weights, masks).seconds)
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    peaks = [
        measured(call, package, weights, masks, memory=True).peak / size
        for package in (lightning_prune.prune, torch_prune)
    ]
    return [
        f"`{call}`",
        state,
        spread([mine / one for mine, one in zip(ours, passes, strict=True)]),
        spread([other / one for other, one in zip(theirs, passes, strict=True)]),
        spread([other / mine for other, mine in zip(theirs, ours, strict=True)]),
        f"{statistics.median(ours) * 1e3:.0f}",
        *(f"{peak:.2f}" for peak in peaks),
    ]


def _pass(weights: list[Tensor]) -> float:
    start = time.process_time()
    found = [weight.abs() > 1.0 for weight in weights]
    elapsed = time.process_time() - start
    del found
    return elapsed


def rows(size: int, rounds: int) -> Iterator[list[str]]:
    """All lines of the table."""
    weights = [torch.randn(size // LAYERS // COLUMNS, COLUMNS) for _ in range(LAYERS)]
    for call in CALLS:
        for state in STATES:
            yield row(call, state, weights, rounds)


def of_many(package: ModuleType) -> list[float]:
    """Seconds that the calls for many tensors take, one after the other."""
    parameters = nn.ParameterList(nn.Parameter(torch.randn(16, 16)) for _ in range(TENSORS))
    seconds = []
    for call in MANY:
        code, start = compile(call, call, "eval"), time.process_time()
        for name in map(str, range(TENSORS)):
            eval(code, {"prune": package, "parameters": parameters, "name": name})
        seconds.append(time.process_time() - start)
    return seconds


def rows_of_many(rounds: int) -> list[list[str]]:
    """The table for many tensors: both packages in turn."""
    pairs = [(of_many(lightning_prune.prune), of_many(torch_prune)) for _ in range(rounds)]
    return [
        [
            f"`{call}`",
            spread([ours[i] / theirs[i] for ours, theirs in pairs]),
            f"{statistics.median(ours[i] for ours, _ in pairs) / TENSORS * 1e3:.2f}",
        ]
        for i, call in enumerate(MANY)
    ]


def main(quick: bool = False, size: int = 60_000_000) -> None:
    """Prints the table."""
    keep_freed_memory()
    size, rounds = (1_000_000, 2) if quick else (size, 3)
    title = f"Public functions, {size / 1e6:g} million float32 weights in {LAYERS} modules, one thread"
    print_table(title, HEADER, rows(size, rounds))
    title = f"{TENSORS} tensors of 256 weights in one module, each called for"
    print_table(title, ["call", "ours / torch's", "ms a tensor"], rows_of_many(rounds))
