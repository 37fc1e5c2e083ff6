"""Reads the parts of a timeline: what each rank of a run recorded, and the host that launched it.

A rank's core writes ``rank-000003.ring``, a mapped ring buffer. Its Python writes ``rank-000003.jsonl``, one event a line;
when that file is full, it becomes ``rank-000003.older.jsonl``. The host's :class:`fairlead.session.recorder.Recorder`
writes ``host.jsonl``.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.comm_names import TIMELINE_HOST

_OLDER = ".older.jsonl"
BOTH = "forward and backward"
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
    """What a thread did from ``begin`` to ``end``.

    Attributes:
        thread: name of its row, e.g. ``team 0`` or ``main``.
        begin, end: ns, of this rank's clock.
        agreed: when all ranks had arrived at this collective, ns; 0: not a collective, or they never arrived.
        call: number of the collective in its row, from 1.
        flight: a chunk on the network, which overlaps others and has no row.
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
        run: a number that differs between runs, where the core wrote the file; 0: Python wrote it.
        clock: equal on ranks that read the same clock.
        wall_ns: wall clock minus the clock of the events, at the start.
        clocks: measured offsets: (ns of this clock, ns to add for rank 0's, ns of the exchange).
        dropped: events that had no room.
        started: wall clock at the start, approximately, ns.
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
class Launch:
    """One launch of ranks, as the host saw it; times are ns of the host's clock, 0 for one that was never reached.

    Attributes:
        number: name of the folder in which its ranks recorded.
        title: its purpose.
        proved: when every rank was proved.
        ended: when the launcher ended.
    """

    number: int
    title: str = ""
    begun: int = 0
    proved: int = 0
    ended: int = 0


@dataclass(frozen=True)
class HostPart:
    """What the host recorded.

    Attributes:
        wall_ns: wall clock minus the clock of the events, at the start.
    """

    host: str
    clock: str
    wall_ns: int
    spans: tuple[Span, ...]
    launches: tuple[Launch, ...]


def parts(folder: Path) -> Iterator[Part]:
    """The parts that the ranks of one launch recorded.

    Raises:
        OSError: a file cannot be read, or is damaged.
    """
    forward: dict[int, int] = {}
    for path in sorted(folder.glob("rank-*")):  # a rank's newer file before its older one
        with _sound(path):
            part = _ring(path.read_bytes()) if path.suffix == ".ring" else _lines(path, forward)
        if part is not None:
            yield part


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Reports what parts that no rank or host has written make their readers raise."""
    try:
        yield
    except (struct.error, ValueError, LookupError, TypeError, AttributeError) as exc:
        raise OSError(errno.EBADMSG, f"it is damaged ({exc})", str(path)) from None


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode(errors="replace")


def _ring(data: bytes) -> Part | None:
    """The part that the core of one rank recorded; None if it ended before the first event."""
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
        if event[0]:  # otherwise the process ended while writing it
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
    name = _KINDS.get(what & 0xFF, "?")
    if name == "aggregate":
        form = _FORMS.get(what >> 16 & 0xFF, "")
        name = f"aggregate ({'mean' if what >> 8 & 1 else 'sum'}) {form}".rstrip()
    args: dict[str, Any] = {"call": call, "bytes": size, "tensors": count}
    if status:
        args["status"] = status
    idle = end - agreed - stages[0] - stages[1] - stages[3]
    move = {f"{stage}_ms": ns / 1e6 for stage, ns in zip(_STAGES, stages, strict=True)}
    return Span(
        thread, name, "call", begin, end, agreed, call, args=args,
        move={**move, "other_ms": idle / 1e6},
    )  # fmt: skip


def _lines(path: Path, forward: dict[int, int]) -> Part | None:
    """The part that the Python of one rank recorded.

    Args:
        forward: ns of a forward pass, by rank, from the rank's newer file.
    """
    head: dict[str, Any] | None = None
    steps: list[dict[str, Any]] = []
    spans, clocks, dropped = [], [], 0
    for record in _records(path):
        if "rank" in record:
            head = record
        elif "clock" in record:
            clocks.append((record["clock"][0], record["clock"][1], record["clock"][2]))
        elif "dropped" in record:
            dropped = record["dropped"]
        elif "forward_ns" in record:
            forward[head["rank"] if head else -1] = record["forward_ns"]
        elif "step" in record:
            steps.append(record)
        else:
            spans.append(Span(**record))
    if head is None:
        return None
    for step in steps:
        spans += _step(step, forward.get(head["rank"]))
    if path.name.endswith(_OLDER):  # the newer file has these, and more of them
        clocks, dropped = [], 0
    return Part(
        head["rank"], head["size"], 0, head["host"], head["reads"], head["wall_ns"], tuple(spans),
        tuple(clocks), dropped, head["wall_ns"] + head["begun"],
    )  # fmt: skip


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            yield bounded_json.loads(line)
        except ValueError:
            continue  # truncated by the end of the process


def _step(event: dict[str, Any], forward_ns: int | None) -> Iterator[Span]:
    """A step and its parts, without those that took no time."""
    number, borders = event["step"], event["borders"]
    yield Span("steps", f"step {number}", "step", borders[0], borders[-1], args={"step": number})
    for name, begin, end in zip(event["parts"], borders, borders[1:], strict=False):
        args: dict[str, Any] = {"step": number}
        if name == BOTH and forward_ns is not None:
            args["border"] = "measured apart"
            between = min(begin + forward_ns, end)
            each = [("forward", begin, between), ("backward", between, end)]
        else:
            each = [(name, begin, end)]
        for part, at, to in each:
            if to > at:
                yield Span("steps", part, "phase", at, to, args=args)


def host_part(folder: Path) -> HostPart | None:
    """The part of the host that launched a run; None if no verb of fairlead launched it.

    Raises:
        OSError: the file cannot be read, or is damaged.
    """
    path = folder / TIMELINE_HOST
    if not path.is_file():
        return None
    with _sound(path):
        return _host_part(path)


def _host_part(path: Path) -> HostPart | None:
    head: dict[str, Any] | None = None
    spans: list[Span] = []
    launches: dict[int, dict[str, Any]] = {}
    for record in _records(path):
        if "host" in record:
            head = record
        elif "number" in record:
            launches.setdefault(record["number"], {}).update(record)
        else:
            spans.append(Span(**record))
    if head is None:
        return None
    launched = tuple(Launch(**fields) for _, fields in sorted(launches.items()))
    return HostPart(head["host"], head["reads"], head["wall_ns"], tuple(spans), launched)
