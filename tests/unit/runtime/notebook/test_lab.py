"""How a browser comes to JupyterLab."""

from __future__ import annotations

import getpass
import socket

import pytest

from fairlead.notebook.lab import way


@pytest.mark.parametrize(
    ("job", "host"),
    [
        ("SLURM_JOB_ID", "SLURM_SUBMIT_HOST"),
        ("PBS_JOBID", "PBS_O_HOST"),
        ("LSB_JOBID", "LSB_SUB_HOST"),
        ("JOB_ID", "SGE_O_HOST"),
    ],
)
def test_node_of_a_job_is_reached_through_the_host_it_was_submitted_from(
    job: str, host: str
) -> None:
    user, here = getpass.getuser(), socket.gethostname()
    assert way({job: "7", host: "login1.site"}) == ["-J", f"{user}@login1.site", f"{user}@{here}"]
    for environ in ({}, {host: "login1"}, {job: "7", host: here}, {job: "7", host: f"{here}.site"}):
        assert way(environ) == [f"{user}@{here}"]
