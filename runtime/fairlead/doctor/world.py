"""The machine as the checks see it, so that they can be shown a recorded one.

:class:`World` is what a check may ask; :class:`Machine` is the one we are on. Tests have a third
that answers from a file.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fairlead import hostmpi
from fairlead.doctor import process
from fairlead.doctor.engine_probe import probe_engine
from fairlead.doctor.process import Ran
from fairlead.engine.find import find_apptainer
from fairlead.hostmpi import HostMpi


class World(Protocol):
    """What a check may know. Nothing in it changes the machine."""

    @property
    def uid(self) -> int: ...

    @property
    def user(self) -> str:
        """The login name of ``uid``; its number where it has none."""

    @property
    def environ(self) -> Mapping[str, str]: ...

    def read(self, path: str) -> str | None:
        """A file's text; None when it is absent or may not be read."""

    def access(self, path: str, mode: int) -> bool:
        """As ``os.access``: ``os.F_OK``, ``os.R_OK | os.W_OK``, ..."""

    def which(self, program: str) -> str | None:
        """The path of a program on PATH."""

    def free_bytes(self, folder: str) -> int:
        """Space this user may still fill, in the file system that would hold ``folder``."""

    def run(self, argv: Sequence[str]) -> Ran:
        """A program's end; code 127 when there is none of that name."""

    def engine(self) -> str | None:
        """The container engine's program."""

    def probe_engine(self) -> Ran:
        """The engine running ``true`` in a tiny image."""

    def host_mpis(self) -> tuple[HostMpi, ...]:
        """Every MPI, the preferred first."""


class Machine:
    """The machine we are on."""

    def __init__(self, environ: Mapping[str, str] = os.environ):
        self.uid = os.geteuid()
        self.environ = environ
        try:
            self.user = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            self.user = str(self.uid)

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return None

    def access(self, path: str, mode: int) -> bool:
        return os.access(path, mode)

    def which(self, program: str) -> str | None:
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def free_bytes(self, folder: str) -> int:
        there = Path(folder)
        while not there.exists():
            there = there.parent
        stat = os.statvfs(there)
        return stat.f_bavail * stat.f_frsize

    def run(self, argv: Sequence[str]) -> Ran:
        return process.run(argv, environ=self.environ, timeout_s=60)

    def engine(self) -> str | None:
        found = find_apptainer(self.environ)
        return str(found) if found else None

    def probe_engine(self) -> Ran:
        return probe_engine(self.environ)

    def host_mpis(self) -> tuple[HostMpi, ...]:
        return hostmpi.discover(self.environ)
