"""``--label`` and ``--output-dir`` with real launchers and engines: every line is its rank's."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import fairlead
from tests.system.test_failures import AS_ROOT

SCRIPT = """
from mpi4py import MPI
import os, sys
rank = MPI.COMM_WORLD.rank
for n in range(200):
    print(f"{rank} line {n} " + "x" * 300)
    print(f"{rank} error {n}", file=sys.stderr)
MPI.COMM_WORLD.Barrier()
sys.exit(5 * rank * int(os.environ.get("FAILS", "0")))
"""
PAIRS = [("mpich", "apptainer"), ("mpich", "podman"), ("openmpi", "charliecloud")]


def words(mpi: str, engine: str) -> tuple[str, ...]:
    prefix = hosts.mpich() if mpi == "mpich" else hosts.openmpi()
    image = hosts.image("mpi-base" if mpi == "mpich" else "mpi-base:openmpi")
    return ("-n", "2", "--engine", engine, "--mpi", str(prefix), str(image), "--")


def lines(kind: str, rank: int) -> list[str]:
    end = " " + "x" * 300 if kind == "line" else ""
    return [f"{rank} {kind} {n}{end}" for n in range(200)]


@pytest.mark.parametrize(("mpi", "engine"), PAIRS)
def test_label_names_the_rank_of_each_line(mpi: str, engine: str) -> None:
    done = fairlead(
        "run", "--quiet", "--label", *words(mpi, engine), "python3", "-c", SCRIPT, env=AS_ROOT
    )
    assert done.returncode == 0, done.stderr
    for text, kind in ((done.stdout, "line"), (done.stderr, "error")):
        for rank in range(2):
            label = f"[{rank}] "
            own = [x.removeprefix(label) for x in text.splitlines() if x.startswith(label)]
            assert [x for x in own if f" {kind} " in x] == lines(kind, rank)
    assert len(done.stdout.splitlines()) == 400


@pytest.mark.parametrize(("mpi", "engine"), PAIRS)
def test_output_dir_has_one_log_per_rank_and_the_failure_names_it(
    mpi: str, engine: str, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    asked = ("--json", "--output-dir", str(logs), "--env", "FAILS=1", *words(mpi, engine))
    done = fairlead("run", *asked, "python3", "-c", SCRIPT, env=AS_ROOT)
    assert done.returncode == 5, done.stderr
    assert " line 7 " not in done.stdout + done.stderr
    for rank in range(2):
        shown = (logs / f"rank.{rank}.log").read_text().splitlines()
        for kind in ("line", "error"):
            assert [x for x in shown if f" {kind} " in x] == lines(kind, rank)
    answer = json.loads(done.stdout)
    assert answer["output_dir"] == str(logs)
    assert answer["error"]["remedy"] == f"tail {logs}/rank.1.log"


WAITS = """
import sys, time
from pathlib import Path
print("before the end")
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


@pytest.mark.parametrize("more", [(), ("--label",)], ids=["plain", "label"])
def test_line_that_a_rank_prints_arrives_while_it_runs(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    """The rank ends once its line has been read: Python would keep it to the end, in a pipe."""
    end, image = tmp_path / "end", hosts.image("mpi-base")
    words = ("run", "-n", "1", *more, "--bind", tmp_path, "--mpi", hosts.mpich(), image, "--", "python3", "-c", WAITS, end)  # fmt: skip
    line = [sys.executable, "-m", "fairlead", *map(str, words)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, env={**os.environ, **AS_ROOT}) as process:
        assert process.stdout
        read, until = b"", time.monotonic() + 60
        while b"before the end" not in read and time.monotonic() < until:
            if select.select([process.stdout], [], [], 1)[0]:
                read += os.read(process.stdout.fileno(), 4096)
        end.touch()
        assert process.wait(60) == 0 and b"before the end" in read


def test_output_dir_together_with_label_is_a_usage_error(tmp_path: Path) -> None:
    done = fairlead("run", "--label", "--output-dir", str(tmp_path), "mpi-base", "--", "true")
    assert done.returncode == 2 and "--label" in done.stderr
