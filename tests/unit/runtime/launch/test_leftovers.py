"""Shared memory of runs that were killed with their fairlead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.launch import leftovers

RUNS = """
import sys, time
from pathlib import Path
from fairlead.launch import leftovers
leftovers.begin(Path(sys.argv[1]), Path(sys.argv[2]))
(Path(sys.argv[2]) / "mpich_shm_new").write_bytes(b"x")
print("ready", flush=True)
time.sleep(99)
"""


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    runs, memory = tmp_path / "runs", tmp_path / "shm"
    (runs / "1").mkdir(parents=True)
    memory.mkdir()
    (memory / "mpich_shm_before").write_bytes(b"x")
    return runs, memory


def aged(memory: Path) -> None:
    for path in memory.iterdir():
        if path.stat().st_mtime > time.time() - 5:
            os.utime(path, (time.time() - 5, time.time() - 5))


def names(memory: Path) -> list[str]:
    aged(memory)
    return sorted(path.name for path in memory.iterdir())


def test_shared_memory_of_a_killed_run_is_removed_by_the_next(places) -> None:
    runs, memory = places
    words = [sys.executable, "-c", RUNS, runs / "1", memory]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout and run.stdout.readline() == "ready\n"
        (memory / "none_of_an_mpi").write_bytes(b"x")
        aged(memory)
        assert leftovers.clear_dead(runs, memory) == 0  # it lives
        run.kill()
    # What came long after its death is of another run.
    (memory / "mpich_shm_later").write_bytes(b"x")
    os.utime(memory / "mpich_shm_later", (time.time() + 300, time.time() + 300))
    assert leftovers.clear_dead(runs, memory) == 1
    assert names(memory) == ["mpich_shm_before", "mpich_shm_later", "none_of_an_mpi"]
    assert leftovers.clear_dead(runs, memory) == 0
    assert list((runs / "1").iterdir()) == []


def test_shared_memory_of_a_run_on_another_machine_stays(places) -> None:
    runs, memory = places
    leftovers.begin(runs / "1", memory)
    note = runs / "1/shm.json"
    note.write_text(note.read_text().replace('"pid": ', '"pid": 999').replace("pid:[", "pid:[9"))
    (memory / "mpich_shm_new").write_bytes(b"x")
    aged(memory)
    assert leftovers.clear_dead(runs, memory) == 0 and note.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"pid": "x"}', '{"place": 1, "pid": [], "before": 3}']
)
def test_note_that_is_damaged_removes_nothing(places, text: str) -> None:
    runs, memory = places
    (runs / "1/shm.json").write_text(text)
    aged(memory)
    assert leftovers.clear_dead(runs, memory) == 0 and names(memory) == ["mpich_shm_before"]


def test_run_that_ends_takes_its_note_back(places) -> None:
    runs, memory = places
    assert leftovers.begin(runs / "1", memory) == {memory / "mpich_shm_before"}
    leftovers.end(runs / "1")
    assert list((runs / "1").iterdir()) == []
