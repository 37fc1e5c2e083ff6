"""What an administrator has set for the engines: apptainer.conf, Podman's files, Charliecloud."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping

from fairlead.base import process
from fairlead.base.errors import Severity
from fairlead.base.paths import data_dir
from fairlead.doctor import podman
from fairlead.doctor.checks.setuid import configuration, starters
from fairlead.doctor.diagnosis import Check, Diagnosis, Fix, OwnFix, Topic, ill, note, well
from fairlead.doctor.world import World
from fairlead.engines.apptainer import CAP_SYS_RESOURCE, parse_conf

NAME = "engine-settings"
# Key, values that harm, how much, what comes of it, the value to set. Source: Apptainer's and
# SingularityCE's administrator guides, "Configuration Files".
_RULES = (
    (
        "user bind control",
        ("no",),
        Severity.ERROR,
        "nothing of the node can be bound into a container: neither the host's MPI nor your data",
        "yes",
    ),
    (
        "allow container squashfs",
        ("no",),
        Severity.ERROR,
        "an image that is a squashfs is refused",
        "yes",
    ),
    ("allow container sif", ("no",), Severity.ERROR, "an image that is a SIF is refused", "yes"),
    (
        "mount dev",
        ("no", "minimal"),
        Severity.WARNING,
        "a container has its own /dev: no fabric, no GPU, and a /dev/shm that ranks do not share",
        "yes",
    ),
    (
        "mount tmp",
        ("no",),
        Severity.WARNING,
        "a container has its own /tmp, in which Open MPI's ranks do not find each other",
        "yes",
    ),
    ("mount proc", ("no",), Severity.WARNING, "MPI finds neither its cores nor its peers", "yes"),
    ("mount sys", ("no",), Severity.WARNING, "MPI and UCX find no devices and no cores", "yes"),
    (
        "mount home",
        ("no",),
        Severity.INFO,
        "the home folder is not in a container unless it is bound: --bind $HOME",
        "yes",
    ),
)


def examine(world: World) -> Iterator[Diagnosis]:
    found = [*_apptainer(world), *_podman(world), *_charliecloud(world)]
    if found:
        yield from found
    else:
        program = world.engine()
        where = configuration(world, program) if program else ""
        yield well(
            NAME,
            "the engines' configuration has no problems" if program else "no engine to configure",
            where,
        )


def _apptainer(world: World) -> Iterator[Diagnosis]:
    program = world.engine()
    if program is None:
        return
    file = configuration(world, program)
    text = world.read(file)
    if text is None:
        yield ill("engine-settings-unreadable", file=file)
        return
    values = parse_conf(text)
    for key, bad, severity, why, good in _RULES:
        value = values.get(key, ("",))[-1].lower()
        if value in bad:
            yield ill(
                "engine-settings-value",
                key=key,
                value=value,
                file=file,
                why=why,
                line=_line(world, program, file, key, good),
                severity=severity,
                fix=None if severity is Severity.INFO else _fix(world, program, file, key, good),
            )
    yield from _mount_points(world, program, file, values)
    yield from _loop_devices(world, program, file, values)
    yield from _others(world, program, file, values)


def _mount_points(
    world: World, program: str, file: str, values: Mapping[str, tuple[str, ...]]
) -> Iterator[Diagnosis]:
    overlay = values.get("enable overlay", ("yes",))[-1].lower()
    underlay = values.get("enable underlay", ("yes",))[-1].lower()
    if overlay == "no" and underlay == "no":
        yield ill(
            "engine-settings-no-overlay-no-underlay",
            file=file,
            line=_line(world, program, file, "enable underlay", "yes"),
            fix=_fix(world, program, file, "enable underlay", "yes"),
        )


def _loop_devices(
    world: World, program: str, file: str, values: Mapping[str, tuple[str, ...]]
) -> Iterator[Diagnosis]:
    """Only the kernel's own squashfs takes loop devices: for root, and for a setuid engine."""
    if world.uid != 0 and not starters(world, program):
        return
    shared = values.get("shared loop devices", ("no",))[-1].lower() == "yes"
    text = values.get("max loop devices", ("256",))[-1]
    most = int(text) if text.isdecimal() else 256
    ranks = world.cores()
    if not shared and most < ranks:
        yield ill(
            "engine-settings-loop-devices",
            most=most,
            ranks=ranks,
            file=file,
            line=_line(world, program, file, "shared loop devices", "yes"),
            fix=_fix(world, program, file, "shared loop devices", "yes"),
        )


def _others(
    world: World, program: str, file: str, values: Mapping[str, tuple[str, ...]]
) -> Iterator[Diagnosis]:
    if values.get("allow setuid", ("yes",))[-1].lower() == "no" and starters(world, program):
        yield note(
            "engine-settings-setuid-off",
            file=file,
            line=_line(world, program, file, "allow setuid", "yes"),
        )
    for entry in values.get("bind path", ()):
        source = entry.split(":")[0]
        if source and not world.access(source, os.F_OK):
            yield ill(
                "engine-settings-bind-path-missing",
                entry=entry,
                file=file,
                line=_line(world, program, file, "bind path", shlex.quote(entry), "--unset"),
                fix=_fix(world, program, file, "bind path", entry, "--unset"),
            )
    for key in ("limit container owners", "limit container groups", "limit container paths"):
        value = ", ".join(v for v in values.get(key, ()) if v and v.upper() != "NULL")
        if value:
            yield note("engine-settings-images-limited", key=key, value=value, file=file)


def _line(world: World, program: str, file: str, key: str, value: str, how: str = "--set") -> str:
    become = "" if _own(world, file) else "sudo "
    return f'{become}{shlex.quote(program)} config global {how} "{key}" {value}'


def _own(world: World, file: str) -> bool:
    """Whether it is of fairlead's private Apptainer."""
    return world.real(file).startswith(world.real(str(data_dir(world.environ))) + "/")


def _fix(
    world: World, program: str, file: str, key: str, value: str, how: str = "--set"
) -> Fix | None:
    """Only in the user's own installation; an administrator's settings are theirs to change."""
    if not _own(world, file):
        return None
    words = (program, "config", "global", how, key, value)
    return OwnFix(
        f"{how.lstrip('-')}s `{key} = {value}` in {file}",
        lambda progress: process.run_checked(
            words, f"cannot set `{key}`", f"edit {file}", environ=world.environ
        ),
    )


def _podman(world: World) -> Iterator[Diagnosis]:
    if world.which("podman") is None:
        return
    if world.uid == 0:
        yield from _ulimits(world)
        return
    driver, where = podman.storage_driver(world)
    if driver == "vfs":
        yield note(
            "engine-settings-podman-vfs",
            where=where,
            own_storage_file=podman.own_storage_file(world),
        )


def _ulimits(world: World) -> Iterator[Diagnosis]:
    """Podman raises limits for root's containers, which takes a capability that this root may lack."""
    match = re.search(
        r"^CapEff:\s*([0-9a-f]+)", world.read("/proc/self/status") or "", re.MULTILINE
    )
    if not match or int(match[1], 16) >> CAP_SYS_RESOURCE & 1:
        return
    if podman.setting(world, "containers", "default_ulimits")[0] is None:
        yield note("engine-settings-podman-limits")


def _charliecloud(world: World) -> Iterator[Diagnosis]:
    if world.which("ch-run") and not world.environ.get("USER"):
        yield note("engine-settings-charliecloud-user")


CHECK = Check(NAME, "settings of Apptainer and Podman", examine, Topic.ENGINES, order=50)
