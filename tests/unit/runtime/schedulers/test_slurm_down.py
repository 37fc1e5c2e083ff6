"""Nodes that Slurm counts as failed, by what sinfo says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from fairlead.launch.guard import guarded
from fairlead.schedulers.model import Allocation
from fairlead.schedulers.registry import down
from fairlead.schedulers.slurm import SCHEDULER

JOB = Allocation("slurm", "7", 4, ("n1", "n2", "n3", "n4"))
# As Slurm 22.05 printed it on a cluster of four nodes.
SINFO = """#!/bin/sh
echo "$*" >"${0%/*}/asked"
printf 'n1 allocated\\nn1 allocated\\nn2 down*\\nn3 mixed*\\nn4 drained\\n'
"""


def test_nodes_that_are_down_or_silent_are_failed_and_drained_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "sinfo").write_text(SINFO)
    (tmp_path / "sinfo").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert down(JOB, environ) == {"n2": "Slurm: down*", "n3": "Slurm: mixed*"}
    assert "--nodes=n1,n2,n3,n4" in (tmp_path / "asked").read_text()
    down(JOB, environ, ("n2",))
    assert "--nodes=n2 " in (tmp_path / "asked").read_text()


def test_nothing_is_known_to_have_failed_without_a_job_or_a_scheduler_that_says_so() -> None:
    assert down(None, {}) == {}
    assert down(JOB, {"PATH": "/nonexistent"}) == {}
    assert down(Allocation("cobalt", "7", 1, ("n1",)), {}) == {}


def test_guard_runs_on_another_node_and_without_the_jobs_own_options() -> None:
    environ = {"SLURMD_NODENAME": "n1", "SLURM_CONF": "/c", "SLURM_NTASKS": "4", "PATH": "/bin"}
    words, env = SCHEDULER.guard(JOB, environ)
    assert "--nodelist=n4" in words and "--jobid=7" in words and "--nodes=n1 " in words[-1]
    assert env == {"SLURM_CONF": "/c", "PATH": "/bin"}


def test_guard_acts_on_each_state_of_a_node_that_is_down_and_on_no_other(tmp_path: Path) -> None:
    words, _ = SCHEDULER.guard(JOB, {"SLURMD_NODENAME": "n1"})
    script = words[-1].replace("while sleep 15", "for once in 1")
    for name in ("scontrol", "scancel"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} $* >>{tmp_path}/done\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def acts(state: str) -> bool:
        (tmp_path / "sinfo").write_text(f"#!/bin/sh\nprintf '{state}\\n{state}\\n'\n")
        (tmp_path / "sinfo").chmod(0o755)
        (tmp_path / "done").unlink(missing_ok=True)
        subprocess.run(["sh", "-c", script], env=path, check=True, stderr=subprocess.DEVNULL)
        return (tmp_path / "done").exists()

    assert acts("down* Not responding") and acts("fail none")
    assert acts("mixed* Not responding")  # down, and still counted as allocated
    assert not any(map(acts, ("mixed none", "mixed* none", "idle none", "allocated none")))


def test_guard_reports_where_the_jobs_output_goes(tmp_path: Path) -> None:
    code = "from tests.unit.runtime.schedulers.test_slurm_down import *; print(SCHEDULER.guard(JOB, {'SLURMD_NODENAME': 'n1'})[0][-1])"
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=log, text=True, check=True
        )
    assert f"with it the script of job 7: requeued' >>{tmp_path}/log; " in done.stdout


def test_guard_is_none_where_this_is_not_one_of_several_nodes_of_the_job() -> None:
    assert SCHEDULER.guard(JOB, {})[0] == ()  # at a shell of salloc on a login node
    assert SCHEDULER.guard(Allocation("slurm", "7", 1, ("n1",)), {"SLURMD_NODENAME": "n1"})[0] == ()


def test_guard_ends_with_what_it_guards(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 60\n")
    (tmp_path / "srun").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1"}
    with guarded(JOB, environ):
        while not (pid := tmp_path / "pid").exists() or not pid.read_text().strip():
            time.sleep(0.01)
        assert Path(f"/proc/{pid.read_text().strip()}").exists()
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
