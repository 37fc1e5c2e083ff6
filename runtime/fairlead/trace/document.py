"""One Chrome trace of all that a run did, from the files that each rank has written.

    python3 -m fairlead.trace.document FILE

``--timeline FILE`` has every rank record into a folder of its launch below ``FILE.parts``, and the host that launches
them its own part beside those; :mod:`fairlead.trace.parts` reads them, :mod:`fairlead.trace.events` makes events of them.
They are there however a rank ended. The verb puts them together at its end; where that was killed too, the line above does.
Without a verb, ``FAIRLEAD_COMM_TIMELINE=FILE`` has ranks record into ``FILE.parts`` itself, and rank 0 puts that together.

The result opens in Perfetto and in chrome://tracing. It is compressed where its name ends with ``.gz``.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fairlead.base.errors import FairleadError, fail
from fairlead.trace import events as traceevents
from fairlead.trace.parts import HostPart, Launch, Part, host_part, parts

SUFFIX = ".parts"
Ranks = dict[int, list[Part]]


@dataclass(frozen=True)
class Merged:
    """A trace that was written.

    Attributes:
        ranks: of those, how many of ``size`` are in it.
        dropped: events that had no room, over all ranks.
        launches: how many launches the ranks are of.
    """

    file: Path
    ranks: int
    size: int
    events: int
    dropped: int
    launches: int = 1

    def line(self) -> str:
        left_out = f"; {self.dropped} older events had no room" if self.dropped else ""
        missing = "" if self.ranks == self.size else f" of {self.size}"
        launches = f" in {self.launches} launches" if self.launches > 1 else ""
        ranks = "rank" if self.ranks == self.size == 1 else "ranks"
        return f"{self.file.name}: {self.events} events of {self.ranks}{missing} {ranks}{launches}{left_out}"


def parts_of(file: str | os.PathLike[str]) -> Path:
    """The folder beside ``file`` in which each rank records."""
    return Path(f"{os.fspath(file)}{SUFFIX}")


def merge(file: str | os.PathLike[str]) -> Merged | None:
    """Makes ``file`` of its parts, which are then removed; None where no rank has recorded any.

    Raises:
        FairleadError: the parts cannot be read, or ``file`` not be written.
    """
    target, folder = Path(file), parts_of(file)
    try:
        host = host_part(folder)
        launches = list(_launches(folder, host))
        if not launches:
            return None
        with _atomic(target) as stream:
            events = traceevents.write(stream.write, launches, host)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError as exc:
        raise unwritable(target, exc) from exc
    every = [part for _, ranks in launches for each in ranks.values() for part in each]
    return Merged(
        target,
        sum(len(ranks) for _, ranks in launches),
        sum(max(p.size for each in ranks.values() for p in each) for _, ranks in launches),
        events,
        sum(part.dropped for part in every),
        len(launches),
    )


def unwritable(file: Path, exc: OSError) -> FairleadError:
    """Why ``file`` does not come to be."""
    return fail(
        "the timeline cannot be put together",
        where=str(file),
        why=str(exc),
        remedy=f"see that there is room, then: python3 -m fairlead.trace.document {file}",
        check="comm-timeline",
    )


def _launches(folder: Path, host: HostPart | None) -> Iterator[tuple[Launch, Ranks]]:
    if host is None:
        found: Iterable[tuple[Launch, Path]] = [(Launch(0), folder)]
    else:
        found = [(launch, parts_of(folder / str(launch.number))) for launch in host.launches]
    for launch, place in found:
        if ranks := _of_one_run(list(parts(place))):
            yield launch, ranks


def _of_one_run(found: list[Part]) -> Ranks:
    """The parts of the latest run, by rank. What Python wrote is: rank 0 empties the folder before."""
    rings = [part for part in found if part.run]
    run = max(rings, key=lambda part: part.started, default=None)
    ranks: Ranks = {}
    for part in found:
        if run is None or part.run in (0, run.run):
            ranks.setdefault(part.rank, []).append(part)
    return dict(sorted(ranks.items()))


@contextmanager
def _atomic(target: Path) -> Iterator[IO[str]]:
    """``target``, which gets its name when it is whole."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.suffix == ".gz":
            with gzip.open(beside, "wt", compresslevel=5, encoding="utf-8") as compressed:
                yield compressed
        else:
            with beside.open("w", encoding="utf-8") as stream:
                yield stream
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def main(words: list[str]) -> int:
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(f"{__doc__}")
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    try:
        merged = merge(words[0])
    except FairleadError as exc:
        sys.stderr.write("".join(f"error: {f.what}: {f.where}: {f.why}\n" for f in exc.findings))
        return 1
    if merged is None:
        sys.stderr.write(f"error: there is nothing in {parts_of(words[0])}\n")
        return 2
    print(merged.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
