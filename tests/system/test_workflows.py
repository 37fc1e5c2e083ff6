"""The workflow of `examples/universe`, and exports for engines of workflows: in the real engines, killed and gone on with."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import hosts, slurm
from tests.system.slurm import Cluster, waited
from tests.system.test_export_users import SNAKEFILE, Export
from tests.system.test_user import User, user

from fairlead.engines.apptainer import find_apptainer
from fairlead.ml.data.manifest import read_manifest
from fairlead_build.build import build

__all__ = ["user"]  # a fixture

UNIVERSE = hosts.ROOT / "examples/universe"
BIN = Path(sys.executable).parent
SMALL = ("cells=16", "universes=4", "steps=20", "trials=1")
# A round of simulations that lasts long enough to be killed in its midst.
LONG = ("cells=24", "universes=30", "steps=20", "trials=1")
OF_SLURM = (
    "--executor", "slurm", "--slurm-keep-successful-logs", "--jobs", "2", "--latency-wait", "20", "--slurm-no-account",
    "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2",
    "--default-resources", "slurm_partition='all'", "runtime=10", "mem_mb=500",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def base() -> None:
    build("mpi-base")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("slurmd runs jobs of others: only root can start it")
    with slurm.slurm(names=slurm.NODES[:2]) as made:
        # The executor's job steps drop all variables of Slurm's, also that of its configuration, which is in no usual place.
        programs = made.folder / "with-configuration"
        programs.mkdir()
        for name in ("srun", "scontrol", "scancel", "squeue", "sbatch"):
            line = f'SLURM_CONF={made.environ["SLURM_CONF"]} exec {shutil.which(name, path=made.environ["PATH"])} "$@"'
            (programs / name).write_text(f"#!/bin/sh\n{line}\n")
            (programs / name).chmod(0o755)
        made.environ["PATH"] = f"{programs}:{made.environ['PATH']}"
        yield made


def _env() -> dict[str, str]:
    engine = Path(find_apptainer()).parent  # which Snakemake looks for
    return {**hosts.READER, "PATH": f"{BIN}:{engine}:{os.environ['PATH']}"}


def _started(folder: Path, *words: str) -> subprocess.Popen[str]:
    log = (folder / "log").open("w")
    return subprocess.Popen(
        [BIN / "snakemake", *words], cwd=folder, env=_env(), stdin=subprocess.DEVNULL, stdout=log, text=True,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def _snakemake(folder: Path, *words: str, code: int = 0, limit_s: float = 560) -> str:
    """What Snakemake prints."""
    process = _started(folder, *words)
    assert process.wait(limit_s) == code, (folder / "log").read_text()
    return (folder / "log").read_text()


def _chain(config: tuple[str, ...], *words: str) -> tuple[str, ...]:
    return ("-s", str(UNIVERSE / "Snakefile"), *words, "--cores", "2", "--config", *config)


def _rules(text: str) -> list[str]:
    """The rules that ran, in order."""
    return re.findall(r"^(?:local)?rule (\w+):", text, re.MULTILINE)


def _alive(word: str) -> bool:
    """Whether a process has a word in its command line."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in file.read_bytes():
                return True
        except OSError:
            continue
    return False


def _errors(folder: Path) -> dict[tuple[str, str], float]:
    """By round, and by what made the displacements."""
    with (folder / "summary.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    return {(row["round"], row["by"]): float(row["displacement_cells"]) for row in rows}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the chain was killed as it simulated, and then went to its end; and what that printed."""
    build("tensorflow")
    folder = tmp_path_factory.mktemp("universe")
    process = _started(folder, *_chain(SMALL, "parameters/0.json"))
    assert process.wait(120) == 0
    process = _started(folder, *_chain(SMALL))
    tag = f"{folder}/shards"
    waited(lambda: "rule simulate" in (folder / "log").read_text(), 60, "no simulation begins")
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "shards/0").exists(), tag
    waited(lambda: not _alive("--parameters parameters/0.json"), 30, "ranks go on")
    _snakemake(folder, *_chain(SMALL, "--unlock"))
    return folder, _snakemake(folder, *_chain(SMALL, "--rerun-incomplete"))


