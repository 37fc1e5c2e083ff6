"""Ping-pong, allreduce and broadcast over message sizes: ``python3 -m fairlead.perf.measure.ranks.messages --config FILE`` on every rank.

A sample is a number of calls in a row without a barrier between, chosen so that it lasts a sensible time; each call has buffers of its own, and
every answer is checked: its values depend on rank, repeat, call and position, so that an old, a partial or a shifted one is
seen. The config is the JSON form of :class:`Settings`; rank 0 writes that of a document that :func:`measurements` reads.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fairlead.base.serde import to_json
from fairlead.perf import stats
from fairlead.perf.measure.message_check import Buffers, Wrong
from fairlead.perf.measure.program import read_settings, write_document
from fairlead.perf.measure.rank_control import RankControl, machines
from fairlead.perf.records.validation import Measurement, Way, What

SCHEMA, SCHEMA_VERSION = "fairlead/sweeps", 1
SIZES = (4, 64, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
OPERATIONS = ("pingpong", "allreduce", "broadcast")
_CALLS = 1000  # of a sample at most
_MEMORY = 8 << 20  # bytes of a sample's messages at most, unless one is larger
_NAMED = 20  # wrong answers that are listed
_SHORT_S = 1.0  # a sample

Team: TypeAlias = Any  # mpi4py's communicator


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        out: the file that rank 0 writes.
        sizes: bytes of the messages, multiples of 4.
        through: ``mpi`` for the MPI library by itself, ``comm`` for what a program gets by :mod:`fairlead.comm`.
        repeats: samples of each size.
        least: of them, that are made even beyond a size's share of the time, unless a sample takes a second.
        sample_s: seconds that a sample should last; a single call may take longer.
        limit_s: of the whole program, but for MPI's start. Sizes that there was no time for are listed as skipped.
        pairs: ranks of the ping-pongs; by default rank 0 with the first other rank of its host, and of another host.
    """

    out: Path
    sizes: tuple[int, ...] = SIZES
    operations: tuple[str, ...] = OPERATIONS
    through: tuple[str, ...] = ("mpi",)
    repeats: int = 10
    least: int = stats.FEWEST
    sample_s: float = 0.02
    limit_s: float = 120
    pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Point:
    """One operation with messages of one size, by a team of ranks."""

    operation: str
    through: str
    bytes: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """What one rank has of a point.

    Attributes:
        calls: of a sample.
        seconds: of a call, one a sample; a ping-pong's is half of there and back.
    """

    calls: int
    seconds: tuple[float, ...]
    wrong: tuple[Wrong, ...]
    wrong_count: int


def measurements(
    document: Mapping[str, Any], way: Way, launcher: str = ""
) -> tuple[Measurement, ...]:
    """What rank 0 has written, as values to be judged."""
    made = []
    for row in document["rows"]:
        pair = row["operation"] == "pingpong"
        hosts = [document["hosts"][rank] for rank in row["ranks"]]
        where = f"ranks {' - '.join(map(str, row['ranks']))}" if pair else ""
        by = f"fairlead.comm ({document['backend']})" if row["through"] == "comm" else ""
        made.append(
            Measurement(
                What(row["operation"]),
                way,
                tuple(row["seconds"]),
                ranks=len(hosts),
                nodes=len(set(hosts)),
                bytes=row["bytes"],
                subject=where or by,
                crowded=document["crowded"],
                wrong=row["wrong"],
                launcher=launcher,
                hosts=tuple(hosts) if pair else (),
            )
        )
    return tuple(made)


