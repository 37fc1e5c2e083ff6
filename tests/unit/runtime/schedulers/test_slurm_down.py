"""Nodes that Slurm counts as failed, by what sinfo says."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.schedulers.model import Allocation
from fairlead.schedulers.registry import down

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
