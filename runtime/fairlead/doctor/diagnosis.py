"""What a check says: a finding, and the fix for it where fairlead knows one.

A fix is a field that can be shown before it is applied; ``fix.py`` applies it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from fairlead.base.errors import Finding, Severity, finding_of, info
from fairlead.base.progress import Progress
from fairlead.doctor.world import World


@dataclass(frozen=True)
class RootFix:
    """A command for root.

    Attributes:
        does: what it will have done, e.g. ``installs mmdebstrap``.
        command: what is run, by root or through sudo.
        line: the same for a person to type, with sudo.
    """

    needs_root: ClassVar = True
    does: str
    command: tuple[str, ...]
    line: str


@dataclass(frozen=True)
class OwnFix:
    """Something that the user can do to their own folders.

    Attributes:
        action: does it, or raises FairleadError.
    """

    needs_root: ClassVar = False
    does: str
    action: Callable[[Progress], object]


Fix = RootFix | OwnFix


@dataclass(frozen=True)
class Diagnosis:
    """One finding of a check. ``fix`` is None when nothing is wrong, or only a person can fix it."""

    finding: Finding
    fix: Fix | None = None

    def to_json(self) -> dict[str, Any]:
        fix: dict[str, Any] | None = None
        if self.fix:
            fix = {"does": self.fix.does, "needs_root": self.fix.needs_root}
            if isinstance(self.fix, RootFix):
                fix["command"] = self.fix.line
        return {**self.finding.to_json(), "fix": fix}


class Topic(enum.StrEnum):
    """The headings of the list of checks, in order."""

    MACHINE = "This machine"
    ENGINES = "Container engines"
    NODE = "Ranks of one node"
    MPI = "MPI and its launcher"
    NETWORK = "Between nodes"
    OTHER = "Others"


@dataclass(frozen=True)
class Check:
    """A check of ``fairlead doctor``; its module's ``CHECK``.

    Attributes:
        name: what a person types, ``fairlead doctor engine``.
        about: one line for ``--help`` and the docs.
        examine: looks, and changes nothing.
        topic: the heading that it stands under.
        order: its place under that heading; a check comes after those whose fixes it needs.
        limit_s: what it may take; then it is given up, and the others go on.
    """

    name: str
    about: str
    examine: Callable[[World], Iterable[Diagnosis]]
    topic: Topic = Topic.OTHER
    order: int = 100
    limit_s: float = 45.0


def note(message: str, /, **fields: object) -> Diagnosis:
    """Nothing to do, but worth knowing: a message of the catalogue, of severity info."""
    return Diagnosis(info(message, **fields))


def well(what: str, why: str = "") -> Diagnosis:
    """Nothing to do. The finding gets the name of the check that is run."""
    return Diagnosis(Finding(Severity.OK, what, why=why))


def ill(
    message: str, /, *, fix: Fix | None = None, severity: Severity | None = None, **fields: object
) -> Diagnosis:
    """Something to do, by the remedy of a message of the catalogue or by ``fix``."""
    return Diagnosis(finding_of(message, severity=severity, **fields), fix)
