"""Packages of the extra ``export``, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def zstandard() -> Any:
    """The package zstandard."""
    return _extra("zstandard")


def safetensors() -> Any:
    """The package safetensors."""
    return _extra("safetensors")


def _extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"sparse files need {name.partition('.')[0]}: pip install 'lightning-prune[export]'", name=error.name
        ) from error
