"""``python3 -m fairlead.data.generate --out DIR``: writes the synthetic HEP-CNN data, in parallel.

Shards that are there and whole are kept, so an interrupted run goes on where it was. What is
written depends on the seed and the counts, not on the number of processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from fairlead.data import VERSION, hep
from fairlead.data.shards import is_whole, shard_path, write_shard
from fairlead.paths import locked
from fairlead.train.events import EventLog


@dataclass(frozen=True)
class DataSet:
    """What to generate.

    Attributes:
        train, val: events in each split.
        per_shard: events in a file; the last file of a split may have fewer.
        seed: of all events.
        size: pixels along each edge.
    """

    train: int
    val: int
    per_shard: int = 500
    seed: int = 1
    size: int = 64

    def jobs(self, folder: Path) -> Iterator[Job]:
        """One job a file, in order."""
        for split, events in (("train", self.train), ("val", self.val)):
            for index, start in enumerate(range(0, events, self.per_shard)):
                count = min(self.per_shard, events - start)
                yield Job(
                    shard_path(folder, split, index), self.seed, split, index, count, self.size
                )


@dataclass(frozen=True)
class Job:
    """One file to write."""

    path: Path
    seed: int
    split: str
    index: int
    events: int
    size: int

    @property
    def identity(self) -> str:
        """What the events depend on; kept in the file."""
        return (
            f"fairlead.data.hep v{VERSION} seed={self.seed} split={self.split}"
            f" index={self.index} events={self.events} size={self.size}"
        )

    def run(self) -> int:
        """Writes the file and returns its number of events."""
        events = hep.shard(self.seed, self.split, self.index, self.events, self.size)
        write_shard(self.path, events, self.identity)
        return self.events


def generate(data: DataSet, folder: Path, processes: int, log: EventLog) -> None:
    """Makes ``folder`` hold exactly the files of ``data``, keeping those that are whole.

    Reports ``start`` (events in all), ``shard`` (events done so far) and ``done``.
    """
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):  # a second writer waits, then finds all files whole
        _generate(data, folder, processes, log)
    log.write("done", events=data.train + data.val, seconds=time.monotonic() - begun)


def _generate(data: DataSet, folder: Path, processes: int, log: EventLog) -> None:
    jobs = list(data.jobs(folder))
    missing = [job for job in jobs if not is_whole(job.path, job.identity, job.events)]
    done = sum(job.events for job in jobs) - sum(job.events for job in missing)
    log.write("start", events=sum(job.events for job in jobs), kept=done)
    wanted = {job.path for job in jobs}
    leftovers = [*folder.glob("hep_*_*.h5"), *folder.glob(".hep_*.partial")]
    for path in leftovers:
        if path not in wanted:
            path.unlink()
    # spawn: a forked child would share this process's BLAS and HDF5 state
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(missing)) or 1, mp_context=context) as pool:
        for future in as_completed([pool.submit(Job.run, job) for job in missing]):
            done += future.result()
            log.write("shard", events=done)


def main() -> None:
    """The command line; ``--help`` tells."""
    parser = argparse.ArgumentParser(prog="python3 -m fairlead.data.generate", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--train", type=int, default=4000, help="training events")
    parser.add_argument("--val", type=int, default=2000, help="held-out events")
    parser.add_argument("--per-shard", type=int, default=500, help="events in a file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--events-file", type=Path, help="progress as JSON lines, instead of text")
    given = parser.parse_args()
    data = DataSet(given.train, given.val, given.per_shard, given.seed)
    generate(data, given.out, given.processes, EventLog(given.events_file))


if __name__ == "__main__":
    main()
