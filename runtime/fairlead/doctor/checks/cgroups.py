"""Which kind of control groups has this machine, and can the engines' runtimes work with it?"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Severity
from fairlead.doctor import podman
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World

ROOT = "/sys/fs/cgroup"


def examine(world: World) -> Iterator[Diagnosis]:
    kind = cgroup_kind(world)
    runtime, told_by = podman.runtime(world)
    if kind == "none":
        yield note("cgroups-missing", root=ROOT)
    elif kind == "hybrid" and runtime == "crun":
        other = world.which("runc")
        yield ill(
            "cgroups-hybrid-switch-runtime" if other else "cgroups-hybrid-install-runc",
            root=ROOT,
            told_by=told_by,
            other=other,
            severity=Severity.WARNING if _podman_is_used(world) else Severity.INFO,
        )
    else:
        yield well(f"control groups: {_WORDS[kind]}", _delegated(world, kind))


_WORDS = {
    "v2": "version 2",
    "v1": "version 1; crun, runc and Apptainer work with it, newer Podman (5) does not",
    "hybrid": "versions 1 and 2 together",
}


def cgroup_kind(world: World) -> str:
    """``v1``, ``v2``, ``hybrid`` or ``none``: by what is mounted (cgroups(7))."""
    there = world.file_system(ROOT)
    if there.mount != ROOT:
        return "none"
    if there.kind == "cgroup2":
        return "v2"
    both = world.file_system(f"{ROOT}/unified")
    return "hybrid" if both.kind == "cgroup2" and both.mount == f"{ROOT}/unified" else "v1"


def _podman_is_used(world: World) -> bool:
    site = world.profile().site
    return world.engine() is None or bool(site and site.engine.kinds[0].startswith("podman"))


def _delegated(world: World, kind: str) -> str:
    if kind != "v2" or world.uid == 0:
        return ROOT
    slice_ = f"{ROOT}/user.slice/user-{world.uid}.slice/user@{world.uid}.service"
    controllers = (world.read(f"{slice_}/cgroup.controllers") or "").split()
    return f"delegated to {world.user}: {', '.join(controllers) or 'none'}"


CHECK = Check(
    "cgroups", "control groups, and which engines can use them", examine, Topic.MACHINE, order=80
)
