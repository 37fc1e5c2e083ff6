"""What each rank of a job costs the file system: at 10,000 ranks every file that one opens is a storm."""

from __future__ import annotations

from benchmarks.bars import job_start
from benchmarks.result import seconds_of
from benchmarks.sides import image

# A rank more of a no-op in `mpi-base`, with engine, MPI and Python; measured were 198 to 239, 1,198 and 812 kB.
MOST = {"opens": 300, "looks": 1500, "bytes": 1_000_000}


def test_rank_more_of_a_launch_opens_few_files() -> None:
    image("mpi-base")
    seconds_of(job_start.run_argv(2))  # what the first run of an image makes
    for _ in range(3):  # a launch may also clean up what killed ones of other tests left
        found = job_start.counts(2, job_start.run_argv)
        assert found["opens"] > 50, "it really started Python"
        more = {name: value for name, value in found.items() if value > MOST[name]}
        if not more:
            break
    assert not more
