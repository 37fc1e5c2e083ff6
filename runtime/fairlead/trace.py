"""One Chrome trace of all ranks' collectives, from the files that each rank has written.

    python3 -m fairlead.trace FILE

``FAIRLEAD_COMM_TIMELINE=FILE`` makes every rank record into ``FILE.parts``: the core into
``rank-000003.ring``, which is mapped, and Python, a line an event, into ``rank-000003.jsonl``. Both are
there however the rank ended. Rank 0 merges them at the end of the run; ``fairlead run --timeline``, or the
line above, does it for a run that died.

The result is the "JSON Object Format" of the Trace Event Format, which Perfetto and chrome://tracing open:
a process is a rank, a thread a team, all of complete events (``X``) that nest.
Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.findings import FairleadError, fail

SUFFIX = ".parts"

# struct Head and struct Event of runtime/native/src/timeline.h
_HEAD = struct.Struct("=8sIIiiQQQqii64s128s")
_NAMES, _NAME = 257, 24
_EVENT = struct.Struct("=QQQQQQIIIi4Q")
_MAGIC = b"FLTRACE1"
_STAGE = 0x80000000
_STAGES = ("pack", "sum", "network", "take")
_NETWORK = 2
_KINDS = {1: "aggregate", 2: "broadcast", 3: "finalize", 4: "barrier", 5: "average", 6: "match", 7: "team",
          8: "gather"}  # fmt: skip
_FORMS = {2: "as float16", 3: "as bfloat16"}


@dataclass(frozen=True)
class Span:
    """One thing that a thread did.

    Attributes:
        thread: whose row it is in, e.g. ``team 0`` or ``main``.
        begin, end: ns, of this rank's clock.
        agreed: when all ranks had come to this collective; 0: it is none, or they never had.
        call: of a collective: its number in its row, from 1.
        flight: of a chunk on the network, which overlaps others: it has no row.
    """

    thread: str
    name: str
    kind: str
    begin: int
    end: int
    agreed: int = 0
    call: int = 0
    flight: bool = False
    args: dict[str, Any] = field(default_factory=dict)
    move: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """What one rank recorded in one file.

    Attributes:
        run: of what the core wrote: another number in each run; 0: Python wrote it.
        clock: the same on ranks that read one clock.
        wall_ns: the clock of the day minus that of the events, at the start.
        clocks: (ns of this clock, ns to add for rank 0's, ns of the exchange), as measured.
        dropped: events that had no room.
        started: about when, by the clock of the day.
    """

    rank: int
    size: int
    run: int
    host: str
    clock: str
    wall_ns: int
    spans: tuple[Span, ...]
    clocks: tuple[tuple[int, int, int], ...] = ()
    dropped: int = 0
    started: int = 0


@dataclass(frozen=True)
class Merged:
    """A trace that was written.

    Attributes:
        ranks: of those, how many of ``size`` are in it.
        dropped: events that had no room, over all ranks.
    """

    file: Path
    ranks: int
    size: int
    events: int
    dropped: int

    def line(self) -> str:
        left_out = f"; {self.dropped} older events had no room" if self.dropped else ""
        missing = "" if self.ranks == self.size else f" of {self.size}"
        return f"{self.file.name}: {self.events} events of {self.ranks}{missing} ranks{left_out}"


def parts_of(file: str | os.PathLike[str]) -> Path:
    """The folder beside ``file`` in which each rank records."""
    return Path(f"{os.fspath(file)}{SUFFIX}")


def merge(file: str | os.PathLike[str]) -> Merged | None:
    """Makes ``file`` of its parts, which are then removed; None where there are none.

    Raises:
        FairleadError: the parts cannot be read, or ``file`` not be written.
    """
    target, folder = Path(file), parts_of(file)
    try:
        found = list(_parts(folder))
        if not found:
            return None
        ranks = _of_one_run(found)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with beside.open("w") as stream:
                events = _write(stream.write, ranks)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError as exc:
        raise fail(
            "the timeline cannot be put together",
            where=str(target),
            why=str(exc),
            remedy=f"see that there is room, then: python3 -m fairlead.trace {target}",
            check="comm-timeline",
        ) from exc
    return Merged(
        target,
        len(ranks),
        max(part.size for parts in ranks.values() for part in parts),
        events,
        sum(part.dropped for parts in ranks.values() for part in parts),
    )


def _of_one_run(found: list[Part]) -> dict[int, list[Part]]:
    """The parts of the latest run, by rank. What Python wrote is: rank 0 empties the folder before."""
    rings = [part for part in found if part.run]
    run = max(rings, key=lambda part: part.started, default=None)
    ranks: dict[int, list[Part]] = {}
    for part in found:
        if run is None or part.run in (0, run.run):
            ranks.setdefault(part.rank, []).append(part)
    return dict(sorted(ranks.items()))


# --- reading ---------------------------------------------------------------------------------


def _parts(folder: Path) -> Iterator[Part]:
    for path in sorted(folder.glob("rank-*")):
        part = _ring(path.read_bytes()) if path.suffix == ".ring" else _lines(path)
        if part is not None:
            yield part


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode(errors="replace")


def _ring(data: bytes) -> Part | None:
    """What the core of one rank has recorded; None: it ended before it had begun."""
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        return None
    values = _HEAD.unpack_from(data)
    _, head_bytes, each, rank, size, run, capacity, written, wall, _, _, host, clock = values
    names = [
        _text(data[at : at + _NAME]) for at in range(_HEAD.size, _HEAD.size + _NAMES * _NAME, _NAME)
    ]
    spans = []
    for at in range(head_bytes, head_bytes + min(written, capacity) * each, each):
        event = _EVENT.unpack_from(data, at)
        if event[0]:  # else it was being written when the process ended
            spans.append(_span(event, names))
    spans.sort(key=lambda span: span.begin)
    started = wall + (spans[0].begin if spans else 0)
    dropped = max(written - capacity, 0)
    return Part(
        rank, size, run, _text(host), _text(clock), wall, tuple(spans), (), dropped, started
    )


def _span(event: tuple[int, ...], names: list[str]) -> Span:
    _, begin, agreed, end, call, size, what, lane, count, status, *stages = event
    thread = names[lane]
    if what & _STAGE:
        stage = what & 0xFF
        return Span(
            thread, _STAGES[stage], "chunk", begin, end, flight=stage == _NETWORK, call=call,
            args={"call": call, "chunk": count},
        )  # fmt: skip
    kind = _KINDS.get(what & 0xFF, "?")
    name = kind
    if kind == "aggregate":
        name = " ".join(
            filter(
                None,
                (
                    "aggregate",
                    f"({'mean' if what >> 8 & 1 else 'sum'})",
                    _FORMS.get(what >> 16 & 0xFF),
                ),
            )
        )
    args: dict[str, Any] = {"call": call, "bytes": size, "tensors": count}
    if status:
        args["status"] = status
    idle = end - agreed - stages[0] - stages[1] - stages[3]
    move = {f"{stage}_ms": ns / 1e6 for stage, ns in zip(_STAGES, stages, strict=True)}
    return Span(
        thread, name, "call", begin, end, agreed, call, args=args,
        move={**move, "other_ms": idle / 1e6},
    )  # fmt: skip


def _lines(path: Path) -> Part | None:
    """What Python of one rank has recorded."""
    head: dict[str, Any] | None = None
    spans, clocks, dropped = [], [], 0
    for line in path.read_text(errors="replace").splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue  # cut off by the process's end
        if "rank" in said:
            head = said
        elif "clock" in said:
            clocks.append((said["clock"][0], said["clock"][1], said["clock"][2]))
        elif "dropped" in said:
            dropped = said["dropped"]
        else:
            spans.append(Span(**said))
    if head is None:
        return None
    return Part(
        head["rank"], head["size"], 0, head["host"], head["reads"], head["wall_ns"], tuple(spans),
        tuple(clocks), dropped, head["wall_ns"] + head["begun"],
    )  # fmt: skip


# --- one time for all -------------------------------------------------------------------------

Clock = Callable[[int], int]


def _clocks(ranks: dict[int, list[Part]]) -> dict[str, Clock]:
    """For each clock, what makes rank 0's time of it.

    Measured at the start and at the end, with the drift between; at the start only, of a run that died; by
    the clock of the day, where nothing was measured (a program without Python).
    """
    parts = [part for each in ranks.values() for part in each]
    first = next(iter(ranks.values()))[0]
    measured = {part.clock: part.clocks for part in parts if part.clocks}
    made: dict[str, Clock] = {}
    for part in parts:
        if part.clock not in made:
            if part.clock == first.clock:
                made[part.clock] = lambda ns: ns
            elif known := measured.get(part.clock):
                made[part.clock] = _by(known)
            else:
                made[part.clock] = _by([(0, part.wall_ns - first.wall_ns, 0)])
    return made


def _by(samples: Iterable[tuple[int, int, int]]) -> Clock:
    (at, add, _), *_, (later, more, _) = [*samples] * 2
    slope = (more - add) / (later - at) if later > at else 0.0
    return lambda ns: ns + add + round(slope * (ns - at))


# --- writing ----------------------------------------------------------------------------------


def _write(put: Callable[[str], Any], ranks: dict[int, list[Part]]) -> int:
    """Hands the trace to ``put``, piece by piece; returns how many events it has."""
    clocks = _clocks(ranks)
    begun = min(
        (clocks[p.clock](s.begin) for each in ranks.values() for p in each for s in p.spans),
        default=0,
    )
    last = _last(ranks, clocks)
    hosts = {rank: parts[0].host for rank, parts in ranks.items()}
    dropped = {rank: n for rank, parts in ranks.items() if (n := sum(p.dropped for p in parts))}
    head = {"ranks": len(ranks), "dropped_events": {f"rank {r}": n for r, n in dropped.items()}}
    put(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(head)}, "traceEvents": [')
    count, between = 0, ""
    for rank, parts in ranks.items():
        for event in _events(rank, parts, clocks, begun, last, hosts):
            put(f"{between}\n{json.dumps(event)}")
            between = ","
            count += event["ph"] in "Xb"
    put("\n]}\n")
    return count


def _last(
    ranks: dict[int, list[Part]], clocks: dict[str, Clock]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Of each collective: when its last rank came, and which it was."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for rank, parts in ranks.items():
        for part in parts:
            clock = clocks[part.clock]
            for span in part.spans:
                if span.kind == "call":
                    key, came = (span.thread, span.call), (clock(span.begin), rank)
                    found[key] = max(found.get(key, came), came)
    return found


def _row(thread: str) -> tuple[int, int, str]:
    """The order of rows: main, what comes without a team, the teams."""
    number = "".join(c if c.isdigit() else " " for c in thread).split()
    first = {"main": 0, "steps": 1, "all": 2}.get(thread, 3)
    return first, int(number[0]) if number else 0, thread


def _events(
    rank: int,
    parts: list[Part],
    clocks: dict[str, Clock],
    begun: int,
    last: dict[tuple[str, int], tuple[int, int]],
    hosts: dict[int, str],
) -> Iterator[dict[str, Any]]:
    # Process 0 is the kernel's to some readers: a rank's number here is one more.
    threads = sorted({span.thread for part in parts for span in part.spans}, key=_row)
    numbers = {thread: number for number, thread in enumerate(threads, 1)}
    told = [
        ("process_name", 0, {"name": f"rank {rank} ({hosts[rank]})"}),
        ("process_sort_index", 0, {"sort_index": rank}),
    ]
    for thread, number in numbers.items():
        told += [
            ("thread_name", number, {"name": _THREADS.get(thread, thread)}),
            ("thread_sort_index", number, {"sort_index": number}),
        ]
    for name, number, args in told:
        yield {"ph": "M", "pid": rank + 1, "tid": number, "name": name, "args": args}
    made: list[tuple[int, int, dict[str, Any]]] = []

    def one(
        span: Span, clock: Clock, begin: int, end: int, name: str, kind: str, args: dict[str, Any]
    ) -> None:
        at, to = clock(begin), clock(end)
        event = {
            "name": name,
            "cat": kind,
            "pid": rank + 1,
            "tid": numbers[span.thread],
            "ts": (at - begun) / 1000,
            "args": args,
        }
        if not span.flight:
            made.append((at, at - to, {"ph": "X", **event, "dur": (to - at) / 1000}))
            return
        event["id"] = f"{rank}/{span.thread}/{span.call}/{span.args['chunk']}"
        made.append((at, 0, {"ph": "b", **event}))
        made.append((to, 0, {"ph": "e", **event, "ts": (to - begun) / 1000}))

    for part in parts:
        clock = clocks[part.clock]
        for span in part.spans:
            one(span, clock, span.begin, span.end, span.name, span.kind, span.args)
            if span.kind != "call":
                continue
            came, who = last[span.thread, span.call]
            late = {
                "for": f"rank {who} ({hosts[who]})",
                "ms": max(came - clock(span.begin), 0) / 1e6,
            }
            one(span, clock, span.begin, span.agreed or span.end, "wait for ranks", "wait", late)
            if span.agreed:
                one(span, clock, span.agreed, span.end, "move", "move", span.move)
    yield from (event for *_, event in sorted(made, key=lambda row: row[:2]))


_THREADS = {"all": "without a team"}


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
