"""One Chrome trace of a run, merged from the parts that its ranks recorded.

    python3 -m fairlead.trace.document FILE

With ``--timeline FILE``, every rank records into a folder of its launch below ``FILE.parts``, and the launching host
records its own part next to them; :mod:`fairlead.trace.parts` reads the parts, :mod:`fairlead.trace.events` turns them
into events. The parts survive however a rank ends. The verb merges them at its end; if it was killed too, the command
above does. Without a verb, ``FAIRLEAD_COMM_TIMELINE=FILE`` makes ranks record into ``FILE.parts`` itself, and rank 0
merges them.

The result opens in Perfetto and in chrome://tracing. It is compressed if its name ends with ``.gz``.
"""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import atomic_write
from fairlead.trace import events as traceevents
from fairlead.trace.parts import HostPart, Launch, Part, host_part, parts

SUFFIX = ".parts"
Ranks = dict[int, list[Part]]


@dataclass(frozen=True)
class Merged:
    """A trace that was written.

    Attributes:
        ranks: how many of ``size`` ranks are in it.
        dropped: events that had no room, over all ranks.
        launches: number of launches.
    """

    file: Path
    ranks: int
    size: int
    events: int
    dropped: int
    launches: int = 1

    def line(self) -> str:
        """A summary in one line."""
        left_out = f"; {self.dropped} older events had no room" if self.dropped else ""
        missing = "" if self.ranks == self.size else f" of {self.size}"
        launches = f" in {self.launches} launches" if self.launches > 1 else ""
        ranks = "rank" if self.ranks == self.size == 1 else "ranks"
        return f"{self.file.name}: {self.events} events of {self.ranks}{missing} {ranks}{launches}{left_out}"


def parts_of(file: str | os.PathLike[str]) -> Path:
    """The folder next to ``file`` in which each rank records."""
    return Path(f"{os.fspath(file)}{SUFFIX}")


def merge(file: str | os.PathLike[str]) -> Merged | None:
    """Writes ``file`` from its parts and removes them; None if no rank recorded any.

    Raises:
        FairleadError: the parts cannot be read, or ``file`` not be written.
    """
    target, folder = Path(file), parts_of(file)
    try:
        host = host_part(folder)
        launches = list(_launches(folder, host))
        if not launches:
            return None
        with atomic_write(target) as raw, _packed(raw, target) as out:
            events = traceevents.write(lambda text: out.write(text.encode()), launches, host)
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


def recorded(file: str | os.PathLike[str]) -> traceevents.Group | None:
    """What ranks without a recording host have recorded up to now, which may still be running; None if nothing.

    Its spans are in ns of rank 0's wall clock.

    Raises:
        OSError: a part cannot be read.
    """
    ranks = _of_one_run(list(parts(parts_of(file))))
    if not ranks:
        return None
    wall = next(iter(ranks.values()))[0].wall_ns
    spans = {
        rank: [
            replace(s, begin=s.begin + wall, end=s.end + wall, agreed=s.agreed and s.agreed + wall)
            for s in its
        ]
        for rank, its in traceevents.converted(ranks, None).items()
    }
    return traceevents.Group(Launch(0), ranks, spans)


def unwritable(file: Path, exc: OSError) -> FairleadError:
    """The error of a timeline that cannot be read or written."""
    if exc.errno == errno.EBADMSG:
        return fail("comm-timeline-damaged", part=exc.filename, reason=exc.strerror, file=file)
    return fail("comm-timeline-unmerged", file=file, reason=exc)


def _launches(folder: Path, host: HostPart | None) -> Iterator[tuple[Launch, Ranks]]:
    if host is None:
        folders: Iterable[tuple[Launch, Path]] = [(Launch(0), folder)]
    else:
        folders = [(launch, parts_of(folder / str(launch.number))) for launch in host.launches]
    for launch, place in folders:
        if ranks := _of_one_run(list(parts(place))):
            yield launch, ranks


def _of_one_run(every: list[Part]) -> Ranks:
    """The parts of the latest run, by rank. Python's parts are of that run: rank 0 empties the folder at its start."""
    rings = [part for part in every if part.run]
    run = max(rings, key=lambda part: part.started, default=None)
    ranks: Ranks = {}
    for part in every:
        if run is None or part.run in (0, run.run):
            ranks.setdefault(part.rank, []).append(part)
    return dict(sorted(ranks.items()))


def _packed(raw: IO[bytes], target: Path) -> AbstractContextManager[Any]:
    if target.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=5)
    return nullcontext(raw)


def main(words: list[str]) -> int:
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(f"{__doc__}")
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    try:
        merged = merge(words[0])
    except FairleadError as exc:
        sys.stderr.write("".join(f"error: {f.sentence}\n" for f in exc.findings))
        return 1
    if merged is None:
        sys.stderr.write(f"error: there is nothing in {parts_of(words[0])}\n")
        return 2
    print(merged.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
