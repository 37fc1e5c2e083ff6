"""Whatever a launched program does to get away, nothing of it survives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from tests.support.living import alive

from fairlead.launch import processes

# Each writes the pid of its last process to the file it is given, and goes on for ever.
PLAIN = 'echo $$ >"$1"; sleep 600'
DEAF = "trap '' TERM INT HUP QUIT; echo $$ >\"$1\"; while :; do sleep 600; done"
DAEMON = 'setsid setsid sh -c \'echo $$ >"$1"; exec sleep 600\' x "$1" & sleep 600'
# Its parents have gone, and so has the marker: only adoption finds it.
UNMARKED = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        words = ["sh", "-c", 'echo $$ >"$1"; exec sleep 600', "x", sys.argv[1]]
        os.execve("/bin/sh", words, {"PATH": "/bin:/usr/bin"})
    os._exit(0)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
DEAF_DAEMON = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""
# Starts a program; at a line on stdin ends it, and prints what survived.
ENDS = """
import os, subprocess, sys
from fairlead.launch import processes
started = processes.start(sys.argv[1:], dict(os.environ), str(os.getpid()))
sys.stdin.readline()
processes.end(started, grace_s=0.3)
assert started.process.poll() is not None
for pid in processes.survivors(started):
    subprocess.run(["ps", "-o", "pid,ppid,stat,args", "-p", str(pid)])
"""


@pytest.fixture
def run_id() -> str:
    """No other worker's: `end` kills every process of the machine that carries the marker."""
    return uuid.uuid4().hex


def wait_for(path: Path) -> int:
    until = time.monotonic() + 120  # shared machines start programs late
    while time.monotonic() < until:
        if path.exists() and path.read_text().strip():
            return int(path.read_text())
        time.sleep(0.01)
    raise AssertionError("it did not start")


@pytest.mark.parametrize(
    "program",
    [
        ("sh", "-c", PLAIN, "x"),
        ("sh", "-c", DEAF, "x"),
        ("sh", "-c", DAEMON, "x"),
        (sys.executable, "-c", UNMARKED),
        (sys.executable, "-c", DEAF_DAEMON),
    ],
    ids=["plain", "deaf", "daemon", "unmarked", "deaf-daemon"],
)
def test_end_leaves_no_survivor(program: tuple[str, ...], tmp_path: Path) -> None:
    """In a process of its own: orphans that another test left would be adopted, and count as this run's."""
    pid_file = tmp_path / "pid"
    launching = subprocess.Popen(
        [sys.executable, "-c", ENDS, *program, str(pid_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = wait_for(pid_file)
    assert alive(pid)
    shown, _ = launching.communicate("end\n", timeout=60)
    assert not alive(pid)
    assert launching.returncode == 0 and shown == ""


def test_start_launcher_ends_when_this_process_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = (
        "import os, sys, time\n"
        "from fairlead.launch import processes\n"
        "processes.start(sys.argv[1:], dict(os.environ), str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    killed = subprocess.Popen(
        [
            sys.executable,
            "-c",
            program,
            "sh",
            "-c",
            'echo $$ >"$1"; exec sleep 600',
            "x",
            str(pid_file),
        ]
    )
    pid = wait_for(pid_file)
    killed.kill()
    killed.wait()
    until = time.monotonic() + 120
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(pid)


def test_end_orphan_of_a_launcher_that_ended_well_is_killed(tmp_path: Path, run_id: str) -> None:
    pid_file = tmp_path / "pid"
    started = processes.start(
        (sys.executable, "-c", UNMARKED, str(pid_file)), dict(os.environ), run_id
    )
    pid = wait_for(pid_file)
    assert started.process.wait() == 0
    assert alive(pid)
    assert processes.end(started) >= 1
    assert not alive(pid)


def test_end_leaves_other_children_of_this_process_alone(run_id: str) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        started = processes.start(("sleep", "600"), dict(os.environ), run_id)
        processes.end(started)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_end_of_a_program_that_ended_kills_nothing(run_id: str) -> None:
    started = processes.start(("true",), dict(os.environ), run_id)
    assert processes.wait(started.process, 30)
    assert processes.end(started) == 0


def test_wait_gives_up_after_its_time(run_id: str) -> None:
    started = processes.start(("sleep", "600"), dict(os.environ), run_id)
    assert not processes.wait(started.process, 0.05)
    processes.end(started)
    assert processes.wait(started.process, 30)


def test_start_marks_and_detaches(tmp_path: Path, run_id: str) -> None:
    out = tmp_path / "out"
    script = f'echo "${processes.MARKER}" "$(ps -o sid= -p $$)" $$ >"$1"'
    started = processes.start(("sh", "-c", script, "x", str(out)), dict(os.environ), run_id)
    started.process.wait()
    marker, session, pid = out.read_text().split()
    assert (marker, session) == (run_id, pid)


def test_start_of_no_program_is_an_error(run_id: str) -> None:
    with pytest.raises(OSError):
        processes.start(("/gone/mpiexec",), dict(os.environ), run_id)
