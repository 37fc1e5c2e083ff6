"""Shared-memory files: what a killed run left goes, what anybody uses or had before stays."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from fairlead.launch import shm_cleanup


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shm_cleanup, "_SETTLED_S", 0.01)
    return tmp_path


def test_clear_removes_only_fresh_files_of_an_mpi(folder: Path) -> None:
    (folder / "mpich_shm_1").write_bytes(b"old")
    before = shm_cleanup.listing(folder)
    (folder / "mpich_shm_2").write_bytes(b"left")
    (folder / "somebody_elses").write_bytes(b"data")
    assert shm_cleanup.clear(before, folder) == 1
    assert sorted(p.name for p in folder.iterdir()) == ["mpich_shm_1", "somebody_elses"]


def test_clear_of_a_missing_folder_removes_nothing(folder: Path) -> None:
    assert shm_cleanup.clear(frozenset(), folder / "none") == 0


def test_clear_keeps_what_a_living_process_has_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_cleanup, "_SETTLED_S", 0.1)
    before = shm_cleanup.listing()
    path = Path(f"/dev/shm/mpich_shm_mapped_by_a_test_{os.getpid()}")
    path.write_bytes(bytes(4096))
    try:
        with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 4096):
            shm_cleanup.clear(before)
            assert path.exists()
        shm_cleanup.clear(before)
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_clear_asks_no_clock_that_is_set_while_jobs_run(folder: Path) -> None:
    before = shm_cleanup.listing(folder)
    left = folder / "mpich_shm_3"
    left.write_bytes(b"left")
    os.utime(left, (2**32, 2**32))  # its clock was ahead
    assert shm_cleanup.clear(before, folder) == 1 and not left.exists()


def test_clear_keeps_what_another_job_has_made_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shm_cleanup.listing(folder)
    path, other = folder / "mpich_shm_4", folder / "other"
    path.write_bytes(b"left")

    def meanwhile() -> frozenset[str]:
        other.write_bytes(b"anew")
        other.replace(path)
        return frozenset()

    monkeypatch.setattr(shm_cleanup, "_mapped", meanwhile)
    assert shm_cleanup.clear(before, folder) == 0 and path.read_bytes() == b"anew"
