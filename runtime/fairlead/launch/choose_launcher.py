"""Which launcher starts the ranks, and how it lets them find each other.

``--launcher`` names one by kind or by path; else the site's first that is here; else the ``mpiexec`` of
the MPI that will be mapped. Each kind connects the ranks of certain MPIs only; where it offers
several ways (PMI-2, PMIx), that of the MPI is taken.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.suggest import suggest
from fairlead.elf.facts import AbiFamily
from fairlead.launchers.identify import identify
from fairlead.launchers.model import Launcher
from fairlead.launchers.registry import LAUNCHERS, MPIEXEC, kinds
from fairlead.site.model import Site


def here(site: Site, environ: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """The site's first launcher that is on PATH, as kind and program; None for the MPI's own."""
    for kind in site.launcher.kinds:
        if kind == MPIEXEC:
            return None
        if program := _program(kind, environ):
            return kind, program
    return None


def _program(kind: str, environ: Mapping[str, str]) -> str | None:
    found = (shutil.which(p, path=environ.get("PATH", "")) for p in LAUNCHERS.get(kind).programs)
    return next(filter(None, found), None)


def of_kind(
    kind: str,
    speaks: AbiFamily,
    site: Site,
    environ: Mapping[str, str] = os.environ,
    program: str | None = None,
    pmi: str = "",
) -> Launcher:
    """A launcher of a kind, set to the wire-up protocol of an MPI's ranks.

    Args:
        speaks: family of the MPI that will be mapped.
        program: its path; None to look on PATH.
        pmi: the user's own word for it.
    Raises:
        FairleadError: exit code 2; there is none on PATH.
    """
    program = program or _program(kind, environ)
    if program is None:
        names = " or ".join(LAUNCHERS.get(kind).programs)
        raise fail("launcher-not-on-path", names=names, kind=kind)
    launcher = LAUNCHERS.get(kind).describe(program, speaks, pmi, site.launcher.pmi)
    return replace(launcher, options=tuple(site.launcher.options.get(kind, ())))


def named(
    name: str,
    speaks: AbiFamily,
    site: Site,
    environ: Mapping[str, str] = os.environ,
    pmi: str = "",
) -> Launcher:
    """The launcher that ``--launcher`` names by its kind or its path.

    Raises:
        FairleadError: exit code 2; there is no such program.
    """
    if name in LAUNCHERS:
        return of_kind(name, speaks, site, environ, pmi=pmi)
    path = Path(name)
    if not os.access(path, os.X_OK) or path.is_dir():
        if "/" in name:
            raise fail("launcher-not-executable", name=name)
        raise fail(
            "launcher-neither-program-nor-kind", name=name, suggestion=suggest(name, kinds())
        )
    if path.name in LAUNCHERS and LAUNCHERS.get(path.name).in_profiles:
        return of_kind(path.name, speaks, site, environ, str(path.absolute()))
    return identify(path.absolute())
