"""Finding coupled channels: torch-pruning's dependency graph says what belongs together, a trial cut proves it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import is_parametrized

from lightning_prune.prune.whole_model import remove_all
from lightning_prune.pruner.calling import call, example_inputs_of, require_callable, tensors_in
from lightning_prune.pruner.cutting import length_of
from lightning_prune.pruner.groups import ChannelGroup, Groups, LeftOut, Role, Slice
from lightning_prune.pruner.proof import prove

_NORMS = (_BatchNorm, _InstanceNorm)
_REFUSED: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.LayerNorm, "goes through LayerNorm, which mixes channels"),
    (nn.RMSNorm, "goes through RMSNorm, which mixes channels"),
    (nn.GroupNorm, "goes through GroupNorm, which mixes channels"),
    (nn.MultiheadAttention, "goes through MultiheadAttention"),
    (nn.RNNBase, "goes through a recurrent module"),
    (nn.RNNCellBase, "goes through a recurrent module"),
    (nn.Embedding, "comes from an embedding"),
)


class _Part(NamedTuple):
    """Where the channels of an item of a group lie: a :class:`Slice` without its positions."""

    name: str
    dim: int
    role: Role
    behind: str | None = None


class _Refused(Exception):
    """Why a group cannot be cut."""


def find_groups(model: nn.Module, example_inputs: Any = None) -> Groups:
    """The coupled channels of a model, each group proved by a trial cut on a copy.

    Dependencies are traced by torch-pruning (Fang et al. 2023, DepGraph). A group is kept only if a copy of the model
    with some of its channels masked gives the same outputs as one with the same channels cut.

    Args:
        model: Any module; it stays as it is.
        example_inputs: What it is called with: a tensor, a tuple or list of arguments, or a mapping of them by name;
            a LightningModule's ``example_input_array`` by default.

    Returns:
        The groups, and the channels that are left alone, with the reason.

    Raises:
        ModuleNotFoundError: If torch-pruning is not installed.
        ValueError: If there are no example inputs, the model cannot be called with them or be traced, or its forward
            depends on data.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
        >>> print(find_groups(net, torch.zeros(1, 1, 4, 4)))
        0: 4 channels, in 0.weight, 0.bias, 1.weight, 1.bias, 4.weight
        4: left alone, they are outputs of the network
    """
    library = _torch_pruning()
    inputs = example_inputs_of(model, example_inputs)
    probe = _probe(model)
    require_callable(probe, inputs)
    return prove(probe, inputs, _traced(library, copy.deepcopy(probe), inputs))


def _torch_pruning() -> Any:
    try:
        import torch_pruning  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        if error.name != "torch_pruning":
            raise
        raise ModuleNotFoundError(
            "coupled channels are found with torch-pruning, which is not installed: pip install "
            "'lightning-prune[shrink]'",
            name="torch_pruning",
        ) from None
    return torch_pruning


def _probe(model: nn.Module) -> nn.Module:
    """A copy in which no path is blind or faint.

    What is constant (such as the zero scale of a last norm) becomes random, and parameters that are so small that a
    softmax hardly hears them (queries and keys of fresh transformers) are made as large as their inputs ask for.
    """
    plain = remove_all(copy.deepcopy(model)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in [*plain.parameters(), *plain.buffers()]:
            if tensor.is_floating_point() and tensor.numel():
                _enliven(tensor, generator)
    for parameter in plain.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return plain


def _enliven(tensor: Tensor, generator: torch.Generator) -> None:
    """Random values where all are alike in a vector, and instead of zeros, such as those of channels pruned before."""
    drawn = torch.rand(tensor.shape, generator=generator).to(tensor) + 0.5
    if tensor.dim() == 1 and bool((tensor == tensor[:1]).all()):
        tensor.copy_(drawn)
    elif tensor.dim() > 0:
        size = tensor.abs().mean()
        tensor.copy_(torch.where(tensor == 0, drawn * (size if float(size) > 0 else 0.1), tensor))
    if isinstance(tensor, nn.Parameter) and tensor.dim() > 0:
        inputs = tensor[0].numel()
        tensor.mul_(max(1.0, 1 / float(inputs**0.5 * tensor.square().mean().sqrt())))


def _traced(library: Any, probe: nn.Module, inputs: Any) -> Groups:
    graph = library.DependencyGraph()
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            graph.build_dependency(probe, inputs, forward_fn=call, output_transform=tensors_in, verbose=False)
    except Exception as error:
        raise ValueError(
            f"{type(probe).__name__} cannot be traced for coupled channels: {type(error).__name__}: {error}"
        ) from error
    return _as_values(_Names(probe), graph)


def _as_values(names: _Names, graph: Any) -> Groups:
    groups, left, taken = [], list[LeftOut](), set[tuple[str, int, int]]()
    for raw in sorted(_raw_groups(names, graph, left), key=names.position):
        try:
            group = _as_value(names, graph, raw)
            places = {(s.name, s.dim, i) for s in group.slices for i in s.index if s.role != "size"}
            if places & taken:
                raise _Refused("shares channels with another group")
            taken |= places
            groups.append(group)
        except _Refused as refused:
            left.append(LeftOut(names.root(raw), str(refused)))
    return Groups(tuple(groups), tuple(left))


def _raw_groups(names: _Names, graph: Any, left: list[LeftOut]) -> Iterator[Any]:
    """The library's groups, one for each set of layers that make the same channels."""
    seen: set[nn.Module] = set()
    for module in [m for m in names.modules if isinstance(m, (_ConvNd, nn.Linear)) and m in graph.module2node]:
        if module in seen:
            continue
        make = graph.get_pruner_of_module(module).prune_out_channels
        try:
            raw = graph.get_pruning_group(module, make, list(range(graph.get_out_channels(module))))
        except Exception as error:
            reason = f"the dependency graph cannot follow its channels ({type(error).__name__}: {error})"
            left.append(LeftOut(names.modules[module], reason))
            continue
        seen |= {i.dep.target.module for i in raw.items if graph.is_out_channel_pruning_fn(i.dep.handler)}
        yield raw


