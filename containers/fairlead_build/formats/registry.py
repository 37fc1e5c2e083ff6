"""The image formats there are: those of this package, and those that entry points add."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from fairlead.base.errors import ExitCode, fail
from fairlead.base.suggest import suggest
from fairlead_build.formats.model import Format

GROUP = "fairlead.formats"


def formats() -> dict[str, Format]:
    """Every format by its name.

    Raises:
        FairleadError: exit code 2; an entry point cannot be loaded or gives no format.
    """
    package = importlib.import_module(__package__)
    modules = (importlib.import_module(f"{__package__}.{m.name}")
               for m in pkgutil.iter_modules(package.__path__))  # fmt: skip
    declared = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    for point in entry_points(group=GROUP):
        try:
            plugin = point.load()
        except Exception as exc:
            raise _bad_plugin(point.value, f"{type(exc).__name__}: {exc}") from exc
        if not isinstance(plugin, Format):
            raise _bad_plugin(point.value, f"it is a {type(plugin).__name__}, not a Format")
        declared.append(plugin)
    return {item.name: item for item in sorted(declared, key=lambda item: (item.rank, item.name))}


def names() -> tuple[str, ...]:
    """The names of all formats, in the order in which they are listed."""
    return tuple(formats())


def chosen(wanted: Sequence[str], output: Path | None) -> list[Format]:
    """The formats called ``wanted``, each once.

    Raises:
        FairleadError: exit code 2; there is no such format, or they cannot all go to ``output``.
    """
    known = formats()
    for name in wanted:
        if name not in known:
            raise fail(
                f"no image format `{name}`",
                where="--format",
                why=suggest(name, known),
                remedy=f"--format {','.join(known)}",
                check="format",
                code=ExitCode.USAGE,
            )
    selected = [known[name] for name in dict.fromkeys(wanted)]
    if output is not None and len(selected) > 1 and not output.is_dir():
        raise fail(
            f"{len(selected)} formats cannot become one file",
            where=f"-o {output}",
            why="it is not a folder",
            remedy=f"mkdir -p {output}, or give one --format",
            check="format",
            code=ExitCode.USAGE,
        )
    return selected


def _bad_plugin(target: str, why: str) -> Exception:
    return fail(
        "an installed image format cannot be used",
        where=f"entry point {target}, group {GROUP}",
        why=why,
        remedy="update or uninstall the package that declares it",
        check="format",
        code=ExitCode.USAGE,
    )
