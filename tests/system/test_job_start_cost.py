"""What each rank of a job costs the file system: at 10,000 ranks every file that one opens is a storm."""

from __future__ import annotations

import pytest
from benchmarks.bars import job_start
from benchmarks.result import seconds_of
from benchmarks.sides import image

# A rank more of a no-op in `mpi-base`, with engine, MPI and Python; measured were 198 to 239, 1,198 and 812 kB.
MOST = {"opens": 300, "looks": 1500, "bytes": 1_000_000}


@pytest.mark.alone  # next to other tests, a launch was seen to open more
def test_rank_more_of_a_launch_opens_few_files() -> None:
    image("mpi-base")
    seconds_of(job_start.run_argv(2))  # what the first run of an image makes
    found = job_start.counts(2, job_start.run_argv)
    assert found["opens"] > 50, "it really started Python"
    assert {name: value for name, value in found.items() if value > MOST[name]} == {}
