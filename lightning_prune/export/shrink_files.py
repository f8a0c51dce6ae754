"""Shrunk networks as files: weights in safetensors, with the channels that each layer has kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from lightning_prune.export.shrink_channels import kept_channels_of, remember
from lightning_prune.export.shrink_report import distinct
from lightning_prune.prune.whole_model import pruned_tensors
from lightning_prune.pruner.cutting import Cut, apply_cuts

M = TypeVar("M", bound=nn.Module)
_KEY = "lightning_prune.shrunk"
_VERSION = 1


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Writes a shrunk network to a safetensors file; it appears whole or not at all.

    Args:
        model: What :func:`lightning_prune.export.shrink` or :func:`load` returned, trained further or not. Any other
            model without pruning is written as it is.
        path: The file; one that is there is replaced.

    Raises:
        ModuleNotFoundError: If safetensors is not installed (extra ``shrink``).
        ValueError: If the model is being pruned.
    """
    safetensors = _safetensors()
    pruned = list(pruned_tensors(model))
    if pruned:
        raise ValueError(f"'{pruned[0]}' is being pruned: shrink the model first, or remove its pruning")
    tensors = distinct(model)
    aliases = _aliases(model, tensors)
    kept = [
        {"size": c.size, "kept": list(c.kept), "places": [list(p) for p in c.places]} for c in kept_channels_of(model)
    ]
    about = json.dumps({"version": _VERSION, "cuts": kept, "aliases": aliases})
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    temporary = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        safetensors.save_file(whole, temporary, metadata={_KEY: about})
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def load(model: M, path: str | os.PathLike[str]) -> M:
    """The shrunk network of a file, from the plain class.

    Args:
        model: A model as it was before shrinking, with any weights: it is made smaller in place, keeps its dtype and
            device, and gets the weights of the file. Its parameters become new objects: make optimizers afterwards.
        path: A file that :func:`save` wrote.

    Returns:
        The model.

    Raises:
        ModuleNotFoundError: If safetensors is not installed (extra ``shrink``).
        FileNotFoundError: If there is no such file.
        ValueError: If it is not such a file, or was written from another model; the model is as before then.
    """
    tensors, about = read(path)
    cuts = [Cut(c["size"], tuple(c["kept"]), tuple((n, d) for n, d in c["places"])) for c in about["cuts"]]
    state = {**tensors, **{alias: tensors[name] for alias, name in about["aliases"].items()}}
    _require_fit(model, cuts, state)
    apply_cuts(model, cuts)
    model.load_state_dict(state)
    remember(model, cuts)
    return model


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file that :func:`save` wrote, and what it says about them.

    Raises:
        ModuleNotFoundError: If safetensors is not installed (extra ``shrink``).
        FileNotFoundError: If there is no such file.
        ValueError: If it is not such a file.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file '{os.fspath(path)}'")
    try:
        with _safe_open(path) as file:
            about = json.loads((file.metadata() or {}).get(_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except _damaged() as error:
        raise ValueError(f"'{os.fspath(path)}' is not a safetensors file, or it is damaged: {error}") from error
    if about is None:
        raise ValueError(
            f"'{os.fspath(path)}' is a safetensors file, but not one that lightning_prune.export.save wrote"
        )
    if about["version"] != _VERSION:
        raise ValueError(
            f"'{os.fspath(path)}' has version {about['version']} of the format; this release reads {_VERSION}"
        )
    return tensors, about


def is_shrunk(path: str | os.PathLike[str]) -> bool:
    """Whether a file looks like one that :func:`save` wrote: by its header, without reading tensors."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return _KEY.encode() in file.read(min(length, os.path.getsize(path)))


def kept_lines(about: Mapping[str, Any]) -> list[str]:
    """The kept channels of a file in words: one line for each set of places that lost the same ones."""
    return [
        f"{len(cut['kept'])} of {cut['size']} channels kept in {', '.join(f'{n}[{d}]' for n, d in cut['places'])}"
        for cut in about["cuts"]
    ]


def _require_fit(model: nn.Module, cuts: list[Cut], state: Mapping[str, Tensor]) -> None:
    """Refuses before anything is changed: other names, or other shapes than the cuts leave."""
    own = model.state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        raise ValueError(
            f"the file was written from another model: it lacks {missing[:3] or 'nothing'} of this model "
            f"and has {extra[:3] or 'nothing'} more"
        )
    shapes = {name: list(value.shape) for name, value in own.items()}
    for cut in cuts:
        for name, dim in cut.places:
            if name in shapes and dim < len(shapes[name]) and shapes[name][dim] == cut.size:
                shapes[name][dim] = len(cut.kept)
    for name, shape in shapes.items():
        if list(state[name].shape) != shape:
            raise ValueError(
                f"the file was written from another model: '{name}' of shape {tuple(own[name].shape)} here would be "
                f"{tuple(shape)} after the cuts, in the file it is {tuple(state[name].shape)}"
            )


def _aliases(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    places = {(t.data_ptr(), t.storage_offset(), t.shape): name for name, t in tensors.items()}
    return {
        name: places[value.data_ptr(), value.storage_offset(), value.shape]
        for name, value in model.state_dict().items()
        if name not in tensors
    }


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "shrunk networks are kept in safetensors files, and safetensors is not installed: pip install "
            "'lightning-prune[shrink]'",
            name="safetensors",
        ) from error
    return safetensors.torch


def _damaged() -> tuple[type[Exception], ...]:
    _safetensors()
    from safetensors import SafetensorError

    return (SafetensorError, OSError, ValueError)


def _safe_open(path: str | os.PathLike[str]) -> Any:
    _safetensors()
    from safetensors import safe_open

    opened: Callable[..., Any] = safe_open
    return opened(path, framework="pt", device="cpu")
