"""What Podman's files say. Podman itself is not asked: it would make folders."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from fairlead.doctor.world import World


def _values(
    world: World, files: tuple[str, ...], table: str, key: str
) -> Iterator[tuple[Any, str]]:
    """A value, and the file that has it, of each file that is there and is TOML."""
    for file in filter(None, files):
        try:
            part = tomllib.loads(world.read(file) or "").get(table)
        except (ValueError, RecursionError):
            continue  # Podman itself says so
        if isinstance(part, dict) and key in part:
            yield part[key], file


def _folder(world: World) -> str:
    home = world.environ.get("HOME", "/")
    return world.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"


def setting(world: World, table: str, key: str) -> tuple[Any, str]:
    """A value of containers.conf(5) and the file that has it, the first that counts first; None without."""
    files = (
        world.environ.get("CONTAINERS_CONF", ""),
        f"{_folder(world)}/containers/containers.conf",
        "/etc/containers/containers.conf",
        "/usr/share/containers/containers.conf",
    )
    return next(_values(world, files, table, key), (None, ""))


def runtime(world: World) -> tuple[str, str]:
    """The OCI runtime that Podman takes, and what says so; empty without Podman."""
    if not world.which("podman"):
        return "", ""
    value, file = setting(world, "engine", "runtime")
    if isinstance(value, str):
        return value.rpartition("/")[2], file
    for name in ("crun", "runc"):  # in Podman's own order
        if world.which(name):
            return name, "no containers.conf names another"
    return "", ""


def storage_driver(world: World) -> tuple[str, str]:
    """An ordinary user's storage driver, and what says so: containers-storage.conf(5); empty where unknown."""
    data = world.environ.get("XDG_DATA_HOME") or f"{world.environ.get('HOME', '/')}/.local/share"
    named = world.environ.get("CONTAINERS_STORAGE_CONF", "")
    files = (named, own_storage_file(world), "/etc/containers/storage.conf")
    for driver, file in _values(world, files, "storage", "driver"):
        if isinstance(driver, str) and driver:
            return driver, f"{file}: driver = {driver}"
    used = world.matching(f"{data}/containers/storage/vfs-images")
    return ("vfs", used[0]) if used else ("", "")


def own_storage_file(world: World) -> str:
    """Where a user's own choice of a driver goes."""
    return f"{_folder(world)}/containers/storage.conf"
