"""Makes links of the roles in docstrings (``:class:`~package.Name```) and blocks of their doctests, for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr):`(~?)([\w.]+)`")
_EXAMPLE = re.compile(r"(?m)(?:^[ ]*>>> .*\n?)(?:^[ ]*\S.*\n?)*")  # up to the next empty line, as doctest reads it


class Roles(griffe.Extension):
    """Replaces roles by references, which are plain text where the target has no place on the site."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, _ROLE.sub(_reference, obj.docstring.value))


def _reference(role: re.Match[str]) -> str:
    shown = role[2].rsplit(".", 1)[-1] if role[1] else role[2]
    return f'<autoref optional identifier="{role[2]}"><code>{shown}</code></autoref>'


def _fenced(example: re.Match[str]) -> str:
    indent = " " * (len(example[0]) - len(example[0].lstrip(" ")))
    return f"{indent}```pycon\n{example[0].rstrip()}\n{indent}```\n"
