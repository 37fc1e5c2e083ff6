"""Are the system packages installed? ``system_packages.txt`` lists them, also for bootstrap.sh."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

from fairlead.doctor.diagnosis import Check, Diagnosis, RootFix, Topic, ill, well
from fairlead.doctor.world import World


class Package(NamedTuple):
    """A Debian package, the program or file that shows it is there, and what it is for."""

    name: str
    witness: str
    purpose: str


def packages() -> list[Package]:
    """The rows of ``system_packages.txt``."""
    text = resources.files("fairlead.doctor").joinpath("system_packages.txt").read_text("utf-8")
    rows = [line.split(None, 2) for line in text.splitlines() if line and line[0] != "#"]
    return [Package(*row) for row in rows]


def apt_fix(names: list[str]) -> RootFix:
    """Installs packages: lists fetched only where that is needed, locks waited for."""
    script = resources.files("fairlead.doctor").joinpath("apt_install.sh")
    return RootFix(f"installs {', '.join(names)}", ("sh", str(script), *names), apt_line(names))


def apt_line(names: list[str]) -> str:
    """The same for a person to type."""
    return f"sudo apt-get install -y --no-install-recommends {' '.join(names)}"


def examine(world: World) -> Iterator[Diagnosis]:
    wanted = packages()
    missing = [package for package in wanted if not _present(world, package)]
    if not missing:
        yield well(f"{len(wanted)} system packages", ", ".join(p.name for p in wanted))
        return
    names = [package.name for package in missing]
    listed = ", ".join(names)
    lacking = "\n".join(f"{p.witness}: {p.purpose}" for p in missing)
    if world.which("apt-get") is None:
        yield ill("packages-missing-no-apt", names=listed, missing=lacking)
    else:
        fix = apt_fix(names)
        yield ill("packages-missing-apt", names=listed, missing=lacking, apt_line=fix.line, fix=fix)


def _present(world: World, package: Package) -> bool:
    if package.witness.startswith("/"):
        return world.access(package.witness, os.R_OK)
    return world.which(package.witness) is not None


CHECK = Check("packages", "system packages", examine, Topic.MACHINE, order=20)
