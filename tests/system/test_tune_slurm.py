"""Searches on several nodes: steps and jobs of a real Slurm, whose nodes fail, and hosts that mpiexec reaches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts, netns, slurm
from tests.system.slurm import Cluster, waited

from fairlead_build.build import build

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm, or hosts, here"),
]
TRIAL = hosts.PROGRAMS / "tune_hosts.py"
LINE = "[parameters.x]\nlow = 0.0\nhigh = 1.0\n"


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    build("mpi-base")


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with slurm.slurm() as made:
        yield made


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    with running.in_use():
        yield running


def _words(folder: Path, seconds: float, *words: str | Path) -> list[str]:
    (folder / "space.toml").write_text(LINE)
    mine = (
        "--space",
        folder / "space.toml",
        "-o",
        folder / "out",
        "--image",
        "mpi-base",
        "--seed",
        "3",
    )
    own = ("--ledger", folder / "ledger", "--trial", "{trial}", "--seconds", seconds)
    line = (
        sys.executable,
        "-m",
        "fairlead",
        "tune",
        TRIAL,
        *mine,
        "--bind",
        folder,
        *words,
        "--",
        *own,
    )
    return [str(word) for word in line]


def _started(cluster: Cluster, folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            words, stdout=log, stderr=log, env=cluster.environ, cwd=folder, stdin=subprocess.DEVNULL
        )


def _ledger(folder: Path) -> dict[str, Counter[str]]:
    """How often each trial has begun and ended."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    path = folder / "ledger"
    for line in path.read_text().splitlines() if path.exists() else []:
        what, trial, *_ = line.split()
        found[what][trial] += 1
    return found


def _nodes_of(folder: Path, trial: int) -> list[str]:
    """Where the last attempt of a trial began."""
    lines = [line.split() for line in (folder / "ledger").read_text().splitlines()]
    where: str = [words[3] for words in lines if words[:2] == ["begun", str(trial)]][-1]
    return where.split(",")


def _whole(folder: Path, trials: int) -> list[dict[str, Any]]:
    """The trials of a search, each of which came to its end once."""
    log = (folder / "log").read_text()
    found: list[dict[str, Any]] = json.loads((folder / "out/report.json").read_text())["trials"]
    assert [(t["number"], t["state"]) for t in found] == [(n, "complete") for n in range(trials)], (
        log
    )
    assert _ledger(folder)["ended"] == Counter(map(str, range(trials))), log
    return found


def _begun(folder: Path, count: int, limit_s: float = 90) -> None:
    waited(lambda: len(_ledger(folder)["begun"]) >= count, limit_s, f"{count} trials do not begin")


