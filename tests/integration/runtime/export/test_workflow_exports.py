"""Exports for engines of workflows: what their programs make of the commands that an engine gives them."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.unit.runtime.export.test_export import FACTS, made, refusal

# Prints its arguments, one a line.
SAYS = '#!/bin/sh\nprintf "%s\\n" "$@"\n'
SLURM = replace(
    FACTS.site, scheduler=replace(FACTS.site.scheduler, kind="slurm", directives=("-C cpu",))
)


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    """The program of Snakemake's profile, whose fairlead says what it is given."""
    says = tmp_path / "fairlead"
    says.write_text(SAYS)
    says.chmod(0o755)
    facts = replace(FACTS, image=None, folder=str(tmp_path), fairlead=(str(says),))
    path = tmp_path / "fairlead-rule"
    path.write_text(made("snakemake", facts)["fairlead-rule"].text)
    path.chmod(0o755)
    return path


def given(rule: Path, command: str, code: int = 0) -> list[str]:
    """What fairlead gets, or what is refused."""
    done = subprocess.run([rule, "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return (done.stdout or done.stderr).splitlines()


# As snakemake/deployment/singularity.py writes it.
EXEC = " apptainer  exec --home '/work' {args} {image} fairlead-rule -c '{inner}'"


def test_command_in_a_container_is_one_process_in_its_image(rule: Path) -> None:
    args = "--nv --bind '/data':'/mnt/data' --pwd '/work/shadow'"
    inner = "cat a | wc -l > b".replace("'", r"'\''")
    words = given(rule, EXEC.format(args=args, image="/images/a.sif", inner=inner))
    assert words == [
        "run", "--engine-arg=--nv", "--bind", "/data:/mnt/data", "--workdir", "/work/shadow", "-n", "1",
        "/images/a.sif", "--", "bash", "-c", "set -euo pipefail; cat a | wc -l > b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("launch", "options"),
    [
        ("mpiexec -n 4", ["-n", "4"]),
        ("mpirun -np 4", ["-np", "4"]),
        ("srun --ntasks=4 -N 2", ["--ranks=4", "-N", "2"]),
        ("srun --ntasks 4 --nodes=2", ["-n", "4", "--nodes=2"]),
    ],
)
def test_launch_in_a_container_is_one_of_fairlead(
    launch: str, options: list[str], rule: Path
) -> None:
    inner = f"X=1; {launch} python3 -c '\\''a b'\\'' | cat"
    words = given(rule, EXEC.format(args="", image="img", inner=inner))
    assert words == ["run", *options, "img", "--", "python3", "-c", "a b"]


def test_option_of_a_launch_that_is_not_known_is_refused(rule: Path) -> None:
    inner = EXEC.format(args="", image="img", inner="mpiexec --oversubscribe -n 2 true")
    (line,) = given(rule, inner, code=2)
    assert "--oversubscribe" in line and "-n and -N" in line


def test_command_without_a_container_is_refused_in_one_message(rule: Path) -> None:
    lines = given(rule, "python3 plot.py \\\n  --more", code=1)
    assert [line.partition(":")[0] for line in lines] == ["error", "where", "why", "next"]
    assert "python3 plot.py" in lines[1]


def test_profile_of_a_cluster_sends_jobs_and_names_its_program() -> None:
    config = yaml.safe_load(
        made("snakemake", replace(FACTS, site=SLURM, folder="/p"))["config.yaml"].text
    )
    assert config["executor"] == "slurm"
    assert config["default-resources"] == ["shell_exec='/p/fairlead-rule'", "tasks=1"]
    refusal("snakemake", replace(FACTS, folder="/with blank"))


def test_module_for_parsl_is_python_of_the_sites_provider() -> None:
    text = made("parsl", replace(FACTS, site=SLURM))["fairlead_parsl.py"].text
    ast.parse(text)
    assert "from parsl.providers import SlurmProvider" in text and 'mpi_launcher="srun"' in text
    assert "#SBATCH -C cpu" in text and repr(FACTS.image and FACTS.image.path) in text


def test_configuration_for_nextflow_names_the_sites_executor() -> None:
    files = made("nextflow", replace(FACTS, site=SLURM, folder="/n"))
    assert "executor = 'slurm'" in files["nextflow.config"].text
    assert "shell = ['/n/fairlead-process']" in files["nextflow.config"].text
    assert "{FAIRLEAD_IMAGE:-/images/mpi-base.squashfs}" in files["fairlead-process"].text


def test_words_of_a_job_for_flux_are_the_same_behind_its_shell(tmp_path: Path) -> None:
    """`flux batch --wrap` joins words by blanks, into a script of sh."""
    flux = tmp_path / "flux"
    flux.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    says = tmp_path / "fair lead"
    says.write_text(SAYS)
    submit = tmp_path / "fairlead-submit"
    submit.write_text(made("flux", replace(FACTS, fairlead=(str(says),)))["fairlead-submit"].text)
    for program in (flux, says, submit):
        program.chmod(0o755)
    odd = ["echo", "a b", "it's", "$HOME", "*", ""]
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [submit, "-n", "2", "im g", *odd], capture_output=True, text=True, check=True, env=path
    )
    assert done.stdout.splitlines()[-8:] == ["im g", "--", *odd]
