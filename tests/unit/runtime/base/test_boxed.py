"""Programs in a time box: what hangs, floods, crashes or leaves children behind ends, and is told."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.support.living import alive

from fairlead.base.process import Ran, run_boxed
from fairlead.base.system import Machine
from fairlead.base.timeboxed import answers, at_once, failed, settings, version, words


def sh(script: str, timeout_s: float = 20) -> Ran:
    return run_boxed(("sh", "-c", script), timeout_s=timeout_s)


def test_program_that_ends_is_reported_whole() -> None:
    ran = sh("echo out; echo err >&2; exit 3")
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "out\n", "err\n")
    assert run_boxed(("true",)).returncode == 0


def test_output_larger_than_a_pipe_is_whole() -> None:
    ran = sh("head -c 300000 /dev/zero | tr '\\0' x; echo end >&2")
    assert len(ran.stdout) == 300_000 and ran.stderr == "end\n"


def test_output_of_a_program_that_has_ended_is_not_lost_on_who_comes_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine with more to do than it can: the program is gone before it is read."""
    monkeypatch.setattr("fairlead.base.process._has_ended", lambda process: not process.wait(20))
    assert run_boxed(("sh", "-c", "echo out; echo err >&2")).stdout == "out\n"


def test_program_that_is_not_there_or_is_no_program(tmp_path: Path) -> None:
    assert run_boxed(("/nowhere/at-all",)).returncode == 127
    text = tmp_path / "text"
    text.write_bytes(b"\x7fELF nonsense")
    text.chmod(0o755)
    assert run_boxed((text,)).returncode == 126
    assert run_boxed((tmp_path,)).returncode == 126
    assert run_boxed(("a\0b",)).returncode == 126


def test_program_that_hangs_is_killed_with_its_children() -> None:
    ran = sh("sleep 300 & echo $!; echo $$; trap '' TERM; wait; sleep 300", timeout_s=2)
    assert ran.returncode == 124 and "no end after 2 s" in ran.stderr
    child, itself = map(int, ran.stdout.split())
    late = time.monotonic() + 10  # the child is not ours to wait for
    while alive(child) and time.monotonic() < late:
        time.sleep(0.01)
    assert not alive(child) and not alive(itself)


def test_child_that_holds_the_pipe_is_not_waited_for() -> None:
    ran = sh("setsid sleep 60 & echo $!; echo done")
    assert ran.returncode == 0 and ran.stdout.endswith("done\n")
    os.kill(int(ran.stdout.split()[0]), 9)


def test_program_that_closes_its_output_and_stays_is_ended() -> None:
    assert sh("exec >&- 2>&-; sleep 300", timeout_s=0.3).returncode == 124


def test_program_that_floods_is_ended_and_not_kept() -> None:
    ran = run_boxed(("yes",), timeout_s=60, most_bytes=1 << 16)
    assert ran.returncode == 124 and "more than 65536 bytes" in ran.stderr
    assert len(ran.stdout) < 1 << 18


def test_program_that_crashes_is_reported_by_its_signal() -> None:
    ran = sh("kill -SEGV $$")
    assert ran.returncode == -11 and "signal 11" in failed(ran)


def test_program_has_no_terminal_and_no_input() -> None:
    ran = sh("cat; tty; test -e /dev/tty && : < /dev/tty")
    assert "not a tty" in ran.stdout
    assert ran.returncode != 0  # /dev/tty cannot be opened


def test_output_that_is_no_text_is_shown_as_far_as_it_goes() -> None:
    assert sh(r"printf 'a\377b'").stdout == "a\ufffdb"


def test_machine_reads_plain_files_only(tmp_path: Path) -> None:
    machine = Machine()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    plain = tmp_path / "plain"
    plain.write_text("x")
    for odd in (fifo, tmp_path, Path("/dev/zero"), tmp_path / "none", Path("a\0b")):
        assert machine.read(str(odd)) is None
    assert machine.read(str(plain)) == "x"
    assert machine.listdir(str(plain)) == () and machine.listdir(str(fifo)) == ()
    assert machine.owner_mode("a\0b") is None and machine.matching("/[") == ()


def test_machine_in_another_root_is_asked_for_paths_as_they_are_there(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/cxi0").write_text("")
    machine = Machine({}, tmp_path)
    assert machine.matching("/dev/cxi*") == ("/dev/cxi0",)
    assert machine.read("/dev/cxi0") == "" and machine.access("/dev/cxi0", os.R_OK)
    assert machine.owner_mode("/dev/cxi0") is not None and machine.listdir("/dev") == ("cxi0",)


def test_answers_of_several_programs_cost_one_time_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.base.timeboxed.PATIENCE_S", 0.3)
    asked = {n: ("sh", "-c", f"{'sleep 300' if n else 'echo hi'}") for n in range(6)}
    found = answers(Machine(), asked)
    assert words(found[0]) == "hi\n\n"
    assert [found[n].returncode for n in range(1, 6)] == [124] * 5
    assert not words(found[1])


def test_at_once_keeps_what_was_raised_and_leaves_out_what_did_not_end() -> None:
    import threading

    never = threading.Event()

    def bad() -> int:
        raise ValueError("no")

    found = at_once({"good": lambda: 1, "bad": bad, "never": lambda: never.wait(30)}, 0.3)
    never.set()
    assert found["good"] == 1 and isinstance(found["bad"], ValueError) and "never" not in found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("apptainer version 1.4.5", "1.4.5"),
        ("singularity-ce version 4.1.3-150500.10.7", "4.1.3-150500.10.7"),
        ("slurm-wlm 22.05.8", "22.05.8"),
        ("Docker version 27.1.1, build 6312585", "27.1.1"),
        ("version: one", ""),
        ("", ""),
    ],
)
def test_version_is_the_first_thing_that_looks_like_one(text: str, found: str) -> None:
    assert version(text) == found


def test_settings_are_read_without_comments_and_quotes() -> None:
    text = '#a = 1\na = "two"  # three\nb=3\na = four\nc\n= d\n'
    assert settings(text, ("a", "b", "c", "")) == {"a": "four", "b": "3", "": "d"}


def test_boxed_program_does_not_outlive_an_interruption() -> None:
    """Ctrl-C reaches us only: the program is in a session of its own."""
    code = (
        "import os, signal, threading\n"
        "from fairlead.base.process import run_boxed\n"
        "threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    run_boxed(('sh', '-c', 'echo $$ > $OUT; exec sleep 300'), timeout_s=60)\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "pid")
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OUT": str(out)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == "interrupted\n", done.stderr
        assert not alive(int(out.read_text()))
