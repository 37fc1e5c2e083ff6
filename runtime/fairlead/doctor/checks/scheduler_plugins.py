"""Are the scheduler's plugins for containers installed: Slurm's SPANK plugins, and PALS?"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from fairlead.doctor import slurm
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World

# A plugin's file name, and whose it is.
KNOWN = {
    "shifter_slurm.so": "Shifter",
    "spank_pyxis.so": "pyxis (enroot)",
    "libspank_ce.so": "Container Engine",
    "libslurm-uenv-mount.so": "uenv",
    "sarus": "Sarus",
    "singularity-exec.so": "SingularityCE",
    "spank_podman_hpc.so": "podman-hpc",
}
_DEEPEST = 8  # includes within includes


@dataclass(frozen=True)
class Plugin:
    """A line of plugstack.conf (spank(7))."""

    required: bool
    path: str
    arguments: tuple[str, ...]
    file: str
    line: int

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


def examine(world: World) -> Iterator[Diagnosis]:
    pals = _pals(world)
    if world.which("srun") is None:
        yield from pals or [well("no scheduler with plugins on this machine")]
        return
    config, folder = _config(world)
    plugins = list(read_plugins(world, config))
    gone = [plugin for plugin in plugins if not _there(world, plugin, folder)]
    for plugin in gone:
        yield ill(
            "scheduler-plugins-missing-required"
            if plugin.required
            else "scheduler-plugins-missing-optional",
            plugin=plugin,
        )
    missing = [(plugin, file) for plugin in plugins for file in _lost_files(world, plugin)]
    for plugin, file in missing:
        yield ill("scheduler-plugins-file-missing", file=file, plugin=plugin)
    yield from pals
    if not gone and not missing and not pals:
        names = [plugin.name for plugin in plugins]
        engines = [title for name, title in KNOWN.items() if any(name in n for n in names)]
        yield well(
            f"Slurm's plugins: {', '.join(names)}" if names else "Slurm has no SPANK plugins",
            f"{config}; containers by {', '.join(engines) or 'none of them'}",
        )


def read_plugins(world: World, path: str, depth: int = 0) -> Iterator[Plugin]:
    """The plugins of a plugstack.conf and of what it includes."""
    for number, line in enumerate((world.read(path) or "").splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        if len(words) >= 2 and words[0] == "include" and depth < _DEEPEST:
            pattern = str(PurePosixPath(path).parent / words[1])
            for inner in world.matching(pattern):
                yield from read_plugins(world, inner, depth + 1)
        elif len(words) >= 2 and words[0] in ("required", "optional"):
            yield Plugin(words[0] == "required", words[1], tuple(words[2:]), path, number)


def _config(world: World) -> tuple[str, str]:
    """Where plugstack.conf is, and the folder of plugins that are named without one."""
    values = slurm.settings(world)
    same_folder = str(PurePosixPath(values.get("slurm_conf", slurm.USUAL[0])).parent)
    named = values.get("plugstackconfig", "")
    config = named if named.startswith("/") else f"{same_folder}/plugstack.conf"
    return config, values.get("plugindir", "/usr/lib64/slurm")


def _there(world: World, plugin: Plugin, folders: str) -> bool:
    if plugin.path.startswith("/"):
        return world.access(plugin.path, os.F_OK)
    return any(world.access(f"{folder}/{plugin.path}", os.F_OK) for folder in folders.split(":"))


def _lost_files(world: World, plugin: Plugin) -> list[str]:
    """Files that a plugin's arguments name, e.g. ``shifter_config=/etc/shifter/udiRoot.conf``."""
    named = [word.partition("=")[2] for word in plugin.arguments if "config=" in word]
    return [file for file in named if file.startswith("/") and not world.access(file, os.F_OK)]


def _pals(world: World) -> list[Diagnosis]:
    """HPE's launcher: its mpiexec, and the daemon's folder that ranks must see."""
    program = world.which("mpiexec")
    if program is None or "/pals/" not in world.real(program):
        return []
    if any(world.access(path, os.F_OK) for path in ("/var/run/palsd", "/run/palsd")):
        return []
    return [note("scheduler-plugins-no-palsd", program=program)]


CHECK = Check("scheduler-plugins", "SPANK plugins, PALS", examine, Topic.NETWORK, order=20)
