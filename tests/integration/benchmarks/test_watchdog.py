"""Launches that make no progress: what is written down about them, and that nothing is left of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from benchmarks import sides, watchdog

# A launcher whose rank is in another session, as a proxy's are, waits for it.
LAUNCHER = """
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
sys.exit(rank.wait())
"""
STANDS = "import os, time; print('8 bytes', os.getpid(), flush=True); time.sleep(600)"


def launch(rank: str) -> list[str]:
    return [sys.executable, "-c", LAUNCHER, rank]


def test_launch_that_prints_nothing_is_described_and_ended(tmp_path: Path) -> None:
    with pytest.raises(watchdog.Stuck) as caught:
        watchdog.run(launch(STANDS), os.environ, quiet_s=1.5, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    assert str(file) in str(caught.value)
    text = file.read_text()
    (rank,) = [line.split()[2] for line in text.splitlines() if line.startswith("8 bytes")]
    described = text[text.index(f"== process {rank}: {sys.executable}") :]
    assert f"thread {rank}: S, last on core " in described
    assert "Cpus_allowed_list:" in described and "system call " in described
    assert text.count("== process ") == 2
    ended = Path("/proc", rank, "status")  # init may not have asked for it yet
    assert not ended.exists() or "\nState:\tZ" in ended.read_text()


def test_launch_that_prints_now_and_then_may_take_longer(tmp_path: Path) -> None:
    rank = "import time\nfor i in range(8): print(i, flush=True); time.sleep(0.5)"
    begun = time.monotonic()
    output = watchdog.run(launch(rank), os.environ, quiet_s=3, folder=tmp_path)
    assert output.split() == list("01234567") and time.monotonic() - begun > 3
    assert list(tmp_path.iterdir()) == []


def test_launch_that_fails_brings_what_it_said(tmp_path: Path) -> None:
    rank = "import sys; print('a row'); sys.exit('no such MPI')"
    with pytest.raises(RuntimeError, match="ended with code 1: no such MPI"):
        watchdog.run(launch(rank), os.environ, folder=tmp_path)


def test_functions_are_named_where_no_debugger_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(watchdog.Stuck):
        watchdog.run(launch(STANDS), os.environ, quiet_s=1.5, folder=tmp_path)
    (file,) = tmp_path.glob("stuck-*")
    stacks = [line for line in file.read_text().splitlines() if line.startswith("main thread: ")]
    assert len(stacks) == 2 and all("main" in line for line in stacks), stacks
    assert any("nanosleep" in line for line in stacks), stacks


def test_processes_that_an_engine_hid_the_environment_of_are_found(tmp_path: Path) -> None:
    rank = "import os; os.execve('/bin/sleep', ['sleep', '600'], {})"
    with pytest.raises(watchdog.Stuck):
        watchdog.run(launch(rank), os.environ, quiet_s=1.5, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    (pid,) = re.findall(r"^== process (\d+): sleep 600", text, re.MULTILINE)
    ended = Path("/proc", pid, "status")
    assert not ended.exists() or "\nState:\tZ" in ended.read_text()


KILLED = """
import sys, time
from pathlib import Path
from benchmarks import sides, watchdog
with watchdog.swept(Path(sys.argv[1])):
    Path(sys.argv[1], "mpich_shm_mine").write_bytes(b"x")
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["ended by an error", "killed"])
def test_shared_memory_of_a_launch_that_did_not_end_by_itself_is_removed(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    memory = tmp_path / "shm"
    memory.mkdir()
    (memory / "mpich_shm_before").write_bytes(b"x")
    if how == "killed":
        words = [sys.executable, "-c", KILLED, memory]
        paths = os.pathsep.join(sys.path)
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
        ) as run:
            assert run.stdout and run.stdout.readline() == "ready\n"
            run.kill()
    else:
        with pytest.raises(KeyboardInterrupt), watchdog.swept(memory):
            (memory / "mpich_shm_mine").write_bytes(b"x")
            os.utime(memory / "mpich_shm_mine", (time.time() - 5,) * 2)
            raise KeyboardInterrupt
    for path in memory.iterdir():
        os.utime(path, (time.time() - 5,) * 2)
    with watchdog.swept(memory):
        pass
    assert [path.name for path in memory.iterdir()] == ["mpich_shm_before"]


DEAF = """
import json, socket, sys, time
[path] = [word for word in sys.argv if word.endswith(".socket")]
link = socket.socket(socket.AF_UNIX)
if sys.argv[1] == "connects":
    link.connect(path)
    stream = link.makefile("rw")
    stream.write(json.dumps({"rank": 0}) + "\\n")
    stream.flush()
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["connects", "never connects"])
def test_side_that_does_not_answer_is_described_and_ended(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sides, "FAIRLEAD", (sys.executable, "-c", DEAF, how))
    monkeypatch.setattr(sides, "RESULTS", tmp_path)
    with tempfile.TemporaryDirectory(prefix="side-") as short:
        side = sides.Side("deaf", sides.Job("image", ["program.py"], ranks=1), Path(short))
        with pytest.raises(watchdog.Stuck, match="deaf"), side:
            side.ready(2).ask("step")
    (file,) = tmp_path.iterdir()
    assert "== process " in file.read_text() and "Cpus_allowed_list:" in file.read_text()
    assert side._process.poll() is not None
