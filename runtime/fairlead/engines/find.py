"""Finds Apptainer: the user's variable first, then PATH, then fairlead's private prefix.

:mod:`fairlead.doctor.install.apptainer` creates that prefix if the distribution has no Apptainer.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.paths import data_dir

VARIABLE = "FAIRLEAD_APPTAINER"


def private_apptainer(environ: Mapping[str, str] = os.environ) -> Path:
    """The program of fairlead's own Apptainer; ``current`` points at a whole installation."""
    return data_dir(environ) / "apptainer" / "current" / "bin" / "apptainer"


def named_or_on_path(
    variable: str, program: str, environ: Mapping[str, str] = os.environ
) -> Path | None:
    """The program of an engine: what ``variable`` names, else ``program`` on PATH; None without.

    Raises:
        FairleadError: exit code 2; the variable names something that cannot be executed.
    """
    path = environ.get("PATH", os.defpath)
    chosen = environ.get(variable)
    found = shutil.which(chosen or program, path=path)
    if chosen and not found:
        raise fail("engine-variable", variable=variable, chosen=chosen, program=program)
    return Path(found).absolute() if found else None


def find_apptainer(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The Apptainer (or Singularity) program to use; None when there is none.

    Order: ``$FAIRLEAD_APPTAINER``, ``apptainer`` then ``singularity`` on PATH, the private prefix.

    Raises:
        FairleadError: exit code 2; the variable names something that cannot be executed.
    """
    if chosen := environ.get(VARIABLE):
        found = shutil.which(chosen, path=environ.get("PATH"))
        if not found:
            raise fail("engine-variable-apptainer", variable=VARIABLE, chosen=chosen)
        return Path(found)
    for name in ("apptainer", "singularity"):
        if found := shutil.which(name, path=environ.get("PATH", os.defpath)):
            return Path(found)
    private = private_apptainer(environ)
    return private if os.access(private, os.X_OK) else None
