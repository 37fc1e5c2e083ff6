"""Known sums over NCCL: ``python3 -m fairlead.perf.measure.ranks.sums --config FILE`` on every rank, each with a GPU.

The same as ``python3 -m fairlead.prove --nccl-sums`` (:mod:`fairlead.base.nccl_sums`), with ranks from MPI. What a rank
cannot do ends up in the document too, so that the others do not wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.base import nccl_sums
from fairlead.perf.measure.program import read_settings, write_document


@dataclass(frozen=True)
class Settings:
    """How much is added up.

    Attributes:
        most: bytes of the largest all-reduce; ``repeat``: of each size.
    """

    out: Path
    most: int = 128 << 20  # where nccl-tests are quoted
    repeat: int = 20


def main(words: Sequence[str]) -> None:
    settings = read_settings(Settings, words)
    from fairlead.comm.mpi import connect

    connect()  # an exception of one rank ends all
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    hosts = world.allgather(MPI.Get_processor_name())
    local = hosts[: world.rank].count(hosts[world.rank])
    options = {
        "library": "",
        "most": str(settings.most),
        "repeat": str(settings.repeat),
        "meet": f"{settings.out}.meet",
    }
    results, failed = [], ""
    try:
        results = nccl_sums.run(options, world.rank, world.size, local)["ranks"]
    except (nccl_sums.Failed, OSError) as exc:
        failed = f"rank {world.rank}: {exc}"
    every = world.gather(failed)
    if every is not None:
        write_document(
            settings.out, {"ranks": results, "failed": [failure for failure in every if failure]}
        )


if __name__ == "__main__":
    main(sys.argv[1:])
