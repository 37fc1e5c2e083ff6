"""Is there a container engine, and can this user run a command in an image with it?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.doctor.checks.packages import apt_fix, apt_line
from fairlead.doctor.diagnosis import Check, Diagnosis, Fix, OwnFix, Topic, ill, well
from fairlead.doctor.install.apptainer import RETRY, install_apptainer
from fairlead.doctor.world import World
from fairlead.engines.apptainer import private_apptainer


def examine(world: World) -> Iterator[Diagnosis]:
    others = world.other_engines()
    able = [kind for kind, ran in others.items() if not ran.returncode]
    yield from _apptainer(world, able)
    for kind, ran in others.items():
        if kind in able:
            yield well(f"{kind} also runs on this machine", ran.argv[0])
        else:
            yield ill("engine-other-cannot-run-image", kind=kind, ran=ran, output=ran.tail)


def _apptainer(world: World, able: list[str]) -> Iterator[Diagnosis]:
    program = world.engine()
    if program is None:
        yield _absent(world, able)
        return
    version = world.run((program, "--version"))
    if version.returncode:
        private = program == str(private_apptainer(world.environ))
        yield ill(
            "engine-does-not-start" if private else "engine-does-not-start-reinstall",
            program=program,
            version=version,
            retry=RETRY,
            fix=_own_fix(world) if private else None,
        )
        return
    probe = world.probe_engine()
    if probe.returncode:
        words = " ".join(probe.argv)
        yield ill("engine-cannot-run-image", words=words, probe=probe, output=probe.tail)
    else:
        yield well(version.stdout.strip(), program)


def _absent(world: World, able: list[str]) -> Diagnosis:
    """From the distribution where root can; else into a prefix of the user's own."""
    packaged = _candidate(world)
    by_apt = packaged and (world.uid == 0 or world.run(("sudo", "-n", "true")).returncode == 0)
    fix: Fix = apt_fix([packaged]) if by_apt else _own_fix(world)
    private = private_apptainer(world.environ)
    if able:
        names = " and ".join(able)
        return ill(
            "engine-no-apptainer", private=private, names=names, able=able, retry=RETRY, fix=fix
        )
    remedy = f", or {apt_line([packaged])}" if packaged else ""
    return ill("engine-none-for-doctor", private=private, retry=RETRY, remedy=remedy, fix=fix)


def _candidate(world: World) -> str:
    """The package that this machine's apt would install, if it has one."""
    for name in ("apptainer", "singularity-ce"):
        policy = world.run(("apt-cache", "policy", name)).stdout
        match = re.search(r"Candidate: (\S+)", policy)
        if match and match[1] != "(none)":
            return name
    return ""


def _own_fix(world: World) -> OwnFix:
    folder = private_apptainer(world.environ).parent.parent.parent
    return OwnFix(
        f"installs Apptainer into {folder}",
        lambda progress: install_apptainer(world.environ, progress),
    )


# An engine may be given up after a minute, and here it is started twice.
CHECK = Check(
    "engine",
    "container engines (tested with a tiny image)",
    examine,
    Topic.ENGINES,
    order=20,
    limit_s=120,
)
