"""Counts over parameters that are split over ranks: those of the whole tensors, on every rank; and what they refuse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from lightning_prune import PruningCallback, metrics, plots, prune, report
from lightning_prune.fit import checks
from lightning_prune.prune import sparsity
from lightning_prune.targets.select import all_targets

RANKS = 2


def network() -> nn.Module:
    """Uneven in every split dimension, with dead rows and columns on one rank only."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Conv2d(5, 7, 1), nn.ConvTranspose2d(7, 3, 1), nn.Conv2d(3, 1, 1))
    with torch.no_grad():
        net[0].weight[:3] = 0
        net[0].bias[1:3] = 0  # the first of its dead rows gives a constant
        net[1].weight[:, 3:] = 0
        net[2].weight[:, 1] = 0
        net[3].weight.zero_()
    return net


def counted(net: nn.Module) -> dict[str, Any]:
    return {
        "rows": [(row.name, row.zeros, row.channels, row.dead_channels) for row in report.summary(net).rows],
        "sparsity": (metrics.sparsity(net), sparsity(net)),
        "nonzero": metrics.nonzero_parameters(net),
        "dead": checks.dead_layers(all_targets(net)),
        "cut": checks.cut_layers(net),
        "overlap": metrics.mask_overlap(net, net),
        "title": plots.mask_picture(net, "0.weight")[1].get_title(),
    }


def work(rank: int, folder: str) -> None:
    from torch.distributed.tensor import Shard, distribute_module, distribute_tensor, init_device_mesh

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))

    def split(name: str, module: nn.Module, mesh: Any) -> None:
        for slot, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(slot, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))

    net = distribute_module(network(), mesh, split)
    with pytest.raises(ValueError, match=r"'0.weight' is split over ranks"):
        metrics.effective_flops(net, torch.ones(1, 3, 2, 2))
    with pytest.raises(ValueError, match=r"'0.weight' is split over ranks, and torch makes no copy"):
        PruningCallback(amount=0.5, epochs=[0], verbose=False).preview(net)
    for function in (prune.l1_unstructured, prune.random_unstructured):
        with pytest.raises(ValueError, match=r"Conv2d.weight is split over ranks.*lightning_prune.Pruning"):
            function(net[0], "weight", amount=0.5)
    with pytest.raises(ValueError, match=r"Conv2d.weight is split over ranks"):
        prune.global_unstructured([(net[0], "weight"), (net[1], "weight")], prune.L1Unstructured, amount=0.5)
    assert type(net[0]) is nn.Conv2d
    torch.save(counted(net), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_counts_of_split_tensors_are_those_of_whole_ones_on_every_rank(tmp_path: Path) -> None:
    mp.spawn(work, (str(tmp_path),), RANKS)
    alone = counted(network())
    assert alone["rows"][0] == ("0.weight", 9, 5, 2)
    assert alone["dead"] == ["'3.weight' is dead: all of its 3 weights are zero"]
    assert [message.partition(" is")[0] for message in alone["cut"]] == ["'1'", "'3'"]
    for rank in range(RANKS):
        assert torch.load(tmp_path / f"{rank}.pt") == alone
