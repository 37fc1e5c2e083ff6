"""Turns the parts of a timeline into trace events: one clock for all, a row for each thread.

The events follow the "JSON Object Format" of the Trace Event Format. A process is a rank, or the host that launched
it. Events are complete (``X``) and nest, except chunks on the network (``b``, ``e``), which overlap.
Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fairlead.trace.parts import HostPart, Launch, Part, Span

Clock = Callable[[int], int]
Ranks = Mapping[int, Sequence[Part]]
Event = dict[str, Any]
# For each collective: when its last rank arrived, and which rank that was.
Last = Mapping[tuple[str, int], tuple[int, int]]

_THREADS = {
    "all": "without a team",
    "fairlead-prefetch": "input pipeline",
    "checkpoint_0": "checkpoints",  # ThreadPoolExecutor numbers its threads
}


@dataclass(frozen=True)
class Group:
    """The ranks of one launch, and each rank's spans in the trace's time."""

    launch: Launch
    ranks: Ranks
    spans: Mapping[int, Sequence[Span]]


def write(
    put: Callable[[str], Any], launches: Sequence[tuple[Launch, Ranks]], host: HostPart | None
) -> int:
    """Passes the trace to ``put`` piece by piece; returns its number of events."""
    groups = [Group(launch, ranks, converted(ranks, host)) for launch, ranks in launches]
    dropped = {
        f"rank {rank}{_of(group, groups)}": n
        for group in groups
        for rank, parts in group.ranks.items()
        if (n := sum(part.dropped for part in parts))
    }
    head = {"ranks": sum(len(group.ranks) for group in groups), "dropped_events": dropped}
    put(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(head)}, "traceEvents": [')
    count, between = 0, ""
    for event in _events(groups, host):
        put(f"{between}\n{json.dumps(event)}")
        between = ","
        count += event["ph"] in "Xb"
    put("\n]}\n")
    return count


def _of(group: Group, groups: Sequence[Group]) -> str:
    return f", {group.launch.title}" if len(groups) > 1 and group.launch.title else ""


def _events(groups: Sequence[Group], host: HostPart | None) -> Iterator[Event]:
    """All events, process by process, each in the order of time."""
    host_spans = _host_spans(groups, host) if host else []
    every = [*(each for group in groups for each in group.spans.values()), host_spans]
    zero = min((span.begin for each in every for span in each), default=0)
    # Some readers take process 0 for the kernel.
    pid = 1
    for group in groups:
        last = last_to_come(group)
        hosts = {rank: parts[0].host for rank, parts in group.ranks.items()}
        for rank, its in group.spans.items():
            name = f"rank {rank} ({hosts[rank]}){_of(group, groups)}"
            its = [more for span in its for more in _with_stages(span, rank, last, hosts)]
            yield from _process(pid, name, pid, its, zero)
            pid += 1
    if host:
        yield from _process(pid, f"fairlead ({host.host})", 0, host_spans, zero)


def _process(pid: int, name: str, order: int, spans: Sequence[Span], zero: int) -> Iterator[Event]:
    threads = sorted({span.thread for span in spans}, key=_row)
    numbers = {thread: number for number, thread in enumerate(threads, 1)}
    names: list[tuple[str, int, Event]] = [
        ("process_name", 0, {"name": name}),
        ("process_sort_index", 0, {"sort_index": order}),
    ]
    for thread, number in numbers.items():
        names += [
            ("thread_name", number, {"name": _THREADS.get(thread, thread)}),
            ("thread_sort_index", number, {"sort_index": number}),
        ]
    for kind, number, args in names:
        yield {"ph": "M", "pid": pid, "tid": number, "name": kind, "args": args}
    timed: list[tuple[int, int, Event]] = []
    for span in spans:
        event = {
            "name": span.name, "cat": span.kind, "pid": pid, "tid": numbers[span.thread],
            "ts": (span.begin - zero) / 1000, "args": span.args,
        }  # fmt: skip
        if not span.flight:
            dur = (span.end - span.begin) / 1000
            timed.append((span.begin, span.begin - span.end, {"ph": "X", **event, "dur": dur}))
            continue
        event["id"] = f"{pid}/{span.thread}/{span.call}/{span.args['chunk']}"
        timed.append((span.begin, 0, {"ph": "b", **event}))
        timed.append((span.end, 0, {"ph": "e", **event, "ts": (span.end - zero) / 1000}))
    yield from (event for *_, event in sorted(timed, key=lambda row: row[:2]))


def _row(thread: str) -> tuple[int, int, str]:
    """The order of rows: main, steps, calls without a team, the teams and all other threads."""
    number = "".join(c if c.isdigit() else " " for c in thread).split()
    first = {"stages": 0, "launches": 1, "main": 0, "steps": 1, "all": 2}.get(thread, 3)
    return first, int(number[0]) if number else 0, thread


def last_to_come(group: Group) -> Last:
    """For each collective, by its row and number: when the last rank began it, and which one that was."""
    last: dict[tuple[str, int], tuple[int, int]] = {}
    for rank, spans in group.spans.items():
        for span in spans:
            if span.kind == "call":
                key, came = (span.thread, span.call), (span.begin, rank)
                last[key] = max(last.get(key, came), came)
    return last


def _with_stages(span: Span, rank: int, last: Last, hosts: Mapping[int, str]) -> Iterator[Span]:
    """A collective with its wait and its move; any other span alone."""
    yield span
    if span.kind != "call":
        return
    came, who = last[span.thread, span.call]
    late = {"for": f"rank {who} ({hosts[who]})", "ms": max(came - span.begin, 0) / 1e6}
    until = span.agreed or span.end
    yield Span(span.thread, "wait for ranks", "wait", span.begin, until, args=late)
    if span.agreed:
        yield Span(span.thread, "move", "move", span.agreed, span.end, args=span.move)


def _host_spans(groups: Sequence[Group], host: HostPart) -> list[Span]:
    """The host's spans, and what it waited for in each launch."""
    spans = list(host.spans)
    for group in groups:
        launch = group.launch
        last = max((span.end for its in group.spans.values() for span in its), default=0)
        end = launch.ended or last
        if not launch.begun or not end:
            continue
        title = launch.title or "launch"
        args = {"ranks": len(group.ranks)}
        spans.append(Span("launches", title, "launch", launch.begun, end, args=args))
        at = launch.begun
        for name, until in (
            ("launcher and engine", _last_of_first(group, "python", begins=True)),
            ("until every rank is proved", launch.proved),
            ("until the first step is over", _last_of_first(group, "step")),
            ("until the end", end),
        ):
            if until and at < until <= end:
                spans.append(Span("launches", name, "launch", at, until))
                at = until
    return spans


