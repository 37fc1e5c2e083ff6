"""What the kernel allows: user namespaces, FUSE, file systems, control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import answers, content, failed
from fairlead.detect.model import AbilityFact

_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
)


def probe(world: View) -> dict[str, Any]:
    facts = [_user_namespaces(world), _fuse(world), *_file_systems(world), _cgroup(world)]
    return {"abilities": (*facts, *_restrictions(world))}


def _user_namespaces(world: View) -> AbilityFact:
    ran = answers(world, {"": ("unshare", "--user", "--map-root-user", "true")})[""]
    if ran.returncode == 0:
        return AbilityFact("user namespaces", "yes", "tried by `unshare --user`")
    forbidden = [
        f"{path} = {value}"
        for path, forbids in _SWITCHES
        if (value := content(world, path)) == forbids
    ]
    if forbidden:
        return AbilityFact("user namespaces", "no", ", ".join(forbidden))
    if ran.returncode in (124, 127):
        allowed = world.access("/proc/self/ns/user", os.F_OK)
        where = "/proc/self/ns/user" if allowed else "no /proc/self/ns/user"
        return AbilityFact("user namespaces", "perhaps" if allowed else "no", where)
    return AbilityFact("user namespaces", "no", failed(ran))


def _restrictions(world: View) -> Iterator[AbilityFact]:
    path = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
    if (value := world.read(path)) is not None:
        restricted = "yes" if value.strip() == "1" else "no"
        yield AbilityFact("AppArmor restricts user namespaces", restricted, path)
    path = "/proc/sys/user/max_user_namespaces"
    if (value := world.read(path)) is not None:
        yield AbilityFact("user namespaces at most", value.strip(), path)


def _fuse(world: View) -> AbilityFact:
    device = "/dev/fuse"
    if not world.access(device, os.F_OK):
        return AbilityFact("fuse", "no", f"no {device}")
    usable = world.access(device, os.R_OK | os.W_OK)
    return AbilityFact("fuse", "yes" if usable else "closed", device)


def _file_systems(world: View) -> Iterator[AbilityFact]:
    known = world.read("/proc/filesystems")
    names = {line.split()[-1] for line in (known or "").splitlines() if line.split()}
    release = world.kernel[0]
    for name in ("squashfs", "overlay"):
        modules = world.matching(f"/lib/modules/{release}/kernel/fs/{name}*/{name}.ko*")
        if name in names:
            yield AbilityFact(name, "yes", "/proc/filesystems")
        elif modules:
            yield AbilityFact(name, "module", modules[0])
        elif known is None:
            yield AbilityFact(name, "unknown", "no /proc/filesystems")
        else:
            yield AbilityFact(name, "no", "neither in /proc/filesystems nor among the modules")


def _cgroup(world: View) -> AbilityFact:
    mounts = world.read("/proc/self/mounts")
    if mounts is None:
        return AbilityFact("cgroup", "unknown", "no /proc/self/mounts")
    kinds = {fields[2] for line in mounts.splitlines() if len(fields := line.split()) > 2}
    both = {"cgroup", "cgroup2"} & kinds
    names = {"cgroup": "v1", "cgroup2": "v2"}
    value = "hybrid" if len(both) == 2 else names[next(iter(both))] if both else "not mounted"
    return AbilityFact("cgroup", value, "/proc/self/mounts")
