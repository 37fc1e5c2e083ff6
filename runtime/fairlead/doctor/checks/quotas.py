"""Can files be written and libraries mapped in the folders of fairlead and the engine?"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.errors import Severity
from fairlead.base.paths import cache_dir
from fairlead.doctor.diagnosis import Check, Diagnosis, OwnFix, Topic, ill, well
from fairlead.doctor.world import World

FILES_NEEDED = 60_000  # a TensorFlow image's tree while it is packed
FULL = 0.95  # of a quota


@dataclass(frozen=True)
class Place:
    """A folder that is written.

    Attributes:
        variable: by which it is moved.
        essential: without it nothing works; programs and libraries are run from it.
    """

    title: str
    folder: str
    variable: str
    essential: bool = False


def places(world: World) -> list[Place]:
    """Where fairlead and Apptainer write."""
    environ = world.environ
    home = environ.get("HOME") or "/"
    temporary = environ.get("TMPDIR") or "/tmp"
    folders = [
        Place("fairlead's cache", str(cache_dir(environ)), "XDG_CACHE_HOME", essential=True),
        Place("the folder for temporary files", temporary, "TMPDIR", essential=True),
    ]
    engine = {
        "CACHEDIR": ("Apptainer's cache", f"{home}/.apptainer/cache"),
        "TMPDIR": ("Apptainer's folder for temporary files", ""),
    }
    for name, (title, usual) in engine.items():
        for prefix in ("APPTAINER_", "SINGULARITY_"):
            if value := environ.get(prefix + name):
                folders.append(Place(title, value, prefix + name))
                break
        else:
            if usual and world.access(usual, os.F_OK):
                folders.append(Place(title, usual, f"APPTAINER_{name}"))
    return folders


def examine(world: World) -> Iterator[Diagnosis]:
    every = places(world)
    problems = [d for place in every for d in _place(world, place)]
    problems += _quota(world, every)
    yield from problems
    if not problems:
        fewest = min(
            (fs.free_files for p in every if (fs := world.file_system(p.folder)).total_files),
            default=None,
        )
        files = f"{fewest} files and more" if fewest is not None else "any number of files"
        yield well(f"{len(every)} folders take {files}, and none is noexec")


def _place(world: World, place: Place) -> Iterator[Diagnosis]:
    there = world.access(place.folder, os.F_OK)
    severe = Severity.ERROR if place.essential else Severity.WARNING
    quoted = shlex.quote(place.folder)
    chosen = world.environ.get(place.variable)
    if not there and chosen and place.variable.endswith(("TMPDIR", "CACHEDIR")):
        if not place.folder.startswith("/"):
            yield ill("quotas-missing-relative", place=place)
            return
        folder = Path(place.folder)
        fix = OwnFix(
            f"makes {place.folder}",
            lambda progress: folder.mkdir(parents=True, exist_ok=True, mode=0o700),
        )
        yield ill("quotas-missing-absolute", place=place, quoted_folder=quoted, fix=fix)
        return
    if there and not world.access(place.folder, os.R_OK | os.W_OK | os.X_OK):
        yield ill("quotas-unwritable", user=world.user, place=place, severity=severe)
        return
    fs = world.file_system(place.folder)
    if "noexec" in fs.options and place.essential:
        noexec = severe if place.variable == "XDG_CACHE_HOME" else Severity.WARNING
        yield ill("quotas-noexec", place=place, fs=fs, severity=noexec)
    if fs.total_files and not fs.free_files:
        yield ill("quotas-no-inodes", place=place, fs=fs, quoted_folder=quoted, severity=severe)
    elif fs.total_files and fs.free_files < FILES_NEEDED:
        yield ill(
            "quotas-few-inodes-for-builds",
            place=place,
            fs=fs,
            files_needed=FILES_NEEDED,
            quoted_folder=quoted,
        )


def _quota(world: World, every: list[Place]) -> list[Diagnosis]:
    """What quota(1) and lfs-quota(1) say of this user, for the file systems of these folders."""
    mounts: dict[str, Place] = {}
    for place in every:
        mounts.setdefault(world.file_system(place.folder).mount, place)
    diagnoses: list[Diagnosis] = []
    if world.which("quota"):
        for line in world.run(("quota", "-w", "-v")).stdout.splitlines():
            words = line.split()
            mount = _mount_point(world, words[0]) if words else ""
            if mount in mounts:
                diagnoses += _full(words[1:], mounts[mount], f"quota: {words[0]}")
    if world.which("lfs"):
        for mount, place in mounts.items():
            if world.file_system(place.folder).kind == "lustre":
                words_of_lfs = world.run(
                    ("lfs", "quota", "-q", "-u", world.user, mount)
                ).stdout.split()
                diagnoses += _full(words_of_lfs[1:], place, f"lfs quota {mount}")
    return diagnoses


def _mount_point(world: World, device: str) -> str:
    """quota(1) names a device or an export, not where it is mounted."""
    for line in (world.read("/proc/mounts") or "").splitlines():
        words = line.split()
        if words and words[0] == device:
            return words[1]
    return device


def _full(words: list[str], place: Place, where: str) -> Iterator[Diagnosis]:
    """``blocks quota limit grace files quota limit grace``; grace is left out, or ``-``, where there is
    none. Blocks are of 1024 bytes; a ``*`` behind a number says that it is over its quota."""
    numbers = [re.sub(r"[*\[\]]", "", w) for w in words]
    counts = [int(n) for n in numbers if n.isdecimal()]
    if len(counts) < 6:
        return
    halves = (("KiB", counts[0:3]), ("files", counts[3:6]))
    for unit, (used, soft, hard) in halves:
        limit = hard or soft
        if limit and used >= FULL * limit:
            counted, share = f"{used} of {limit} {unit}", used / limit
            yield ill("quotas-nearly-full", share=share, counted=counted, place=place, where=where)


CHECK = Check("quotas", "writable folders, quotas, noexec", examine, Topic.MACHINE, order=70)
