"""Programs that start with other rights than their rank: where that cannot work, it is known before the launch."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.compiled import CALLS, MAIN, MPICH, PLAIN, compiled, image_tree
from tests.support.compiled import OPENMPI as OPENMPI_CODE
from tests.support.recorded import OPENMPI, ROOT_ENGINE, USER_ENGINE, planned

from fairlead.base.errors import Finding, Severity
from fairlead.elf.facts import ImageFacts
from fairlead.image.scan import scan_tree
from fairlead.mpi.host import in_prefix
from fairlead.session import prepare

# VFS_CAP_REVISION_2 and the effective bit, then permitted and inheritable twice: CAP_NET_BIND_SERVICE (linux/capability.h).
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)


def errors(found: Iterable[Finding]) -> list[str]:
    return [f.what for f in found if f.severity is Severity.ERROR]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return image_tree(tmp_path / "root")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives file capabilities")
def test_program_with_file_capabilities_does_not_start_from_an_overlay(root: Path) -> None:
    os.setxattr(root / "opt/app/c", "security.capability", CAPABILITY)
    facts = replace(scan_tree(root), arch="x64", glibc="2.36")
    assert facts.capable == ("/opt/app/c",)
    user = {"engine": USER_ENGINE, "apps": ("/opt/app/c",)}

    def refused(folder: bool = False, **request: Any) -> list[str]:
        return errors(prepare._privileged(planned(facts, **request), folder))

    (what,) = refused(**user)
    assert "/opt/app/c has file capabilities" in what
    assert not refused(folder=True, **user)
    assert not refused(**user, engine_args=("--underlay",))
    assert not refused(engine=ROOT_ENGINE, apps=("/opt/app/c",))
    assert not refused(engine=USER_ENGINE, apps=("deep",))
    assert not refused(engine=replace(USER_ENGINE, kind="charliecloud"), apps=("/opt/app/c",))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(
    ("mode", "owner", "changes"),
    [
        (0o2755, (0, 50), True),
        (0o4755, (65534, 0), True),
        (0o4755, (0, 0), False),
        (0o2755, (0, 0), False),
        (0o755, (65534, 50), False),
    ],
)
def test_rank_of_another_user_or_group_is_refused_by_open_mpi_alone(
    mode: int, owner: tuple[int, int], changes: bool, root: Path, tmp_path: Path
) -> None:
    program = root / "opt/app/o"
    os.chown(program, *owner)
    program.chmod(mode)
    facts = replace(scan_tree(root), arch="x64", glibc="2.36")
    assert facts.set_ids == ({"/opt/app/o": ""} if changes else {})
    assert bool(objections(facts, tmp_path, "/opt/app/o")) is changes
    assert not objections(facts, tmp_path, "/opt/app/c")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_set_id_program_that_finds_its_mpi_by_a_variable_alone_is_refused(root: Path) -> None:
    """Also where a script names it, as modules' scripts set LD_LIBRARY_PATH and start the program."""
    apart = compiled(root / "opt/apart/libmpich.so.12", MPICH)
    (root / "usr/lib/libmpich.so.12").unlink()
    program = compiled(root / "opt/app/alone-id", MAIN + CALLS, str(apart))
    os.chown(program, 0, 50)
    program.chmod(0o2755)
    script = root / "opt/app/start.sh"
    script.write_text("#!/bin/sh\nLD_LIBRARY_PATH=/opt/apart exec /opt/app/alone-id\n")
    script.chmod(0o755)
    facts = replace(scan_tree(root), arch="x64", glibc="2.36")
    assert facts.set_ids == {"/opt/app/alone-id": "libmpich.so.12"}
    for name in ("alone-id", "start.sh"):
        plan = planned(facts, command=(f"/opt/app/{name}",))
        (what,) = errors(prepare._privileged(plan, folder=True))
        assert "/opt/app/alone-id does not find libmpich.so.12" in what


def objections(facts: ImageFacts, folder: Path, app: str) -> list[str]:
    shutil.rmtree(folder / "mpi", ignore_errors=True)
    compiled(folder / "mpi/lib/libmpi.so.40", OPENMPI_CODE)
    compiled(folder / "mpi/bin/mpiexec", PLAIN)
    environ = {"XDG_CACHE_HOME": str(folder / "cache"), "PATH": ""}
    mpi = in_prefix(folder / "mpi", "for the test", environ)[0]
    plan = planned(facts, mpi, launcher=OPENMPI, apps=(app,))
    return errors(prepare._privileged(plan, folder=False))
