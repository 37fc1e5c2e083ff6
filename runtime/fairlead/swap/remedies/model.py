"""The base class of remedies, and the draft of a plan that they change.

A plan is a fold: each step takes a :class:`Draft` and returns the next. A remedy is a step that applies when
the facts rule out a plain swap.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from fairlead.elf.facts import AbiFamily, Elf, MpiLibrary
from fairlead.nccl.decide import Decision
from fairlead.nccl.model import NcclPlan
from fairlead.swap.glibc import Glibc
from fairlead.swap.model import Bind, Inputs, Line, Plan, StagedFile, Staging


class Phase(enum.IntEnum):
    """When a remedy changes the draft."""

    LOADING = 1  # before the search path is set: what the loader finds
    RUNNING = 2  # after the site's rules: what ranks need to work together
    SHOWING = 3  # at the end: how the binds appear in the container


@dataclass(frozen=True)
class Parts:
    """Additions to the staged folder.

    Attributes:
        glibc: version of the newest C library among ``files``; empty if there is none.
    """

    files: tuple[StagedFile, ...] = ()
    lines: tuple[Line, ...] = ()
    glibc: str = ""


@dataclass(frozen=True)
class Changes:
    """What a step adds to a draft.

    Attributes:
        bound: files of the image that the host's MPI is bound over.
        wrapper: words before the command in the container.
        preload: ``(library, why)``, with the library's path in the container.
        apart: variables for ranks that each have a container, where the plan has one a node.
    """

    binds: tuple[Bind, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    bound: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    preload: tuple[tuple[str, str], ...] = ()
    apart: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    """An unfinished plan; its fields are those of :class:`~fairlead.swap.model.Plan`.

    Attributes:
        own: the image's MPI; None if it has none.
        own_family: the family that the image's programs are compiled for.
        family: ABI family of the MPI that ranks map.
        glibc: how the host's libraries get the C library they need; None without a swap.
        folder: the staged folder on the host.
        nccl, nccl_staging, nccl_decision, carried_staging: see :class:`~fairlead.swap.model.Plan`.
    """

    inputs: Inputs
    own: MpiLibrary | None
    own_family: AbiFamily
    family: AbiFamily
    consumers: tuple[Elf, ...]
    glibc: Glibc | None = None
    staging: Staging | None = None
    folder: Path = Path()
    planned_file: str = ""
    planned_title: str = ""
    binds: tuple[Bind, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    bound: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    preload: tuple[tuple[str, str], ...] = ()
    apart: Mapping[str, str] = field(default_factory=dict)
    nccl: NcclPlan | None = None
    nccl_staging: Staging | None = None
    nccl_decision: Decision | None = None
    carried_staging: Staging | None = None

    @property
    def mapped(self) -> MpiLibrary | None:
        """The MPI that ranks map; None if unknown."""
        host = self.inputs.swapped_in
        return host.library if host else self.own

    def plus(self, changes: Changes) -> Draft:
        """The draft with a step's changes; a variable of the step replaces an earlier one."""
        return replace(
            self,
            binds=(*self.binds, *changes.binds),
            env={**self.env, **changes.env},
            lines=(*self.lines, *changes.lines),
            bound=(*self.bound, *changes.bound),
            wrapper=(*self.wrapper, *changes.wrapper),
            preload=(*self.preload, *changes.preload),
            apart={**self.apart, **changes.apart},
        )


class RankReport(Protocol):
    """The parts of a rank's report that remedies read."""

    @property
    def mpi_path(self) -> str: ...

    @property
    def library_path(self) -> str: ...


class Remedy:
    """Base class of remedies.

    Subclass it in a module of this package, or of another distribution with an entry point of the group
    ``fairlead.swap.remedies``, and assign an instance to the module's ``REMEDY``. All methods are pure functions.

    Attributes:
        name: the module's name with ``-`` for ``_``.
        title: a one-line description for the docs.
    """

    name: str
    title: str
    phase: Phase = Phase.LOADING

    def applies(self, draft: Draft) -> bool:
        """Whether the plan needs the remedy; called once, before staging."""
        raise NotImplementedError

    def stage(self, draft: Draft) -> Parts:
        """Files for the staged folder."""
        return Parts()

    def change(self, draft: Draft) -> Changes:
        """Additions to the plan, each with a line that explains it."""
        return Changes()

    def finish(self, draft: Draft) -> Draft:
        """The draft with the remedy applied; override it to remove what earlier steps added."""
        return draft.plus(self.change(draft))

    def explain_failure(self, plan: Plan, rank: RankReport) -> tuple[str, str] | None:
        """Why a rank may have mapped an unplanned MPI, and what to do about it; None if unknown."""
        return None
