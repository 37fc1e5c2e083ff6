"""Mounts that a process of their node holds: who ends them, and what is left. With the real squashfuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.launch.nodes import key
from fairlead.transfer import mount
from fairlead.transfer.mount import MountItem

pytestmark = pytest.mark.skipif(
    not (shutil.which("squashfuse_ll") and shutil.which("mksquashfs") and Path("/dev/fuse").exists()),
    reason="squashfuse, mksquashfs or FUSE is missing",
)  # fmt: skip


@pytest.fixture
def items(tmp_path: Path) -> list[MountItem]:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one").write_text("1", "utf-8")
    words = ["mksquashfs", str(tmp_path / "files"), str(tmp_path / "image"), "-quiet"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return [MountItem(str(tmp_path / "image"), "/data")]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "storage" / "fairlead-mount.0123"
    where.parent.mkdir()
    yield where
    mount.release(str(where))
    assert not where.exists()


def comes(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)
    return holds()


def holder(folder: Path) -> int:
    return int((folder / "owner").read_text("utf-8").split()[1])


def test_held_mount_is_there_until_it_is_released(items: list[MountItem], folder: Path) -> None:
    mount.hold(str(folder), items)
    assert (folder / "0/data/one").read_text("utf-8") == "1"
    assert holder(folder) != os.getpid() and (folder / "ranks").is_dir()
    assert not mount.release(str(folder), home=key())  # the launching host ends its own
    assert (folder / "0/data/one").exists()
    assert mount.release(str(folder))
    assert not folder.exists() and not mount.release(str(folder))


def test_next_attempt_of_a_run_mounts_anew(items: list[MountItem], folder: Path) -> None:
    mount.hold(str(folder), items)
    first = holder(folder)
    mount.hold(str(folder), items)
    assert holder(folder) != first
    assert (folder / "0/data/one").exists()


def test_mount_ends_a_while_after_the_last_rank(
    items: list[MountItem], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount, "_AFTER_RANKS_S", 1.0)
    monkeypatch.setattr(mount, "_LOOK_S", 0.1)
    with subprocess.Popen(["sleep", "100"]) as rank:
        mount.hold(str(folder), items)
        (folder / "ranks" / str(rank.pid)).touch()
        time.sleep(2.0)
        assert (folder / "0/data/one").exists()
        rank.kill()
        rank.wait()
        assert comes(lambda: not folder.exists())


def test_mount_whose_holder_was_killed_is_removed_by_the_next(
    items: list[MountItem], folder: Path
) -> None:
    mount.hold(str(folder), items)
    # As Slurm ends a step: its processes at once, none of which can unmount.
    below = subprocess.run(
        ["pgrep", "-f", f"{folder}/0/data"], check=True, capture_output=True, text=True, timeout=10
    )
    for pid in (holder(folder), *map(int, below.stdout.split())):
        os.kill(pid, 9)
    assert comes(lambda: not mount._lives((folder / "owner").read_text("utf-8").partition(" ")[2]))
    assert folder.exists()
    mount.clear_stale(str(folder.parent))
    assert not folder.exists()


def test_storage_where_another_host_has_mounted_is_refused(
    items: list[MountItem], folder: Path
) -> None:
    folder.mkdir()
    (folder / "owner").write_text("elsewhere.0000 1 1", "utf-8")
    with pytest.raises(FairleadError) as caught:
        mount.hold(str(folder), items)
    (found,) = caught.value.findings
    assert found.check == "mount" and found.why == "elsewhere has mounted there"
    mount.clear_stale(str(folder.parent))
    assert folder.exists()  # it may be in use there
    shutil.rmtree(folder)


def test_reason_of_a_mount_that_fails_comes_from_the_program(
    items: list[MountItem], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "image").write_bytes(b"no squashfs" * 100)
    with pytest.raises(FairleadError) as caught:
        mount.hold(str(folder), items)
    assert "image" in caught.value.findings[0].why
    assert not folder.exists()
