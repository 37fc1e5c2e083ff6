"""The stand-in for a scheduler's program, and when a job is requeued; the scheduler's program here is a script."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.base.errors import Finding
from fairlead.launch.requeue import STAND_INS, Requeue
from fairlead.launch.warning_signals import WarningSignals
from fairlead.schedulers.model import Allocation

JOB = Allocation("slurm", "7", 2, ("n1", "n2"))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of the shell outside, whose ``scontrol`` writes down what it is asked for, and fails for `show fails`."""
    (tmp_path / "outside").mkdir()
    program = tmp_path / "outside/scontrol"
    program.write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n[ "$2" != fails ] || {{ echo no >&2; exit 3; }}\necho "did $1"\n'
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}/outside:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}


@contextmanager
def served(made: Requeue, signals: WarningSignals) -> Iterator[None]:
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.02):
            made.look(signals)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def asked(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What a rank gets, whose image has no ``scontrol``."""
    path = f"{folder / STAND_INS}:/usr/bin:/bin"
    return subprocess.run(
        ["scontrol", *words], capture_output=True, text=True, check=False, env={"PATH": path}
    )


def test_ranks_are_answered_by_the_program_outside(environ: dict[str, str], tmp_path: Path) -> None:
    found: list[Finding] = []
    made, signals = Requeue(JOB, 0, environ, found.append), WarningSignals("x", None, found.append)
    run = tmp_path / "run"
    run.mkdir()
    assert made.possible and made.lay(run)
    with served(made, signals):
        shown = asked(run, "show", "hostnames", "n[1-2]")
        assert (shown.returncode, shown.stdout) == (0, "did show\n")
        failed = asked(run, "show", "fails")
        assert (failed.returncode, failed.stderr) == (3, "no\n")
        other = asked(run, "requeue", "8")
        assert other.returncode == 1 and "job 7, and can requeue no other" in other.stderr
        assert not made.done
        update = asked(run, "update", "jobid=7")
        assert update.returncode == 127 and "not in this image" in update.stderr
        assert asked(run, "requeue", "7").returncode == 0 and made.done
    lines = (tmp_path / "asked").read_text().splitlines()
    assert lines == ["show hostnames n[1-2]", "show fails", "requeue 7"]
    assert [finding.check for finding in found] == ["requeue"]
    assert not list(run.glob("asked.*[!a-z]"))  # questions that were answered are gone


def test_program_of_that_name_in_the_image_does_the_rest(
    environ: dict[str, str], tmp_path: Path
) -> None:
    made = Requeue(JOB, 0, environ, print)
    made.lay(tmp_path)
    own = tmp_path / "image"
    own.mkdir()
    (own / "scontrol").write_text('#!/bin/sh\necho "own $*"\n')
    (own / "scontrol").chmod(0o755)
    done = subprocess.run(
        [tmp_path / STAND_INS / "scontrol", "ping", "a b"],
        capture_output=True, text=True, check=False, env={"PATH": f"{tmp_path / STAND_INS}:{own}:/bin:/usr/bin"},
    )  # fmt: skip
    assert done.stdout == "own ping a b\n", done.stderr


@pytest.mark.parametrize(
    ("lead_s", "warned", "handled", "code", "requeued"),
    [
        (60, True, 2, 0, True),  # they saved, and left
        (60, True, 0, 1, True),  # nothing handled it, and they did not come to an end
        (60, True, 0, 0, False),  # they were through
        (60, False, 0, 1, False),
        (0, True, 2, 1, False),  # not asked for
    ],
)
def test_job_is_requeued_after_the_warning(
    lead_s: int, warned: bool, handled: int, code: int, requeued: bool, environ: dict[str, str], tmp_path: Path,
) -> None:  # fmt: skip
    made = Requeue(JOB, lead_s, environ, lambda found: None)
    signals = WarningSignals("x", None, lambda found: None)
    signals.warned_at, signals.handled = time.monotonic() if warned else None, handled
    made.lay(tmp_path)
    made.look(signals)
    made.after(code)
    assert made.done is requeued and (tmp_path / "asked").exists() is requeued


def test_ranks_that_go_on_after_the_warning_get_sigterm(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    monkeypatch.setattr(WarningSignals, "send", lambda self, number: sent.append(number.name))
    made = Requeue(JOB, 100, environ, print)
    signals = WarningSignals("x", None, print)
    made.lay(tmp_path)
    signals.warned_at = time.monotonic() - 49
    made.look(signals)
    assert not sent  # half of the time is not over
    signals.warned_at = time.monotonic() - 51
    made.look(signals)
    made.look(signals)
    assert sent == ["SIGTERM"]


def test_scheduler_that_refuses_is_quoted(environ: dict[str, str], tmp_path: Path) -> None:
    found: list[Finding] = []
    (tmp_path / "outside/scontrol").write_text("#!/bin/sh\necho Access denied >&2; exit 1\n")
    made = Requeue(JOB, 60, environ, found.append)
    assert made.now().returncode == 1 and not made.done
    assert "Access denied" in found[0].why and found[0].what == "job 7 was not requeued"


def test_outside_of_jobs_there_is_nothing_to_requeue(tmp_path: Path) -> None:
    made = Requeue(None, 0, {}, print)
    assert not made.possible and not made.lay(tmp_path) and not any(tmp_path.iterdir())