def _as_value(names: _Names, graph: Any, raw: Any) -> ChannelGroup:
    channels = len(raw[0].idxs)
    slices = []
    for item in raw.items:
        module, out = item.dep.target.module, bool(graph.is_out_channel_pruning_fn(item.dep.handler))
        if isinstance(module, nn.Module) and module in names.modules and out and not item.dep.target.outputs:
            raise _Refused("they are outputs of the network")
        where = (tuple(item.idxs), tuple(item.root_idxs))
        if any(not isinstance(root, int) for root in where[1]) or set(where[1]) - set(range(channels)):
            raise _Refused("the graph cannot tell its channels apart")
        slices += [names.checked(Slice(p.name, p.dim, *where, p.role, p.behind)) for p in names.parts(item, out)]
    if not any(s.role == "read" for s in slices):
        raise _Refused("nothing is known that reads them")
    return ChannelGroup(names.root(raw), channels, tuple(sorted(slices, key=names.order)))


class _Names:
    """Names of the modules and parameters of the model that a graph is of."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules = {module: name for name, module in model.named_modules()}
        self.parameters = {id(p): name for name, p in model.named_parameters()}
        self._places = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        seen: dict[int, int] = {}
        for _, parameter in model.named_parameters(remove_duplicate=False):
            seen[id(parameter)] = seen.get(id(parameter), 0) + 1
        self._shared = {key for key, count in seen.items() if count > 1}

    def order(self, part: Slice) -> tuple[int, str]:
        """By the position of the layer in the model, parameters first."""
        known = part.name in self._places
        return (self._places.index(part.name) if known else len(self._places), part.name)

    def checked(self, part: Slice) -> Slice:
        """The slice, if all its positions are there."""
        if max(part.index) >= length_of(self.model, part.name, part.dim):
            raise _Refused(f"the dependency graph finds more channels in '{part.name}' than there are")
        return part

    def root(self, raw: Any) -> str:
        """The first layer of the model that makes the channels."""
        made = {
            item.dep.target.module for item in raw.items if isinstance(item.dep.target.module, (_ConvNd, nn.Linear))
        }
        makers = [m for m in made if m is raw[0].dep.target.module or _makes(raw, m)]
        return min((self.modules[m] for m in makers if m in self.modules), key=self._layer, default="?")

    def position(self, raw: Any) -> int:
        return self._layer(self.root(raw))

    def _layer(self, name: str) -> int:
        return list(self.modules.values()).index(name)

    def parts(self, item: Any, out: bool) -> Iterator[_Part]:
        """All that an item of a group touches in its module."""
        module = item.dep.target.module
        if isinstance(module, nn.Parameter):
            yield from self._bare(module, item.dep.target.pruning_dim)
        if not isinstance(module, nn.Module) or module not in self.modules:
            return
        self._refuse(module)
        name = self.modules[module]
        for attribute, dim, role in _parts(module, out):
            if getattr(module, attribute, None) is not None:
                yield _Part(f"{name}.{attribute}" if name else attribute, dim, role, self._behind(item, role))

    def _behind(self, item: Any, role: Role) -> str | None:
        after = item.dep.target.outputs
        norm = after[0].module if role == "write" and len(after) == 1 else None
        return self.modules[norm] if isinstance(norm, _NORMS) and norm in self.modules else None

    def _bare(self, parameter: nn.Parameter, dim: int) -> Iterator[_Part]:
        name = self.parameters[id(parameter)]
        owner = self.model.get_submodule(name.rpartition(".")[0])
        self._refuse(owner)
        yield _Part(name, dim % parameter.dim(), "write")

    def _refuse(self, module: nn.Module) -> None:
        name = self.modules[module]
        for kind, reason in _REFUSED:
            if isinstance(module, kind):
                raise _Refused(f"{reason} ('{name}')")
        if is_parametrized(module):
            raise _Refused(f"'{name}' is parametrized")
        if any(id(p) in self._shared for p in module.parameters(recurse=False)):
            raise _Refused(f"'{name}' shares its parameters with another layer")
        if isinstance(module, _ConvNd) and module.groups > 1 and not _depthwise(module):
            raise _Refused(f"'{name}' is a grouped convolution")


def _makes(raw: Any, module: nn.Module) -> bool:
    """Whether a layer makes channels of a group, so that they are not only read by it."""
    return any(i.dep.target.module is module and i.dep.handler.__name__.endswith("out_channels") for i in raw.items)


def _depthwise(module: _ConvNd) -> bool:
    return module.groups == module.out_channels == module.in_channels > 1


def _parts(module: nn.Module, out: bool) -> list[tuple[str, int, Role]]:
    """Attributes of a layer, the dimension of its channels in them, and their roles."""
    if isinstance(module, _ConvNd) and _depthwise(module):
        return [("weight", 0, "write"), ("bias", 0, "write"), *_numbers("in_channels", "out_channels", "groups")]
    if isinstance(module, _ConvNd):
        if out:
            return [("weight", int(module.transposed), "write"), ("bias", 0, "write"), *_numbers("out_channels")]
        return [("weight", 1 - int(module.transposed), "read"), *_numbers("in_channels")]
    if isinstance(module, nn.Linear):
        if out:
            return [("weight", 0, "write"), ("bias", 0, "write"), *_numbers("out_features")]
        return [("weight", 1, "read"), *_numbers("in_features")]
    if isinstance(module, _NORMS):
        state: list[tuple[str, int, Role]] = [("running_mean", 0, "state"), ("running_var", 0, "state")]
        return [("weight", 0, "norm"), ("bias", 0, "norm"), *state, *_numbers("num_features")]
    if isinstance(module, nn.PReLU) and module.num_parameters > 1:
        return [("weight", 0, "norm"), *_numbers("num_parameters")]
    return []


def _numbers(*names: str) -> list[tuple[str, int, Role]]:
    return [(name, 0, "size") for name in names]
