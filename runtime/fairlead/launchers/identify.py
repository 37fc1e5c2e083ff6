"""Which MPI an ``mpiexec`` belongs to, from its own ``--version``."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fairlead.base.process import run_boxed
from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Launcher

# What a program contains that is one.
_CONTENT = (
    (b"HYDRA build details", AbiFamily.MPICH, "MPICH Hydra", "hydra"),
    (b"Intel(R) MPI Library", AbiFamily.MPICH, "Intel MPI Hydra", "hydra"),
    (b"(Open MPI)", AbiFamily.OPENMPI, "Open MPI", "openmpi"),
    (b"orterun", AbiFamily.OPENMPI, "Open MPI", "openmpi"),
    (b"prterun", AbiFamily.OPENMPI, "Open MPI", "openmpi"),
)


def identify(program: Path, patience_s: float = 10.0) -> Launcher:
    """Which MPI's processes an ``mpiexec`` connects, from its own ``--version``.

    Args:
        patience_s: how long it may take; 0: it is not started, and only its content counts.
    """
    if patience_s:
        ran = run_boxed((program, "--version"), timeout_s=patience_s)
        if known := launcher_of(str(program), ran.stdout + ran.stderr):
            return known
    # It does not run here (it may be of a newer distribution), or must not, but it is one all the same.
    content = program.read_bytes() if os.access(program, os.R_OK) else b""
    for mark, family, title, kind in _CONTENT:
        if mark in content:
            return Launcher(str(program), family, title, kind)
    return Launcher(str(program), AbiFamily.UNKNOWN, program.name)


def launcher_of(path: str, text: str) -> Launcher | None:
    """Whose ``mpiexec`` says this for ``--version``; None for one that is not known."""
    for mark, title, number in (
        ("HYDRA build details", "MPICH Hydra", r"Version:\s*(\S+)"),
        ("Intel(R) MPI Library", "Intel MPI Hydra", r"Version (\S+)"),
    ):
        if mark in text:
            match = re.search(number, text)
            title = f"{title} {match[1]}" if match else title
            return Launcher(path, AbiFamily.MPICH, title, "hydra")
    if match := re.search(r"\(IBM (Spectrum MPI)\) (\d[\w.]*)", text):
        return Launcher(path, AbiFamily.OPENMPI, f"{match[1]} {match[2]}", "openmpi")
    if match := re.search(r"(?:Open MPI\)|OpenRTE\)|PRTE[^\d]*) ?v?(\d[\w.]*)", text):
        return Launcher(path, AbiFamily.OPENMPI, f"Open MPI {match[1]}", "openmpi")
    return None
