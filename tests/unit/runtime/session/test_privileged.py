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
from tests.support.compiled import OPENMPI as OPENMPI_CODE
from tests.support.compiled import PLAIN, compiled, image_tree
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
    assert facts.set_ids == (("/opt/app/o",) if changes else ())
    assert bool(objections(facts, tmp_path, "/opt/app/o")) is changes
    assert not objections(facts, tmp_path, "/opt/app/c")


def objections(facts: ImageFacts, folder: Path, app: str) -> list[str]:
    shutil.rmtree(folder / "mpi", ignore_errors=True)
    compiled(folder / "mpi/lib/libmpi.so.40", OPENMPI_CODE)
    compiled(folder / "mpi/bin/mpiexec", PLAIN)
    environ = {"XDG_CACHE_HOME": str(folder / "cache"), "PATH": ""}
    mpi = in_prefix(folder / "mpi", "for the test", environ)[0]
    plan = planned(facts, mpi, launcher=OPENMPI, apps=(app,))
    return errors(prepare._privileged(plan, folder=False))
