"""What a trace has to be, by the format that it is in, and what it has to agree with."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead.ml.train.model import StepTimes

Event = dict[str, Any]
PARTS = {
    "input",
    "forward",
    "backward",
    "forward and backward",
    "idle",
    "exposed communication",
    "update",
    "computing",
    "other",
}


def whole(file: Path) -> dict[str, Any]:
    """The JSON object of a trace."""
    data = file.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    return document


def read(file: Path) -> list[Event]:
    """The events of a trace that is right: by the Trace Event Format, with spans that nest, and steps whose parts
    follow each other without a gap.

    Each gets a ``rank`` and a ``row``: the names of its process and of its thread.
    Source: "Trace Event Format", sections "JSON Object Format", "Complete Events", "Async Events" and
    "Metadata Events".
    """
    document = whole(file)
    assert isinstance(document["traceEvents"], list) and document["displayTimeUnit"] in ("ms", "ns")
    rows: dict[tuple[int, int], list[Event]] = defaultdict(list)
    open_: dict[tuple[str, str, int], float] = {}
    named: dict[tuple[int, int, str], Any] = {}
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str) and isinstance(event["args"], dict)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert (event["pid"], event["tid"], event["name"]) not in named
            named[event["pid"], event["tid"], event["name"]] = event["args"]
            continue
        assert event["ts"] >= 0 and event["cat"]
        known = event["cat"], event.get("id", ""), event["pid"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
            rows[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "b":
            assert known not in open_
            open_[known] = event["ts"]
        else:
            assert event["ph"] == "e" and event["ts"] >= open_.pop(known)
    assert not open_
    for (pid, tid), events in rows.items():
        assert {(pid, 0, "process_name"), (pid, tid, "thread_name")} <= set(named)
        for event in events:
            event["rank"] = named[pid, 0, "process_name"]["name"]
            event["row"] = named[pid, tid, "thread_name"]["name"]
        nested(events)
        exclusive([e for e in events if e["cat"] == "step"])
        exclusive([e for e in events if e["cat"] == "phase"])
        for step in (e for e in events if e["cat"] == "step"):
            parts = parts_of(step, events)
            assert {e["name"] for e in parts} <= PARTS, parts
            if parts:  # no gap
                assert sum(e["dur"] for e in parts) == pytest.approx(step["dur"], abs=1.0)
    return [event for events in rows.values() for event in events]


def ends(event: Event) -> tuple[int, int]:
    """ns."""
    return round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)


def nested(events: Sequence[Event]) -> None:
    """In the order of time, and each within what is open when it begins."""
    stack: list[int] = []
    before = 0
    for event in events:
        begin, end = ends(event)
        assert begin >= before, "readers want them in order"
        before = begin
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1] + 1, event
        stack.append(end)


def exclusive(events: Sequence[Event]) -> None:
    """None begins before the one before it is over."""
    for one, two in itertools.pairwise(events):
        assert ends(two)[0] >= ends(one)[1] - 1, (one, two)


def parts_of(step: Event, events: Sequence[Event]) -> list[Event]:
    """The parts of a step, by its number and the row that it is in."""
    return [
        e
        for e in events
        if e["cat"] == "phase"
        and (e["pid"], e["tid"], e["args"]["step"])
        == (step["pid"], step["tid"], step["args"]["step"])
        and ends(step)[0] - 1 <= ends(e)[0] <= ends(step)[1]
    ]


def of(events: Sequence[Event], **wanted: Any) -> list[Event]:
    """Those that have what is wanted."""
    return [e for e in events if all(e[key] == value for key, value in wanted.items())]


def agrees(events: Sequence[Event], times: Sequence[StepTimes], more: str = "") -> None:
    """The parts of each step of each rank are those of a training's result, to its rounding (a microsecond a part).

    Args:
        more: what processes of this training are called behind their host.
    """
    for mine in times:
        rank = of(events, rank=f"rank {mine.rank} ({mine.host}){more}", row="steps")
        steps = of(rank, cat="step")
        assert len(steps) == len(mine.input_s) > 0
        for index, (step, whole_s) in enumerate(zip(steps, mine.whole_s, strict=True)):
            assert step["dur"] == _microseconds(whole_s)
            found: dict[str, float] = defaultdict(float)
            for part in parts_of(step, rank):
                found[part["name"]] += part["dur"]
            for name, seconds in mine.parts.items():
                assert found[name] == _microseconds(seconds[index]), (index, name, found)


def _microseconds(seconds: float) -> Any:
    """The same in microseconds, within the rounding of six parts."""
    return pytest.approx(1e6 * seconds, abs=4.0)