@pytest.mark.full
def test_killed_chain_goes_on_with_what_is_missing(killed: tuple[Path, str]) -> None:
    folder, text = killed
    assert _rules(text) == ["simulate", "tune", "train", "use", "summarize", "all"]
    assert text.count("proved on 2 ranks") >= 3
    assert read_manifest(folder / "shards/0", "train", verify=True).total == 4
    errors = _errors(folder)
    assert errors["0", "stand-in"] < errors["0", "linear theory"]
    assert "Nothing to be done" in _snakemake(folder, *_chain(SMALL))
    _snakemake(folder, *_chain(SMALL, "--report", "report.html"))
    assert "summary.csv" in (folder / "report.html").read_text()
    replay = (sys.executable, "-m", "fairlead", "replay")
    for words in (("records/simulate-0",), ("records/train-0", "--dry-run")):
        done = hosts.program(*replay, *words, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_new_round_is_chosen_by_the_model_and_taken_in_by_one_command(
    killed: tuple[Path, str], tmp_path: Path
) -> None:
    folder = tmp_path / "universe"
    shutil.copytree(killed[0], folder)
    text = _snakemake(folder, *_chain((*SMALL, "rounds=2")))
    assert _rules(text) == ["choose", "simulate", "train", "use", "summarize", "all"]
    chosen = json.loads((folder / "parameters/1.json").read_text())
    assert [row[0] for row in chosen] == ["train"] * 4
    # Shards of others become a round of their own.
    shutil.copytree(folder / "shards/1", folder / "arrived/2")
    text = _snakemake(folder, *_chain((*SMALL, "rounds=2")))
    assert _rules(text) == ["take", "train", "use", "summarize", "all"]
    errors = _errors(folder)
    assert errors["2", "stand-in"] < errors["0", "stand-in"]


@pytest.mark.full
def test_chain_in_parsl_ends_with_the_same_files(tmp_path: Path) -> None:
    build("tensorflow")
    _parsl(tmp_path)
    words = [sys.executable, UNIVERSE / "parsl_universe.py", "--cells", "16", "--universes", "4"]
    words += ["--steps", "20", "--trials", "1"]
    for _ in range(2):  # the second time all is there
        done = subprocess.run(
            words, cwd=tmp_path, env=_env(), capture_output=True, text=True, timeout=300, check=False
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "used/0.json").read_text())["summary"]["ranks"] == 2


@pytest.mark.full
def test_rules_are_proved_jobs_of_slurm(cluster: Cluster, tmp_path: Path) -> None:
    build("tensorflow")
    words = ("-s", UNIVERSE / "Snakefile", "-d", tmp_path, *OF_SLURM, "--config", *SMALL)
    done = cluster.run(BIN / "snakemake", *words, limit_s=500)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = [path.read_text() for path in tmp_path.glob(".snakemake/slurm_logs/*/*/*.log")]
    assert sum("proved on 2 ranks" in log for log in logs) >= 4, logs
    assert ("0", "stand-in") in _errors(tmp_path)


def test_universe_is_the_same_on_any_number_of_ranks() -> None:
    results = []
    for ranks in (1, 2, 3, 4):
        words = ("run", "-q", "-n", ranks, "mpi-base", "--")
        program = ("python3", hosts.PROGRAMS / "universe_slabs.py", UNIVERSE)
        done = hosts.fairlead(*words, *program)
        assert done.returncode == 0, done.stdout + done.stderr
        results.append(json.loads(done.stdout.splitlines()[-1]))
    assert all(result["transform"] < 1e-12 for result in results)
    assert all(abs(result["growth"] - 1) < 0.05 for result in results)
    for result in results[1:]:
        assert result["numbers"] == pytest.approx(results[0]["numbers"], rel=1e-9)


@pytest.mark.full
def test_rules_of_the_profile_that_root_exported_are_jobs_of_another_user(
    cluster: Cluster, user: User, request: pytest.FixtureRequest
) -> None:
    out, file = user.shared / "profile", user.shared / "Snakefile"
    named = ("--mpi", user.shared / "mpich", "--image", user.image, "-o", out)
    done = cluster.fairlead("site", "export", "--for", "snakemake", *named)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "executor: slurm" in (out / "config.yaml").read_text()
    it = Export(user, out, request)
    it.installed("fairlead", "snakemake")
    file.write_text(SNAKEFILE.format(image=user.image))
    variables = {n: cluster.environ[n] for n in ("SLURM_CONF", "FAIRLEAD_SITES", "FAIRLEAD_SITE")}
    own = (user.shared / "bin", user.shared / "fairlead/apptainer/current/bin")
    path = (cluster.folder / "with-configuration", *own, cluster.folder / "slurm/usr/bin")
    default = (*OF_SLURM, "tasks=1", f"shell_exec='{out}/fairlead-rule'")
    words = it.words(
        "snakemake", "ranks.txt", "plain.txt", "-s", file, "--profile", out, *default,
        **variables, PATH=":".join([*map(str, path), "/usr/bin:/bin"]),
    )  # fmt: skip
    done = user.run(*words)
    logs = [path.read_text() for path in user.home.glob(".snakemake/slurm_logs/*/*.log")]
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{logs}"
    lines = sorted((user.home / "ranks.txt").read_text().splitlines())
    assert lines == ["0 of 2 on 5.0.2", "1 of 2 on 5.0.2"]
    assert "inside" in (user.home / "plain.txt").read_text()
    assert any("proved on 2 ranks" in log for log in logs), logs


def _parsl(folder: Path, *words: str | Path) -> None:
    done = hosts.fairlead("site", "export", "--for", "parsl", "--private", "-o", folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
