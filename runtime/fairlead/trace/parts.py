"""Reads what each rank of a run recorded for a timeline, and what the host did that launched it.

The core writes ``rank-000003.ring``, which is mapped, and Python ``rank-000003.jsonl``, a line an event, and when that is
full ``rank-000003.older.jsonl``. What :class:`fairlead.session.recorder.Recorder` writes is ``host.jsonl``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
class Launch:
    """One launch of ranks, as the host saw it; ns of the host's clock, 0 where it never came to that.

    Attributes:
        number: its ranks recorded in the folder of this number.
        title: what it was for.
        proved: when every rank had been proved.
        ended: when the launcher was gone.
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
        wall_ns: the clock of the day minus that of the events, at the start.
    """

    host: str
    clock: str
    wall_ns: int
    spans: tuple[Span, ...]
    launches: tuple[Launch, ...]


def parts(folder: Path) -> Iterator[Part]:
    """What the ranks of one launch recorded.

    Raises:
        OSError: a file cannot be read.
    """
    forward: dict[int, int] = {}
    for path in sorted(folder.glob("rank-*")):  # a rank's newer file before its older one
        part = _ring(path.read_bytes()) if path.suffix == ".ring" else _lines(path, forward)
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


def _lines(path: Path, forward: dict[int, int]) -> Part | None:
    """What Python of one rank has recorded.

    Args:
        forward: ns of a forward pass, by rank, as the rank's newer file has told.
    """
    head: dict[str, Any] | None = None
    steps: list[dict[str, Any]] = []
    spans, clocks, dropped = [], [], 0
    for said in _said(path):
        if "rank" in said:
            head = said
        elif "clock" in said:
            clocks.append((said["clock"][0], said["clock"][1], said["clock"][2]))
        elif "dropped" in said:
            dropped = said["dropped"]
        elif "forward_ns" in said:
            forward[head["rank"] if head else -1] = said["forward_ns"]
        elif "step" in said:
            steps.append(said)
        else:
            spans.append(Span(**said))
    if head is None:
        return None
    for step in steps:
        spans += _step(step, forward.get(head["rank"]))
    if path.name.endswith(_OLDER):  # the newer one tells these, and more of them
        clocks, dropped = [], 0
    return Part(
        head["rank"], head["size"], 0, head["host"], head["reads"], head["wall_ns"], tuple(spans),
        tuple(clocks), dropped, head["wall_ns"] + head["begun"],
    )  # fmt: skip


def _said(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # cut off by the process's end


def _step(said: dict[str, Any], forward_ns: int | None) -> Iterator[Span]:
    """A step and its parts; those that took no time are left out."""
    number, borders = said["step"], said["borders"]
    yield Span("steps", f"step {number}", "step", borders[0], borders[-1], args={"step": number})
    for name, begin, end in zip(said["parts"], borders, borders[1:], strict=False):
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
    """What the host that launched a run recorded; None: it was not one of fairlead's verbs.

    Raises:
        OSError: the file cannot be read.
    """
    path = folder / TIMELINE_HOST
    if not path.is_file():
        return None
    head: dict[str, Any] | None = None
    spans: list[Span] = []
    launches: dict[int, dict[str, Any]] = {}
    for said in _said(path):
        if "host" in said:
            head = said
        elif "number" in said:
            launches.setdefault(said["number"], {}).update(said)
        else:
            spans.append(Span(**said))
    if head is None:
        return None
    found = tuple(Launch(**told) for _, told in sorted(launches.items()))
    return HostPart(head["host"], head["reads"], head["wall_ns"], tuple(spans), found)
