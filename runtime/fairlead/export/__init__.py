"""``fairlead site export``: what fairlead knows of a site, as configuration of other tools.

One module a target, each a pure function from :class:`~fairlead.export.model.Facts` to files.
:mod:`~fairlead.export.gather` finds the facts, on this machine or in the capture of another;
:mod:`~fairlead.export.staged` is the folder with the host's MPI that most targets name;
:mod:`~fairlead.export.write` is the one place that writes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from fairlead.export.model import ExportFile, Facts

# Target: its module, and what it is in a line.
TARGETS = {
    "shifter": "udiRoot.conf: a module with the host's MPI, and the script that stages it",
    "podman-hpc": "modules.d/*.yaml",
    "sarus": "OCI hooks of the MPI and the C library",
    "ce": "an environment definition file (EDF) of CSCS' Container Engine",
    "enroot": "environ.d, mounts.d and hooks.d, also for pyxis",
    "apptainer": "APPTAINER_BINDPATH and APPTAINERENV_… for `apptainer exec`",
    "lmod": "a modulefile with the image's programs as commands",
    "jupyter": "a kernelspec whose kernel runs in the image",
    "reframe": "a site and a test for ReFrame",
}


def export(target: str, facts: Facts) -> tuple[ExportFile, ...]:
    """The files of one target.

    Raises:
        FairleadError: the target's format cannot hold a value, or the facts do not allow it.
    """
    module = importlib.import_module(f"fairlead.export.{target.replace('-', '_')}")
    files: Callable[[Facts], tuple[ExportFile, ...]] = module.files
    return files(facts)
