"""The image formats there are: a module each, and entry points of the group ``fairlead.formats``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.registry import Registry
from fairlead.base.suggest import suggest
from fairlead_build.formats.model import Format


class _Formats(Registry[Format]):
    group = "fairlead.formats"  # a short name for others to declare; the package is the builder's


FORMATS = _Formats("fairlead_build.formats", "FORMAT", ("convert", "images", "store", "wrapping"))


def chosen(wanted: Sequence[str], output: Path | None) -> list[Format]:
    """The formats called ``wanted``, each once.

    Raises:
        FairleadError: exit code 2; there is no such format, an installed one cannot be loaded, or
            they cannot all go to ``output``.
    """
    selected = [_get(name) for name in dict.fromkeys(wanted)]
    if output is not None and len(selected) > 1 and not output.is_dir():
        raise fail(
            "format-several-in-one-file",
            selected_count=len(selected),
            output=shlex.quote(str(output)),
        )
    return selected


def _get(name: str) -> Format:
    what, why = f"no image format `{name}`", suggest(name, FORMATS.names())
    if name in FORMATS:
        form = FORMATS.get(name)
        if isinstance(form, Format):
            return form
        what = f"the installed image format `{name}` cannot be used"
        why = f"it is a {type(form).__name__}, not a Format"
    raise fail("format", what=what, why=why, names=",".join(FORMATS.names()))
