"""Slurm's own settings: as its controller says them, else from slurm.conf where none answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from fairlead.doctor.world import World

USUAL = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/opt/slurm/etc/slurm.conf")
_LINE = re.compile(r"^\s*(\w+)\s*=\s*(\S+)", re.MULTILINE)
_DEEPEST = 8  # includes within includes


def settings(world: World) -> Mapping[str, str]:
    """Values by their names in lower case, as slurm.conf(5) knows them; ``slurm_conf`` is the file's path."""
    answer = world.run(("scontrol", "show", "config"))
    values = {key.lower(): value for key, value in _LINE.findall(answer.stdout)}
    if values.get("slurm_conf"):
        return values
    named = world.environ.get("SLURM_CONF")
    for file in (named,) if named else USUAL:
        text = world.read(file)
        if text is not None:
            read = {key.lower(): value for key, value in _lines(world, file, text)}
            return {**read, "slurm_conf": file}
    return {}


def _lines(world: World, file: str, text: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if len(words) == 2 and words[0].lower() == "include" and depth < _DEEPEST:
            inner = str(PurePosixPath(file).parent / words[1])
            yield from _lines(world, inner, world.read(inner) or "", depth + 1)
        elif match := _LINE.match(line.partition("#")[0]):
            yield match[1], match[2]