def _last_of_first(group: Group, kind: str, begins: bool = False) -> int:
    """When the last rank ended its first span of a kind, or began it, ns; 0 if there is none."""
    of_ranks = [
        [span.begin if begins else span.end for span in spans if span.kind == kind]
        for spans in group.spans.values()
    ]
    return max(map(min, filter(None, of_ranks)), default=0)


# --- one time for all -------------------------------------------------------------------------


def converted(ranks: Ranks, host: HostPart | None) -> dict[int, list[Span]]:
    """Each rank's spans in the time of the trace: the host's clock, or rank 0's where no host recorded."""
    clocks = _clocks(ranks, host)
    made: dict[int, list[Span]] = {rank: [] for rank in ranks}
    for part in (part for parts in ranks.values() for part in parts):
        clock = clocks[part.clock]
        for span in part.spans:
            agreed = clock(span.agreed) if span.agreed else 0
            span = replace(span, begin=clock(span.begin), end=clock(span.end), agreed=agreed)
            made[part.rank].append(span)
    return made


def _clocks(ranks: Ranks, host: HostPart | None) -> dict[str, Clock]:
    """For each clock, its conversion to the host's time, or to rank 0's where no host recorded.

    Offsets between ranks are measured at the start and at the end, which gives the drift; of a run that died, only
    at the start. Where nothing was measured, the wall clocks are compared: between the host and a rank 0 on another
    node, and for a program without Python.
    """
    parts = [part for each in ranks.values() for part in each]
    first = next(iter(ranks.values()))[0]
    shift = 0
    if host and host.clock != first.clock:
        shift = first.wall_ns - host.wall_ns
    measured = {part.clock: part.clocks for part in parts if part.clocks}
    made: dict[str, Clock] = {}
    for part in parts:
        if part.clock not in made:
            if part.clock == first.clock:
                made[part.clock] = _by([(0, shift, 0)])
            elif known := measured.get(part.clock):
                made[part.clock] = _by([(at, add + shift, took) for at, add, took in known])
            else:
                made[part.clock] = _by([(0, part.wall_ns - first.wall_ns + shift, 0)])
    return made


def _by(samples: Iterable[tuple[int, int, int]]) -> Clock:
    (at, add, _), *_, (later, more, _) = [*samples] * 2
    slope = (more - add) / (later - at) if later > at else 0.0
    return lambda ns: ns + add + round(slope * (ns - at))
