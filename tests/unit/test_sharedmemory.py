"""Shared-memory files: what a killed run left goes, what anybody uses or had before stays."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from fairlead import sharedmemory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sharedmemory, "_SETTLED_S", 0.01)
    return tmp_path


def test_clear_removes_only_fresh_files_of_an_mpi(folder: Path) -> None:
    (folder / "mpich_shm_1").write_bytes(b"old")
    before = sharedmemory.listing(folder)
    (folder / "mpich_shm_2").write_bytes(b"left")
    (folder / "somebody_elses").write_bytes(b"data")
    assert sharedmemory.clear(before, folder) == 1
    assert sorted(p.name for p in folder.iterdir()) == ["mpich_shm_1", "somebody_elses"]


def test_clear_of_a_missing_folder_removes_nothing(folder: Path) -> None:
    assert sharedmemory.clear(frozenset(), folder / "none") == 0


def test_clear_keeps_what_a_living_process_has_mapped() -> None:
    before = sharedmemory.listing()
    path = Path("/dev/shm/mpich_shm_mapped_by_a_test")
    path.write_bytes(bytes(4096))
    try:
        with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 4096):
            sharedmemory.clear(before)
            assert path.exists()
        sharedmemory.clear(before)
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)
