"""What an administrator has set for the engines: apptainer.conf, Podman's files, Charliecloud."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fairlead.base import process
from fairlead.base.errors import Severity
from fairlead.base.paths import data_dir
from fairlead.doctor import podman
from fairlead.doctor.checks.capabilities import raises_limits
from fairlead.doctor.checks.setuid import configuration, starters
from fairlead.doctor.diagnosis import Check, Diagnosis, Fix, OwnFix, Topic, ill, note, well
from fairlead.doctor.world import World
from fairlead.engines.apptainer import parse_conf

# Key, values that harm, how much, and the consequence; `yes` is right. Source: Apptainer's and
# SingularityCE's administrator guides, "Configuration Files".
_RULES = (
    (
        "user bind control",
        ("no",),
        Severity.ERROR,
        "nothing of the node can be bound into a container: neither the host's MPI nor your data",
    ),
    ("allow container squashfs", ("no",), Severity.ERROR, "an image that is a squashfs is refused"),
    ("allow container sif", ("no",), Severity.ERROR, "an image that is a SIF is refused"),
    (
        "mount dev",
        ("no", "minimal"),
        Severity.WARNING,
        "a container has its own /dev: no fabric, no GPU, and a /dev/shm that ranks do not share",
    ),
    (
        "mount tmp",
        ("no",),
        Severity.WARNING,
        "a container has its own /tmp, in which Open MPI's ranks do not find each other",
    ),
    ("mount proc", ("no",), Severity.WARNING, "MPI finds neither its cores nor its peers"),
    ("mount sys", ("no",), Severity.WARNING, "MPI and UCX find no devices and no cores"),
    (
        "mount home",
        ("no",),
        Severity.INFO,
        "the home folder is not in a container unless it is bound: --bind $HOME",
    ),
)


def examine(world: World) -> Iterator[Diagnosis]:
    program = world.engine()
    diagnoses = [*_apptainer(world, program), *_podman(world), *_charliecloud(world)]
    if diagnoses:
        yield from diagnoses
    elif program:
        where = configuration(world, program)
        yield well("the engines' configuration has no problems", where)
    else:
        yield well("no engine to configure")


@dataclass(frozen=True)
class _Settings:
    """An engine's apptainer.conf."""

    world: World
    program: str
    file: str
    values: Mapping[str, tuple[str, ...]]

    @property
    def own(self) -> bool:
        """Whether it belongs to fairlead's private Apptainer."""
        data = self.world.real(str(data_dir(self.world.environ)))
        return self.world.real(self.file).startswith(f"{data}/")

    def last(self, key: str, default: str = "") -> str:
        return self.values.get(key, (default,))[-1].lower()

    def line(self, key: str, value: str = "yes", how: str = "--set") -> str:
        """The command that changes a value, for a person to type."""
        sudo = "" if self.own else "sudo "
        quoted = value if how == "--set" else shlex.quote(value)
        return f'{sudo}{shlex.quote(self.program)} config global {how} "{key}" {quoted}'

    def fix(self, key: str, value: str = "yes", how: str = "--set") -> Fix | None:
        """Only in the user's own installation; an administrator's settings are theirs to change."""
        if not self.own:
            return None
        words = (self.program, "config", "global", how, key, value)
        return OwnFix(
            f"{how.lstrip('-')}s `{key} = {value}` in {self.file}",
            lambda progress: process.run_checked(
                words, f"cannot set `{key}`", f"edit {self.file}", environ=self.world.environ
            ),
        )


def _apptainer(world: World, program: str | None) -> Iterator[Diagnosis]:
    if program is None:
        return
    file = configuration(world, program)
    text = world.read(file)
    if text is None:
        yield ill("engine-settings-unreadable", file=file)
        return
    conf = _Settings(world, program, file, parse_conf(text))
    for key, bad, severity, why in _RULES:
        value = conf.last(key)
        if value in bad:
            yield ill(
                "engine-settings-value",
                key=key,
                value=value,
                file=file,
                why=why,
                line=conf.line(key),
                severity=severity,
                fix=None if severity is Severity.INFO else conf.fix(key),
            )
    if conf.last("enable overlay") == conf.last("enable underlay") == "no":
        key = "enable underlay"
        yield ill(
            "engine-settings-no-overlay-no-underlay",
            file=file,
            line=conf.line(key),
            fix=conf.fix(key),
        )
    yield from _loop_devices(world, conf)
    yield from _others(world, conf)


def _loop_devices(world: World, conf: _Settings) -> Iterator[Diagnosis]:
    """Only the kernel's own squashfs takes loop devices: for root, and for a setuid engine."""
    if world.uid != 0 and not starters(world, conf.program):
        return
    text = conf.last("max loop devices")
    most = int(text) if text.isdecimal() else 256
    ranks = world.cores()
    if conf.last("shared loop devices") != "yes" and most < ranks:
        yield ill(
            "engine-settings-loop-devices",
            most=most,
            ranks=ranks,
            file=conf.file,
            line=conf.line("shared loop devices"),
            fix=conf.fix("shared loop devices"),
        )


def _others(world: World, conf: _Settings) -> Iterator[Diagnosis]:
    if conf.last("allow setuid") == "no" and starters(world, conf.program):
        yield note("engine-settings-setuid-off", file=conf.file, line=conf.line("allow setuid"))
    for entry in conf.values.get("bind path", ()):
        source = entry.split(":")[0]
        if source and not world.access(source, os.F_OK):
            yield ill(
                "engine-settings-bind-path-missing",
                entry=entry,
                file=conf.file,
                line=conf.line("bind path", entry, "--unset"),
                fix=conf.fix("bind path", entry, "--unset"),
            )
    for key in ("limit container owners", "limit container groups", "limit container paths"):
        value = ", ".join(v for v in conf.values.get(key, ()) if v and v.upper() != "NULL")
        if value:
            yield note("engine-settings-images-limited", key=key, value=value, file=conf.file)


def _podman(world: World) -> Iterator[Diagnosis]:
    if world.which("podman") is None:
        return
    if world.uid == 0:
        yield from _ulimits(world)
        return
    driver, where = podman.storage_driver(world)
    if driver == "vfs":
        file = podman.own_storage_file(world)
        yield note("engine-settings-podman-vfs", where=where, own_storage_file=file)


def _ulimits(world: World) -> Iterator[Diagnosis]:
    """Podman raises limits for root's containers, which takes a capability that this root may lack."""
    limits, _ = podman.setting(world, "containers", "default_ulimits")
    if raises_limits(world) is False and limits is None:
        yield note("engine-settings-podman-limits")


def _charliecloud(world: World) -> Iterator[Diagnosis]:
    if world.which("ch-run") and not world.environ.get("USER"):
        yield note("engine-settings-charliecloud-user")


CHECK = Check(
    "engine-settings", "settings of Apptainer and Podman", examine, Topic.ENGINES, order=50
)
