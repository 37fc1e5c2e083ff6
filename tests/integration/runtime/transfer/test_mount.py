"""Mounts that a process of their node holds: who ends them, and what is left. With the real squashfuse."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.base import proc_stat
from fairlead.base.errors import FairleadError
from fairlead.launch.nodes import key
from fairlead.transfer import mount
from fairlead.transfer.mount import MountItem

pytestmark = pytest.mark.skipif(
    not (shutil.which("squashfuse_ll") and shutil.which("mksquashfs") and Path("/dev/fuse").exists()),
    reason="squashfuse, mksquashfs or FUSE is missing",
)  # fmt: skip


@pytest.fixture
def items(tmp_path: Path) -> dict[MountItem, str]:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one").write_text("1", "utf-8")
    words = ["mksquashfs", str(tmp_path / "files"), str(tmp_path / "image"), "-quiet"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    image = str(tmp_path / "image")
    return {MountItem(image, "/data"): mount._identity(image)}


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


def test_held_mount_is_there_until_it_is_released(
    items: dict[MountItem, str], folder: Path
) -> None:
    mount.hold(str(folder), items)
    assert (folder / "0/data/one").read_text("utf-8") == "1"
    assert holder(folder) != os.getpid() and (folder / "ranks").is_dir()
    assert not mount.release(str(folder), home=key())  # the launching host ends its own
    assert (folder / "0/data/one").exists()
    assert mount.release(str(folder))
    assert not folder.exists() and not mount.release(str(folder))


def test_next_attempt_of_a_run_mounts_anew(items: dict[MountItem, str], folder: Path) -> None:
    mount.hold(str(folder), items)
    first = holder(folder)
    mount.hold(str(folder), items)
    assert holder(folder) != first
    assert (folder / "0/data/one").exists()


def test_mount_ends_a_while_after_the_last_rank(
    items: dict[MountItem, str], folder: Path, monkeypatch: pytest.MonkeyPatch
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
    items: dict[MountItem, str], folder: Path
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
    items: dict[MountItem, str], folder: Path
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
    items: dict[MountItem, str], folder: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"no squashfs" * 100)
    wanted = {item: mount._identity(str(image)) for item in items}
    with pytest.raises(FairleadError) as caught:
        mount.hold(str(folder), wanted)
    assert "image" in caught.value.findings[0].why
    assert not folder.exists()
    gone = folder.parent / "no" / folder.name
    with pytest.raises(FairleadError) as caught:
        mount.hold(str(gone), wanted)
    assert caught.value.findings[0].check == "mount"


def test_other_image_of_the_same_name_is_not_mounted(
    items: dict[MountItem, str], folder: Path
) -> None:
    with pytest.raises(FairleadError) as caught:
        mount.hold(str(folder), dict.fromkeys(items, "0123, 4096 bytes"))
    assert "on the launching host 0123" in caught.value.findings[0].why
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user")
def test_folder_and_owner_that_another_user_plants_end_nothing_and_hold_up_nothing(
    items: dict[MountItem, str], folder: Path
) -> None:
    """A FIFO in it would be waited for, and a process named in it be ended."""
    with subprocess.Popen(["sleep", "100"]) as victim:
        began = proc_stat.began(victim.pid)
        for plant in ("owner", "fifo"):
            folder.mkdir()
            if plant == "fifo":
                os.mkfifo(folder / "owner")
            else:
                (folder / "owner").write_text(f"{key()} {victim.pid} {began}", "utf-8")
            os.chown(folder, 1, 1)
            assert not mount.release(str(folder))
            mount.clear_stale(str(folder.parent))
            with pytest.raises(FairleadError, match="another user"):
                mount.hold(str(folder), items)
            assert victim.poll() is None and folder.exists()
            shutil.rmtree(folder)
        victim.kill()


def test_what_cannot_be_looked_at_leaves_the_rest_to_be_removed(folder: Path) -> None:
    for name in ("0000", "ffff"):
        (folder.parent / f"fairlead-mount.{name}").symlink_to("/no/such")
    folder.mkdir()
    (folder / "owner").write_text(f"{key()} 999999999 1", "utf-8")
    mount.clear_stale(str(folder.parent))
    assert not folder.exists()


def test_folder_of_another_host_is_left_however_old(folder: Path) -> None:
    folder.mkdir()
    (folder / "owner").write_text("elsewhere.0000 1 1", "utf-8")
    os.utime(folder, (0, 0))
    mount.clear_stale(str(folder.parent))
    assert folder.exists()
    shutil.rmtree(folder)


def test_mount_whose_program_has_died_fails_reads(
    items: dict[MountItem, str], folder: Path
) -> None:
    """An empty folder would pass for the data."""
    mount.hold(str(folder), items)
    subprocess.run(["pkill", "-KILL", "-f", f"^squashfuse_ll .*{folder}"], check=True, timeout=10)

    def broken() -> bool:
        try:
            (folder / "0/data/one").read_text("utf-8")
        except OSError as exc:
            return exc.errno == errno.ENOTCONN
        return False

    assert comes(broken)
    assert mount.release(str(folder))