def points(settings: Settings, hosts: Sequence[str]) -> list[Point]:
    """All that is to be measured, the small messages of every operation first."""
    every = tuple(range(len(hosts)))
    pairs = settings.pairs or default_pairs(hosts)
    todo = []
    for size in sorted(max(4, size // 4 * 4) for size in settings.sizes):
        for operation in settings.operations:
            if operation == "pingpong":  # fairlead.comm has none
                todo += [Point(operation, "mpi", size, pair) for pair in pairs]
            elif len(every) > 1:
                todo += [Point(operation, way, size, every) for way in settings.through]
    return todo


def default_pairs(hosts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Rank 0 with the first other rank on its host, and with the first on another host.

    >>> default_pairs(["a", "a", "b", "b"])
    ((0, 1), (0, 2))
    """
    others = range(1, len(hosts))
    local = [rank for rank in others if hosts[rank] == hosts[0]][:1]
    apart = [rank for rank in others if hosts[rank] != hosts[0]][:1]
    return tuple((0, rank) for rank in (*local, *apart))


def calls_of(sample_s: float, one_s: float, size: int) -> int:
    """How many calls make a sample: as many as fill its time, bounded by their memory."""
    return max(1, min(int(sample_s / max(one_s, 1e-9)), _CALLS, _MEMORY // size))


class Sweep:
    """One rank's side of it; every method is collective."""

    def __init__(self, control: RankControl, settings: Settings, comm: Any):
        self._control, self._settings, self._comm = control, settings, comm
        self._host = os.uname().nodename
        self._late = time.monotonic() + settings.limit_s

    def run(self) -> dict[str, Any] | None:
        """Everything, on rank 0; None elsewhere."""
        world, settings, begun = self._control.world, self._settings, time.monotonic()
        facts = self._control.facts
        hosts = world.bcast([fact["host"] for fact in facts])
        todo, rows, skipped = points(settings, hosts), [], []
        for number, point in enumerate(todo):
            # What one does not use of its share is the others'.
            left = self._late - time.monotonic()
            share = world.bcast(left / (len(todo) - number) if left > 0 else None)
            part = self._point(point, share) if share is not None else None
            parts = world.gather(part)
            if parts is not None:
                if share is None:
                    skipped.append(asdict(point))
                else:
                    rows.append(_row(point, [p for p in parts if p]))
        if self._control.rank != 0:
            return None
        named = [wrong for row in rows for wrong in row.pop("named")]
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "settings": to_json(settings),
            "hosts": hosts,
            "backend": self._comm.backend if self._comm else "",
            "crowded": any(len(ranks) > cores for ranks, cores in machines(facts)),
            "seconds": time.monotonic() - begun,
            "rows": rows,
            "skipped": skipped,
            "wrong": sum(row["wrong"] for row in rows),
            "wrong_answers": [asdict(wrong) for wrong in named[:_NAMED]],
        }

    def _point(self, point: Point, share: float) -> Part | None:
        world = self._control.world
        apart = len(point.ranks) < self._control.size
        part = None
        if self._control.rank in point.ranks:
            team = world
            if apart:
                group = world.Get_group().Incl(point.ranks)
                team = world.Create_group(group)
                group.Free()
            part = self._measured(team, point, share)
            if apart:
                team.Free()
        if apart:
            self._control.quiet_barrier()  # who has no part in it leaves the cores to the others
        return part

    def _measured(self, team: Team, point: Point, share: float) -> Part:
        late = time.monotonic() + share
        buffers = Buffers(
            point.operation, point.through, point.bytes, team.rank, team.size, self._host
        )
        call, per_call = self._call(team, point, buffers)
        wrong: list[Wrong] = []
        count = 0

        def sample(repeat: int, calls: int) -> float:
            nonlocal count
            buffers.fill(repeat, calls)
            team.Barrier()
            begun = time.perf_counter()
            for row in range(calls):
                call(row)
            seconds = (time.perf_counter() - begun) / calls / per_call
            wrong_now = buffers.check(repeat, calls)
            count += len(wrong_now)
            wrong.extend(wrong_now[: max(0, _NAMED - len(wrong))])
            return seconds

        def cost(repeat: int, calls: int) -> float:
            """Seconds of a call, the same on all ranks."""
            return float(max(team.allgather(sample(repeat, calls) * per_call)))

        cost(-3, 1)  # connects the ranks
        # One call may have waited for a core; a few say better what a call costs.
        few = calls_of(self._settings.sample_s / 4, cost(-2, 1), point.bytes)
        calls = calls_of(self._settings.sample_s, cost(-1, few), point.bytes)
        seconds = [sample(0, calls)]
        # Fewer than these say nothing. Where they come in time, a slow link is not a reason to stop before.
        least = self._settings.least if calls * seconds[0] * per_call < _SHORT_S else 1
        for repeat in range(1, self._settings.repeats):
            if not team.bcast(time.monotonic() < late or repeat < least):
                break
            seconds.append(sample(repeat, calls))
        return Part(calls, tuple(seconds), tuple(wrong), count)

    def _call(
        self, team: Team, point: Point, buffers: Buffers
    ) -> tuple[Callable[[int], None], int]:
        """What makes call number ``row``, and how many of the operation it holds."""
        comm, other = self._comm, 1 - team.rank

        def ping(row: int) -> None:
            team.Send(buffers.give[row], other)
            team.Recv(buffers.take[row], other)

        def pong(row: int) -> None:
            team.Recv(buffers.take[row], other)
            team.Send(buffers.give[row], other)

        calls: dict[tuple[str, str], Callable[[int], None]] = {
            ("pingpong", "mpi"): ping if team.rank == 0 else pong,
            ("allreduce", "mpi"): lambda row: team.Allreduce(buffers.give[row], buffers.take[row]),
            ("broadcast", "mpi"): lambda row: team.Bcast(buffers.take[row]),
            ("allreduce", "comm"): lambda row: comm.aggregate(
                [buffers.give[row]], out=[buffers.take[row]]
            ),
            ("broadcast", "comm"): lambda row: comm.broadcast(
                [buffers.take[row]], out=[buffers.take[row]]
            ),
        }
        return calls[point.operation, point.through], 2 if point.operation == "pingpong" else 1


def _row(point: Point, parts: Sequence[Part]) -> dict[str, Any]:
    """A point's line in the document: of each sample the time of the rank that took longest."""
    # Half of there and back is the first's to say: the other's ends as soon as it has sent.
    timed = parts[:1] if point.operation == "pingpong" else parts
    return {
        **asdict(point),
        "calls": parts[0].calls,
        "seconds": [max(each) for each in zip(*(p.seconds for p in timed), strict=True)],
        "wrong": sum(p.wrong_count for p in parts),
        "named": [wrong for p in parts for wrong in p.wrong],
    }


def main(words: Sequence[str]) -> None:
    settings = read_settings(Settings, words)
    control = RankControl()
    ranks = None
    if "comm" in settings.through:
        from fairlead import comm

        ranks = comm.init()
    document = Sweep(control, settings, ranks).run()
    if document is not None:
        write_document(settings.out, document)
    control.quiet_barrier()
    if ranks is not None:
        comm.finalize()
    else:
        control.close()


if __name__ == "__main__":
    main(sys.argv[1:])
