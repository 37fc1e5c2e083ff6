"""A run's folder, ``runs/DATE-TIME-NUMBER`` in the cache: what its ranks and nodes record.

``exit.RANK`` is the rank's exit code, empty until it ends. The other files: ``node.HOST.PID`` of
:mod:`~fairlead.launch.node_check`, ``unwatched.HOST`` of :mod:`~fairlead.launch.nodes`, ``left.RANK`` and ``blames.RANK`` of
:mod:`~fairlead.launch.leaving`, ``shm*.json`` of :mod:`~fairlead.launch.leftovers`, and those of the witness:
``started``, ``alive``, ``proof``, ``seen``, ``stopped`` and ``said``, read by :mod:`fairlead.proof.preload`.

Ranks may have changed their user (gosu, setpriv, su), and reach the folder by its mount in their container: such a rank reports in
``others``, into which everybody there can write. What comes from there is read with care (:func:`adopt`).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.errors import os_error_as
from fairlead.base.paths import atomic_write
from fairlead.launch import leftovers

BEGUN = "begun"  # a file as old as the launch
OTHERS = "others"  # the folder for ranks that are another user
# What the witness writes, as KIND.ITS_NAME; those of which the first counts.
_REPORTS = re.compile(
    r"(?:aborted|again|alive|bare|blames|code|cut|left|maps|proof|said|seen|started|stopped)\.[\w.-]{1,200}(?<!\.partial)"
)
_ONCE = ("alive.", "blames.")
_MOST_BYTES = 1 << 27  # of one: the proof of 65536 ranks
_KEPT_S = 3600.0  # how long the records of a run that has ended stay, at least
_NOTED_S = 30 * 86400.0  # those of a killed run whose shared memory nobody has removed


@dataclass(frozen=True)
class RankExit:
    """How a rank ended: its exit code (128 + n for signal n), in order of ``order``."""

    rank: str
    code: int
    order: int


def new_run_folder(cache: Path) -> Path:
    """A fresh folder for one run's records, below the cache; those of runs long ended are cleared.

    Nobody else may look into it: records have host names, and what MPIs print. Of root's, processes in the run's own
    containers that are another user may reach files by their names; the folder of all runs keeps others out.

    Raises:
        FairleadError: exit code 123; it cannot be made.
    """
    runs = cache / "runs"
    folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}"
    with os_error_as("run-folder-records", folder=folder):
        runs.mkdir(parents=True, exist_ok=True)
        if runs.stat().st_uid == os.geteuid():
            runs.chmod(0o700)
        folder.mkdir(mode=0o700)
        if runs.stat().st_uid == os.geteuid() == 0:  # nobody else can change the user
            (folder / OTHERS).mkdir()
            (folder / OTHERS).chmod(0o1733)
            folder.chmod(0o711)
    for old in sorted(runs.iterdir())[:-20]:
        with suppress(FileNotFoundError):  # another launch may be clearing too
            # A killed run's note is for the next launch on its node.
            kept_s = _NOTED_S if leftovers.noted(old) else _KEPT_S
            if time.time() - old.stat().st_mtime > kept_s:
                shutil.rmtree(old, ignore_errors=True)
    return folder


def adopt(folder: Path) -> None:
    """Copies what ranks that are another user have reported next to the reports of all others."""
    with suppress(OSError), os.scandir(folder / OTHERS) as entries:
        for entry in entries:
            if _REPORTS.fullmatch(entry.name):
                with suppress(OSError):  # it has gone, or is nothing that can be read
                    _adopt(entry, folder / entry.name)


def _adopt(entry: os.DirEntry[str], place: Path) -> None:
    status = entry.stat(follow_symlinks=False)
    with suppress(FileNotFoundError):
        if place.stat().st_mtime_ns >= status.st_mtime_ns or entry.name.startswith(_ONCE):
            return
    # Another user's program could have put a pipe or a link there.
    number = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(number, "rb") as stream:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            return
        data = stream.read(_MOST_BYTES)
    with atomic_write(place) as out:
        out.write(data)
    os.utime(place, ns=(status.st_mtime_ns, status.st_mtime_ns))  # who was first counts


def exits(folder: Path) -> tuple[RankExit, ...]:
    """The ranks that have ended so far, the first to end first."""
    records = []
    for path in folder.glob("exit.*"):
        with suppress(OSError):  # a file server that is slow for a moment ends no job
            text = path.read_text("utf-8").strip()
            if re.fullmatch(r"\d+", text):
                order = path.stat().st_mtime_ns
                records.append(RankExit(path.name.partition(".")[2], int(text), order))
    return tuple(sorted(records, key=lambda r: (r.order, r.rank)))


def seconds_of(folder: Path, ended: RankExit) -> float | None:
    """How long after the launch a rank ended, by the clock of the run's folder; None where that is unknown."""
    try:
        return max(ended.order - (folder / BEGUN).stat().st_mtime_ns, 0) / 1e9
    except OSError:
        return None


def signal_name(code: int) -> str:
    """``137`` as ``killed by SIGKILL``, ``3`` as ``exit code 3``."""
    if code > 128:
        with suppress(ValueError):
            return f"killed by {signal.Signals(code - 128).name}"
    return f"exit code {code}"


def within_mpi(folder: Path, rank: str) -> bool:
    """Whether a rank that has ended had called MPI_Init and not MPI_Finalize: the others wait then.

    Between nodes MPICH's launcher does not end them. Until MPI_Finalize the witness's note of the
    MPI_Init has text.
    """
    try:
        return bool((folder / f"started.{rank}").read_bytes())
    except OSError:
        return False
