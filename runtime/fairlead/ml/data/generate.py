"""``python3 -m fairlead.ml.data.generate --out DIR``: writes synthetic data of a model, in parallel.

Existing whole files are kept, so an interrupted run continues. The files depend on the data set, the seed, the counts,
the size and the format, not on the number of processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.data_list import ListedFile, listed, read_list, write_list
from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import locked
from fairlead.ml import registry
from fairlead.ml.data.files import FORMATS, is_whole, write_shard
from fairlead.ml.train.events import EventLog


@dataclass(frozen=True)
class DataSet:
    """What to generate.

    Attributes:
        train, val: samples in each split.
        per_shard: samples in a file; the last file of a split may have fewer. None for the data set's own.
        seed: of all samples.
        size: pixels or voxels along each edge; None for the data set's own.
        kind: the name of a :class:`fairlead.ml.data.kind.DataKind`.
        format: a key of :data:`fairlead.ml.data.files.FORMATS`.
    """

    train: int
    val: int
    per_shard: int | None = None
    seed: int = 1
    size: int | None = None
    kind: str = "hep"
    format: str = "hdf5"

    def jobs(self, folder: Path) -> Iterator[Job]:
        """One job a file, in order."""
        each = self.per_shard or registry.data_kind(self.kind).per_shard
        for split, events in (("train", self.train), ("val", self.val)):
            for index, start in enumerate(range(0, events, each)):
                path = folder / f"{self.kind}_{split}_{index:05d}{FORMATS[self.format]}"
                yield Job(self, path, split, index, min(each, events - start))


@dataclass(frozen=True)
class Job:
    """One file to write."""

    data: DataSet
    path: Path
    split: str
    index: int
    events: int

    @property
    def size(self) -> int:
        """Pixels or voxels along each edge."""
        own = registry.data_kind(self.data.kind).size
        return own if self.data.size is None else self.data.size

    @property
    def identity(self) -> str:
        """The facts that determine the samples; kept in the file."""
        kind, seed = registry.data_kind(self.data.kind), self.data.seed
        return (
            f"fairlead.data.{kind.name} v{kind.version} seed={seed}"
            f" split={self.split} index={self.index} events={self.events} size={self.size}"
        )

    def run(self) -> ListedFile:
        """Writes the file and returns what a list says about it."""
        kind = registry.data_kind(self.data.kind)
        samples = kind.make(self.data.seed, self.split, self.index, self.events, self.size)
        write_shard(self.path, samples, self.identity, kind.data_set, kind.version)
        return self.listed()

    def listed(self) -> ListedFile:
        """What a list says about the file, which is read."""
        return listed(self.path.parent, self.path, self.events)


def generate(data: DataSet, folder: Path, processes: int, log: EventLog) -> None:
    """Makes ``folder`` hold, of this data set, exactly the files of ``data``, keeping those that are whole.

    Lists them in the folder's ``data.json``. Reports ``start`` (samples in all), ``shard`` (samples done so far) and
    ``done``.

    Raises:
        FairleadError: there is no room for them, judged by the size of the first file.
    """
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    jobs = list(data.jobs(folder))
    # Files of this data set in any format: with two formats, a reader could not choose.
    patterns = [f"{data.kind}_*_*{suffix}" for suffix in FORMATS.values()]
    with locked(folder / ".lock"):  # a second writer waits, then finds all files whole
        missing = [job for job in jobs if not is_whole(job.path, job.identity, job.events)]
        left = sum(job.events for job in missing)
        done = data.train + data.val - left
        log.write("start", events=data.train + data.val, kept=done)
        for pattern in (*patterns, f".{data.kind}_*.partial"):
            for path in set(folder.glob(pattern)) - {job.path for job in jobs}:
                path.unlink()
        entries = _kept(folder, [job for job in jobs if job not in missing])
        # spawn: a forked child would share this process's BLAS and HDF5 state
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(processes, len(missing)) or 1, mp_context=context) as pool:
            running = {pool.submit(Job.run, job): job for job in missing}
            try:
                for future in as_completed(running):
                    written = running[future]
                    entries[written.path.name] = future.result()
                    done += written.events
                    left -= written.events
                    log.write("shard", events=done)
                    wanted = written.path.stat().st_size * left // written.events
                    if wanted > (free := shutil.disk_usage(folder).free):
                        raise fail(
                            "data-no-room", folder=folder, wanted=wanted / 1e9, free=free / 1e9
                        )
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        write_list(folder, entries.values())
    log.write("done", events=data.train + data.val, seconds=time.monotonic() - begun)


def _kept(folder: Path, whole: Sequence[Job]) -> dict[str, ListedFile]:
    """The entries of files that stay: of other data sets, and of the jobs whose files are whole, read where need be."""
    try:
        before = read_list(folder) or {}
    except FairleadError:
        before = {}  # written again
    entries = {name: entry for name, entry in before.items() if (folder / name).is_file()}
    for job in whole:
        entry = entries.get(job.path.name)
        if entry is None or entry.differs(job.path, job.events):
            entries[job.path.name] = job.listed()
    return entries


def main() -> None:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python3 -m fairlead.ml.data.generate", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument(
        "--set", dest="kind", choices=registry.data_kinds(), default="hep", help="data set"
    )
    parser.add_argument("--format", choices=FORMATS, default="hdf5", help="of the files")
    parser.add_argument("--train", type=_positive, default=4000, help="training samples")
    parser.add_argument("--val", type=_positive, default=2000, help="held-out samples")
    parser.add_argument(
        "--per-shard", type=_positive, help="samples in a file; 500, of cosmo-mlperf 16"
    )
    parser.add_argument("--size", type=_positive, help="pixels or voxels along each edge")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=_positive, default=1)
    parser.add_argument("--events-file", type=Path, help="progress as JSON lines, instead of text")
    given = parser.parse_args()
    data = DataSet(
        given.train, given.val, given.per_shard, given.seed, given.size, given.kind, given.format
    )
    log = EventLog(given.events_file)
    try:
        generate(data, given.out, given.processes, log)
    except FairleadError as exc:
        log.errors(exc)
        sys.exit(1)
    except OSError as exc:
        log.write(
            "error",
            what="samples cannot be written",
            where=exc.filename or str(given.out),
            why=exc.strerror or str(exc),
            remedy="make room there, or name another cache: XDG_CACHE_HOME",
            check="data-no-room",
        )
        sys.exit(1)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


if __name__ == "__main__":
    main()
