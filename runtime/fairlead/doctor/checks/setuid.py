"""Is Apptainer installed setuid, and if so, does the kernel honour it?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World
from fairlead.engines.apptainer import conf_places, last_value, parse_conf

SETUID = 0o4000


def starters(world: World, program: str) -> tuple[str, ...]:
    """The helpers that may be setuid: where Apptainer, SingularityCE and Debian put theirs."""
    prefix = PurePosixPath(world.real(program)).parent.parent
    patterns = (
        f"{prefix}/libexec/*/bin/starter-suid",
        f"{prefix}/lib/*/*/bin/starter-suid",
        f"{prefix}/lib/*/bin/starter-suid",
    )
    return tuple(path for pattern in patterns for path in world.matching(pattern))


def configuration(world: World, program: str) -> str:
    """The engine's apptainer.conf; where it should be, when there is none."""
    those = conf_places(world.real(program), world.environ)
    return next((place for place in those if world.matching(place)), those[0])


def examine(world: World) -> Iterator[Diagnosis]:
    program = world.engine()
    if program is None:
        yield well("no Apptainer to check")
        return
    programs = starters(world, program)
    if not programs:
        yield well("Apptainer is not setuid: it uses user namespaces", program)
        return
    starter = programs[0]
    quoted = shlex.quote(starter)
    owner, mode = world.owner_mode(starter) or (-1, 0)
    if owner != 0 or not mode & SETUID:
        yield _unheeded(
            world,
            f"its owner is uid {owner} and its mode {mode:04o}; it needs owner root and mode 4755",
            starter,
            f"sudo chown root:root {quoted} && sudo chmod 4755 {quoted}\n"
            f"or, to run without setuid: sudo rm {quoted}, and Apptainer uses user namespaces",
        )
        return
    file = configuration(world, program)
    if last_value(parse_conf(world.read(file) or ""), "allow setuid") == "no":
        yield well(f"Apptainer is setuid, and not used so: `allow setuid = no` in {file}", starter)
        return
    there = world.file_system(starter)
    if "nosuid" in there.options:
        yield _unheeded(
            world,
            f"{there.mount} ({there.kind}) is mounted nosuid, so the kernel ignores the bit",
            starter,
            f"sudo mount -o remount,suid {there.mount}, or install Apptainer on another file system",
        )
    elif re.search(r"^NoNewPrivs:\s*1", world.read("/proc/self/status") or "", re.MULTILINE):
        yield _unheeded(
            world,
            "this process cannot gain privileges (NoNewPrivs in /proc/self/status)",
            starter,
            "start this container or job step without no-new-privileges",
        )
    else:
        yield well("Apptainer is setuid: ranks share one user namespace", starter)


def _unheeded(world: World, why: str, starter: str, remedy: str) -> Diagnosis:
    if world.uid == 0:  # root needs none
        return note("setuid", starter=starter, why=why, remedy=remedy)
    return ill("setuid-refuses-to-start", starter=starter, why=why, remedy=remedy)


CHECK = Check("setuid", "whether setuid Apptainer works", examine, Topic.ENGINES, order=30)
