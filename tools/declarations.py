"""docs/reference/declarations.md: every engine, scheduler, launcher, … that this installation knows.

``python -m tools.declarations`` writes the page, which has only the names where another page describes them; a test
compares. ``--print`` prints every declaration with its description.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base import comm_backend
from fairlead.base.registry import NamedRegistry, Registry
from fairlead.bridge.library import LIBRARIES as BRIDGE
from fairlead.doctor.registry import CHECKS
from fairlead.elf.carried.registry import LIBRARIES
from fairlead.engines.registry import ENGINES
from fairlead.export import TARGETS
from fairlead.launchers.registry import LAUNCHERS
from fairlead.ml import registry as models
from fairlead.nccl.checks.registry import CHECKS as NCCL_CHECKS
from fairlead.schedulers.registry import SCHEDULERS
from fairlead.swap.remedies.registry import REMEDIES
from fairlead_build.formats.registry import FORMATS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "declarations.md"


@dataclass(frozen=True)
class Kind:
    """A kind of declaration: how it is called, what a row says of one, and the page that says more."""

    title: str
    group: str
    rows: Callable[[], Iterator[tuple[str, str]]]
    described: str = ""


def _by_name(
    title: str,
    registry: Registry[Any],
    row: Callable[[str, Any], tuple[str, str]],
    described: str = "",
) -> Kind:
    def rows() -> Iterator[tuple[str, str]]:
        return (row(name, registry.get(name)) for name in registry.names())

    return Kind(title, registry.group, rows, described)


def _named(
    title: str, registry: NamedRegistry[Any], row: Callable[[Any], tuple[str, str]], described: str
) -> Kind:
    return Kind(title, registry.group, lambda: map(row, registry.every()), described)


def _titled(name: str, declaration: Any) -> tuple[str, str]:
    return name, declaration.title or declaration.kind


KINDS = (
    _by_name("Container engines", ENGINES, _titled, "[Engines](engines.md)"),
    _by_name("Schedulers", SCHEDULERS, _titled, "[Schedulers](../howto/schedulers.md)"),
    _by_name("Launchers", LAUNCHERS, _titled, "[In a job](../howto/schedulers.md#in-a-job)"),
    _by_name("Swap remedies", REMEDIES, _titled),
    _by_name(
        "Libraries below an image's own MPI",
        LIBRARIES,
        lambda name, library: (name, library.title),
        "[Below the image's own MPI](../howto/swap.md#below-the-images-own-mpi)",
    ),
    _by_name(
        "Checks of NCCL's network",
        NCCL_CHECKS,
        lambda name, check: (name, check.about),
        "[NCCL's network](../howto/nccl.md#checks)",
    ),
    _by_name(
        "Doctor checks",
        CHECKS,
        lambda name, check: (check.name, check.about),
        "[Doctor](doctor.md)",
    ),
    _by_name(
        "Site exports",
        TARGETS,
        lambda name, target: (name, target.about),
        "[Exports](../howto/exports.md)",
    ),
    _by_name(
        "Image formats",
        FORMATS,
        lambda name, form: (name, form.summary),
        "[Formats](../howto/images.md#formats)",
    ),
    _named(
        "Gradient backends",
        comm_backend.REGISTRY,
        lambda item: (item.name, item.summary),
        "[What carries the bytes](../explanation/collectives.md#what-carries-the-bytes)",
    ),
    _named(
        "Models",
        models.REGISTRY,
        lambda task: (task.name, task.title),
        "[Models](../howto/models.md#models)",
    ),
    _by_name(
        "Libraries of the bridge",
        BRIDGE,
        lambda name, library: (name, library.title),
        "[A library of your own](../howto/bridge.md#a-library-of-your-own)",
    ),
)


def page(descriptions: bool = False) -> str:
    """The page's text; with every description, or only those that no other page has."""
    return "\n".join(_lines(descriptions)) + "\n"


def _lines(descriptions: bool) -> Iterator[str]:
    yield "<!-- Made by `python -m tools.declarations`; do not edit. -->"
    yield "# Declarations"
    yield ""
    yield "Each name is one file of fairlead. Another distribution adds its own by an entry point of the group."
    for kind in KINDS:
        yield f"\n## {kind.title}\n"
        if kind.described and not descriptions:
            names = ", ".join(f"`{name}`" for name, _ in kind.rows())
            yield f"Group `{kind.group}`; {kind.described} describes them: {names}."
        else:
            yield f"Group `{kind.group}`.\n"
            yield "| name | what |"
            yield "| --- | --- |"
            yield from (f"| `{name}` | {about} |" for name, about in kind.rows())


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        sys.stdout.write(page(descriptions=True))
    else:
        PAGE.write_text(page())
