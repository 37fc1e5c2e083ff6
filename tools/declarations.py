"""docs/reference/declarations.md: every engine, scheduler, launcher, … that this installation knows.

``python -m tools.declarations`` writes the page; ``--print`` prints it. A test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base import comm_backend
from fairlead.base.registry import NamedRegistry, Registry
from fairlead.doctor.registry import CHECKS
from fairlead.engines.registry import ENGINES
from fairlead.export import TARGETS
from fairlead.launchers.registry import LAUNCHERS
from fairlead.ml import registry as models
from fairlead.schedulers.registry import SCHEDULERS
from fairlead.swap.remedies.registry import REMEDIES
from fairlead_build.formats.registry import FORMATS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "declarations.md"


@dataclass(frozen=True)
class Kind:
    """A kind of declaration: how it is called, and what a row says of one."""

    title: str
    group: str
    rows: Callable[[], Iterator[tuple[str, str]]]


def _by_name(
    title: str, registry: Registry[Any], row: Callable[[str, Any], tuple[str, str]]
) -> Kind:
    def rows() -> Iterator[tuple[str, str]]:
        return (row(name, registry.get(name)) for name in registry.names())

    return Kind(title, registry.group, rows)


def _named(title: str, registry: NamedRegistry[Any], row: Callable[[Any], tuple[str, str]]) -> Kind:
    return Kind(title, registry.group, lambda: map(row, registry.every()))


def _titled(name: str, declaration: Any) -> tuple[str, str]:
    return name, declaration.title or declaration.kind


KINDS = (
    _by_name("Container engines", ENGINES, _titled),
    _by_name("Schedulers", SCHEDULERS, _titled),
    _by_name("Launchers", LAUNCHERS, _titled),
    _by_name("Swap remedies", REMEDIES, _titled),
    _by_name("Doctor checks", CHECKS, lambda name, check: (check.name, check.about)),
    _by_name("Site exports", TARGETS, lambda name, target: (name, target.about)),
    _by_name("Image formats", FORMATS, lambda name, form: (name, form.summary)),
    _named("Gradient backends", comm_backend.REGISTRY, lambda item: (item.name, item.summary)),
    _named("Models", models.REGISTRY, lambda task: (task.name, task.title)),
)


def page() -> str:
    """The page's text."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "<!-- Made by `python -m tools.declarations`; do not edit. -->"
    yield "# Declarations"
    yield ""
    yield "Each row is one file of fairlead. Another distribution adds its own by an entry point of the group."
    for kind in KINDS:
        yield f"\n## {kind.title}\n"
        yield f"Group `{kind.group}`.\n"
        yield "| name | what |"
        yield "| --- | --- |"
        yield from (f"| `{name}` | {about} |" for name, about in kind.rows())


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page())
