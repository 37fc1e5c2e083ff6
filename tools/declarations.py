"""docs/reference/declarations.md: every engine, scheduler, launcher, … that this installation knows.

``python -m tools.declarations`` writes the page; ``--print`` prints it. A test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base.registry import Registry
from fairlead.doctor.registry import CHECKS
from fairlead.engines.registry import ENGINES
from fairlead.export import TARGETS
from fairlead.launchers.registry import LAUNCHERS
from fairlead.schedulers.registry import SCHEDULERS
from fairlead.swap.remedies.registry import REMEDIES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "declarations.md"


@dataclass(frozen=True)
class Kind:
    """A kind of declaration: how it is called, and what a row says of one."""

    title: str
    registry: Registry[Any]
    row: Callable[[str, Any], tuple[str, str]]


def _titled(name: str, declaration: Any) -> tuple[str, str]:
    return name, declaration.title or declaration.kind


KINDS = (
    Kind("Container engines", ENGINES, _titled),
    Kind("Schedulers", SCHEDULERS, _titled),
    Kind("Launchers", LAUNCHERS, _titled),
    Kind("Swap remedies", REMEDIES, _titled),
    Kind("Doctor checks", CHECKS, lambda name, check: (check.name, check.about)),
    Kind("Site exports", TARGETS, lambda name, target: (name, target.about)),
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
        yield f"Group `{kind.registry.group}`.\n"
        yield "| name | what |"
        yield "| --- | --- |"
        for name in kind.registry.names():
            shown, about = kind.row(name, kind.registry.get(name))
            yield f"| `{shown}` | {about} |"


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page())
