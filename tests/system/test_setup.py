"""``make setup`` in a fresh clone: killed, taken up again, and then with nothing left to do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """This checkout's tracked files, in a folder with a blank in its name."""
    folder = tmp_path / "a clone"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def make(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *words], cwd=clone, env=environ(clone), capture_output=True, text=True, check=False
    )


def environ(clone: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    return kept | {f"XDG_{name}_HOME": str(clone.parent / name) for name in ("CACHE", "DATA")}


def test_make_without_a_target_lists_the_tasks(clone: Path) -> None:
    done = make(clone)
    assert done.returncode == 0
    for task in ("setup", "demo", "test", "check", "fix", "bench", "clean"):
        assert f"make {task} " in done.stdout
    assert not (clone / ".venv").exists()


@pytest.mark.full
def test_make_setup_killed_then_again_is_whole_and_then_does_nothing(clone: Path) -> None:
    process = subprocess.Popen(
        ["make", "setup"],
        cwd=clone,
        env=environ(clone),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (clone / ".venv/bin/pip").exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (clone / ".venv/.fairlead-made").exists()

    done = make(clone, "setup")
    assert done.returncode == 0, done.stdout + done.stderr
    stamps = [clone / ".venv/.fairlead-made", clone / ".venv/.fairlead-ready"]
    before = [stamp.stat().st_mtime_ns for stamp in stamps]
    again = make(clone, "setup")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert [stamp.stat().st_mtime_ns for stamp in stamps] == before

    shutil.rmtree(clone.parent / "DATA")
    assert make(clone, "setup").returncode == 0
    assert (clone.parent / "DATA/fairlead/mpi").is_dir()
