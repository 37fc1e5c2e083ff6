"""A start by phases, and the clocks of the hosts, on ranks of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts

import fairlead
from fairlead.base.serde import to_json
from fairlead.perf.measure.ranks.startup import INIT, INTERPRETER, LAUNCH, Settings
from fairlead.perf.measure.steps.startup import clock_findings


def begun(tmp_path: Path, around: str) -> Any:
    """What rank 0 tells of three ranks, each started by the shell line ``around``."""
    out, prefix = tmp_path / "start.json", hosts.mpich()
    config = tmp_path / "config.json"
    program = [sys.executable, "-m", "fairlead.perf.measure.ranks.startup", "--config", str(config)]
    config.write_text(json.dumps(to_json(Settings(out, time.time()))))
    words = ["sh", "-c", around, "rank", *program]
    done = subprocess.run(
        [prefix / "bin/mpiexec", "-n", "3", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(prefix / "lib"),
            "PYTHONPATH": str(Path(fairlead.__file__).parents[1]),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


def test_each_phase_takes_its_time_and_one_host_has_one_clock(tmp_path: Path) -> None:
    output = begun(tmp_path, 'exec "$@"')
    assert set(output["phases"]) == {LAUNCH, INTERPRETER, INIT} and output["clocks"] == {}
    assert all(-0.02 < seconds < 60 for seconds in output["phases"].values())
    assert "MPICH" in output["mpi"] and len(output["hosts"]) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="a host's name of one's own takes root")
def test_clock_of_another_host_that_is_ahead_is_named(tmp_path: Path) -> None:
    library = hosts.preloaded("shifted_clock", tmp_path)
    # Another name of the host in a namespace of its own, and another time.
    around = (
        f'if [ "$PMI_RANK" = 2 ]; then exec unshare --uts sh -c \'hostname elsewhere; '
        f'LD_PRELOAD={library} exec "$@"\' rank "$@"; fi; exec "$@"'
    )
    output = begun(tmp_path, around)
    ahead, sure = output["clocks"]["elsewhere"]
    assert abs(ahead - 100) < 1 + sure
    assert -1 < output["phases"][LAUNCH] < 60  # not a hundred seconds later
    (finding,) = clock_findings(output["clocks"])
    assert finding.what.startswith("the clock of elsewhere is 100 s ahead")
