"""The machine as doctor's checks see it: :class:`World` is the interface, :class:`LocalWorld` this machine."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fairlead.base import process
from fairlead.base.paths import bundled
from fairlead.base.process import Ran
from fairlead.base.system import mount_of
from fairlead.detect.machine import MpiMachine, MpiView, Profile
from fairlead.doctor import engine_probe, experiments
from fairlead.doctor.experiments import ClockState
from fairlead.engines import registry as engines
from fairlead.engines.apptainer import find_apptainer
from fairlead.engines.model import Engine

# Of a program that a check asks; the engine's own trials have more.
LONGEST_RUN_S = 20.0


@dataclass(frozen=True)
class FileSystem:
    """The file system that holds, or would hold, a folder.

    Attributes:
        kind: as the kernel names it, e.g. ``ext4``, ``lustre``; empty when it is unknown.
        mount: where it is mounted.
        options: of that mount, e.g. ``noexec``.
        free_bytes, free_files: what this user may still fill; ``total_files`` is 0 where the file
            system does not count them.
    """

    kind: str
    mount: str
    options: tuple[str, ...]
    free_bytes: int
    total_bytes: int
    free_files: int
    total_files: int


class World(MpiView, Protocol):
    """What doctor's checks may ask besides: what is tried, which takes longer."""

    def run(self, argv: Sequence[str]) -> Ran:
        """A program's end; code 127 when there is none of that name."""

    def engine(self) -> str | None:
        """The container engine's program."""

    def probe_engine(self) -> Ran:
        """Apptainer running ``true`` in a tiny image."""

    def other_engines(self) -> Mapping[str, Ran]:
        """The other engines that are here doing the same, by kind."""

    def file_system(self, folder: str) -> FileSystem:
        """Of ``folder``, or of the nearest folder above it that exists."""

    def limit(self, name: str) -> tuple[int, int]:
        """A limit of this process, soft and hard, by its name in setrlimit(2) without RLIMIT_; -1 is
        unlimited."""

    def clock_state(self) -> ClockState:
        """How good this machine's clock is."""

    def clock_offset_s(self, folder: str) -> float | None:
        """Seconds by which the clock of a folder's file system is ahead; None when nothing can be
        written there."""

    def try_cma(self) -> Ran:
        """One process reading another's memory: JSON, see ``cma_probe.py``."""

    def try_squashfuse(self, compression: str) -> Ran:
        """A tiny squashfs mounted by squashfuse_ll and read."""

    def try_image(self, compression: str) -> Ran:
        """As ``probe_engine``, of an image that is compressed so."""

    def look_inside(self) -> tuple[Ran, Ran]:
        """What a process sees of the node, here and in a container: lines ``name=value``."""

    def engine_here(self) -> Engine | None:
        """The engine as it behaves here."""

    def profile(self) -> Profile:
        """The site's profile."""

    def image_glibcs(self) -> Mapping[str, str]:
        """The C library's version of each image that the catalogue has a lock for."""


class LocalWorld(MpiMachine):
    """This machine."""

    def run(self, argv: Sequence[str]) -> Ran:
        return process.run(argv, environ=self.environ, timeout_s=LONGEST_RUN_S)

    def engine(self) -> str | None:
        found = find_apptainer(self.environ)
        return str(found) if found else None

    def probe_engine(self) -> Ran:
        return engine_probe.probe_engine(self.environ)

    def other_engines(self) -> Mapping[str, Ran]:
        return engine_probe.probe_others(self.environ)

    def file_system(self, folder: str) -> FileSystem:
        there = Path(folder)
        while not there.exists():
            there = there.parent
        stat = os.statvfs(there)
        mount = mount_of(there)
        return FileSystem(
            kind=mount.kind,
            mount=mount.point,
            options=mount.options,
            free_bytes=stat.f_bavail * stat.f_frsize,
            total_bytes=stat.f_blocks * stat.f_frsize,
            free_files=stat.f_favail,
            total_files=stat.f_files,
        )

    def limit(self, name: str) -> tuple[int, int]:
        return resource.prlimit(0, getattr(resource, f"RLIMIT_{name}"))

    def clock_state(self) -> ClockState:
        return experiments.clock_state()

    def clock_offset_s(self, folder: str) -> float | None:
        return experiments.clock_offset_s(Path(folder))

    def try_cma(self) -> Ran:
        return experiments.try_cma(self.environ)

    def try_squashfuse(self, compression: str) -> Ran:
        return experiments.try_squashfuse(compression, self.environ)

    def try_image(self, compression: str) -> Ran:
        return engine_probe.probe_engine(self.environ, compression)

    def look_inside(self) -> tuple[Ran, Ran]:
        return engine_probe.look_inside(self.environ)

    def engine_here(self) -> Engine | None:
        return engines.ENGINES.get("apptainer").detect(self.environ)

    def image_glibcs(self) -> Mapping[str, str]:
        found = {}
        for lock in sorted(bundled("recipes").glob("*/lock*.toml")):
            variant = lock.name.removeprefix("lock.").removesuffix("toml").rstrip(".")
            version = _LIBC.search(lock.read_text())
            if version:
                found[lock.parent.name + (f":{variant}" if variant else "")] = version[1]
        return found


# How a lock names the package, with its version's upstream part.
_LIBC = re.compile(r'name = "libc6", version = "(\d+\.\d+)')