def test_trials_of_two_nodes_are_proved_steps_of_one_job_next_to_each_other(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = _words(tmp_path, 1, "-N", "2", "-n", "2", "--trials", "4", "--at-once", "2")
    assert _started(cluster, tmp_path, words).wait(180) == 0, (tmp_path / "log").read_text()
    trials = _whole(tmp_path, 4)
    assert "salloc --no-kill --ntasks=4 --nodes=4" in (tmp_path / "log").read_text()
    assert all(t["proof"].startswith("2 ranks") for t in trials)
    first, second = (set(_nodes_of(tmp_path, number)) for number in (0, 1))
    assert len(first) == len(second) == 2 and not first & second


def test_trials_on_a_node_that_fails_run_again_and_the_search_goes_on_with_fewer(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = _words(tmp_path, 3, "-N", "1", "-n", "1", "--trials", "12", "--at-once", "4")
    tuner = _started(cluster, tmp_path, words)
    _begun(tmp_path, 4)
    lost = _nodes_of(tmp_path, 2)[0]
    cluster.fail(lost)
    assert tuner.wait(240) == 0, (tmp_path / "log").read_text()
    trials = _whole(tmp_path, 12)
    again = [t for t in trials if t["lost"]]
    assert again and all(lost in t["lost"][0] and t["attempt"] == 2 for t in again), trials
    assert f"{lost} is lost; the search goes on without it" in (tmp_path / "log").read_text()
    assert _ledger(tmp_path)["begun"].total() == 12 + len(again)
    assert all(lost not in _nodes_of(tmp_path, t["number"]) for t in again)


def test_search_whose_whole_job_is_cancelled_goes_on_in_another_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = _words(tmp_path, 2, "-n", "1", "--trials", "6", "--at-once", "2")
    tuner = _started(cluster, tmp_path, words)
    _begun(tmp_path, 3)
    cluster.said("scancel", "--user=root")
    tuner.wait(60)
    waited(cluster.empty, 60, "the job is left")
    assert len(_ledger(tmp_path)["ended"]) < 6
    assert _started(cluster, tmp_path, words).wait(120) == 0, (tmp_path / "log").read_text()
    _whole(tmp_path, 6)


def test_jobs_outlive_the_tuner_and_the_next_one_takes_them_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = _words(
        tmp_path, 6, "-N", "2", "-n", "2", "--trials", "5", "--as-jobs", "--at-once", "2"
    )
    for count in (1, 3):
        tuner = _started(cluster, tmp_path, words)
        _begun(tmp_path, count)
        tuner.kill()
        tuner.wait()
        time.sleep(1)
        assert not cluster.empty(), "the jobs go on"
    waited(cluster.empty, 60, "jobs are left")  # they end while nobody waits for them
    assert _started(cluster, tmp_path, words).wait(180) == 0, (tmp_path / "log").read_text()
    trials = _whole(tmp_path, 5)
    assert [t["attempt"] for t in trials] == [1] * 5
    assert _ledger(tmp_path)["begun"].total() == 5, "no trial ran twice"
    assert all(t["proof"].startswith("2 ranks") for t in trials)


def test_job_that_ends_without_a_result_runs_again_and_one_beyond_its_time_is_cancelled(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = _words(tmp_path, 5, "-n", "1", "--trials", "2", "--as-jobs", "--at-once", "1")
    tuner = _started(cluster, tmp_path, words)
    _begun(tmp_path, 1)
    cluster.fail(_nodes_of(tmp_path, 0)[0])
    assert tuner.wait(180) == 0, (tmp_path / "log").read_text()
    first, second = _whole(tmp_path, 2)
    assert first["lost"] == ["its job ended without a result"] and not second["lost"]
    own = tmp_path / "limit"
    own.mkdir()
    words = _words(own, 60, "-n", "1", "--trials", "1", "--as-jobs", "--max-seconds", "3")
    assert _started(cluster, own, words).wait(120) == 1
    (trial,) = json.loads((own / "out/report.json").read_text())["trials"]
    assert trial["state"] == "failed" and "time limit of 3 s" in trial["why"]
    waited(cluster.empty, 30, "its job is left")


def test_hosts_by_name_are_shared_out_among_trials_of_mpiexec(tmp_path: Path) -> None:
    with netns.switched(4) as nodes:
        rsh = netns.launcher(nodes[0], hosts.mpich() / "bin/mpiexec.hydra").with_name("rsh")
        extra = [f"--launcher-arg={word}" for word in (*netns.MPICH_RSH, rsh)]
        names = ",".join(node.name for node in nodes)
        words = _words(
            tmp_path, 1, "--mpi", hosts.mpich(), *extra, "--hosts", names, "-N", "2", "-n", "2", "--trials", "4",
        )  # fmt: skip
        done = subprocess.run(
            nodes[0].words(*words), capture_output=True, text=True, timeout=200, check=False
        )
    (tmp_path / "log").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = _whole(tmp_path, 4)
    assert all(t["proof"].startswith("2 ranks") for t in trials)
    first, second = (set(_nodes_of(tmp_path, number)) for number in (0, 1))
    assert len(first) == len(second) == 2 and not first & second
