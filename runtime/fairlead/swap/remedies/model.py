"""A remedy, and the draft of a plan that it changes.

A plan is a fold: each step takes a :class:`Draft` and returns the next. A remedy is a step that applies where
some facts would spoil a plain swap.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from fairlead.elf.facts import AbiFamily, Elf, MpiLibrary
from fairlead.swap.glibc import Glibc
from fairlead.swap.model import Bind, Inputs, Line, Plan, StagedFile, Staging


class Phase(enum.IntEnum):
    """When a remedy changes the draft."""

    LOADING = 1  # before the search path is set: what the loader finds
    RUNNING = 2  # after the site's rules: what ranks need from each other
    SHOWING = 3  # at the end: how all of it is shown to the container


@dataclass(frozen=True)
class Parts:
    """What goes into the staged folder besides the host's MPI.

    Attributes:
        glibc: the newest C library among ``files``; empty where there is none.
    """

    files: tuple[StagedFile, ...] = ()
    lines: tuple[Line, ...] = ()
    glibc: str = ""


@dataclass(frozen=True)
class Changes:
    """What a step adds to a draft.

    Attributes:
        bound: files of the image over which the host's MPI is shown.
        wrapper: words before the command in the container.
        preload: ``(library, why)``, as the container sees it.
    """

    binds: tuple[Bind, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    bound: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    preload: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Draft:
    """A plan in the making; its fields are those of :class:`~fairlead.swap.model.Plan`.

    Attributes:
        own: the image's MPI; None where it has none.
        own_family: the family that the image's programs are compiled for.
        family: of the MPI that ranks map.
        glibc: how the host's libraries get the C library that they need; None without a swap.
        folder: the staged folder on the host.
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

    @property
    def mapped(self) -> MpiLibrary | None:
        """The MPI that ranks map, as far as it is known."""
        host = self.inputs.swapped_in
        return host.library if host else self.own

    def plus(self, changes: Changes) -> Draft:
        """The draft with what a step adds; a variable of the step replaces an earlier one."""
        return replace(
            self,
            binds=(*self.binds, *changes.binds),
            env={**self.env, **changes.env},
            lines=(*self.lines, *changes.lines),
            bound=(*self.bound, *changes.bound),
            wrapper=(*self.wrapper, *changes.wrapper),
            preload=(*self.preload, *changes.preload),
        )


class RankReport(Protocol):
    """What a rank reported, as far as remedies ask."""

    @property
    def mpi_path(self) -> str: ...

    @property
    def library_path(self) -> str: ...


class Remedy:
    """One remedy.

    Subclass it in a module of this package, or of another distribution with an entry point of the group
    ``fairlead.swap.remedies``; the module's ``REMEDY`` is an instance. All methods are pure functions.

    Attributes:
        name: of its module, with ``-`` for ``_``.
        title: one line for the docs.
    """

    name: str
    title: str
    phase: Phase = Phase.LOADING

    def applies(self, draft: Draft) -> bool:
        """Whether the facts call for it; asked once, before anything is staged."""
        raise NotImplementedError

    def stage(self, draft: Draft) -> Parts:
        """What it needs in the staged folder."""
        return Parts()

    def change(self, draft: Draft) -> Changes:
        """What it adds to the plan, with a line for each in words."""
        return Changes()

    def finish(self, draft: Draft) -> Draft:
        """The draft with it; override to take something back that others have added."""
        return draft.plus(self.change(draft))

    def explain_failure(self, plan: Plan, rank: RankReport) -> tuple[str, str] | None:
        """Why a rank may have mapped another MPI than planned, and the remedy; None where it cannot tell."""
        return None
