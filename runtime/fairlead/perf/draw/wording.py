"""How measurements are written for people: amounts with units, sizes of messages, what was measured where."""

from __future__ import annotations

import re

from fairlead.ml import registry
from fairlead.perf.records.validation import Measurement, Way, What

# How fairlead.perf.measure.ranks.messages names what carried a message: backend, then the MPI below it.
_CARRIED = re.compile(r"fairlead\.comm \((\w+)(?: \((.+)\))?\)")

_SCALES = {
    "s": (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)),
    "B/s": (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0)),
}
_ROUNDED = 0.9995  # what three digits show as 1,000 of a unit is 1.00 of the next


def amount(value: float, unit: str) -> str:
    """Three digits and a unit that suits them: ``12.3 µs``, ``4.56 GB/s``."""
    scales = _SCALES.get(unit, ((unit, 1.0),))
    name, scale = next((s for s in scales if value >= _ROUNDED * s[1]), scales[-1])
    return f"{digits(value / scale)} {name}"


def digits(value: float) -> str:
    """Three of them, or all of a whole number: ``0.500``, ``27.0``, ``1,249``."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def milliseconds(value: float) -> str:
    """Of a step: ``1,249 ms``, ``12 ms``, ``0.3 ms``."""
    if value < 0.005:
        return "0 ms"
    return f"{value:,.{0 if value >= 10 else 1 if value >= 0.1 else 2}f} ms"


def duration(seconds: float) -> str:
    """Of a run: ``0.45 s``, ``12.3 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 99.95:
        return f"{seconds:.{2 if seconds < 0.995 else 1}f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60:02} min"


def between(low: float, high: float, unit: str) -> str:
    """An interval, its unit once where both ends have the same: ``39.3 to 40.7 samples/s``."""
    first, last = amount(low, unit), amount(high, unit)
    same_unit = first.partition(" ")[2] == last.partition(" ")[2]
    return f"{first.partition(' ')[0] if same_unit else first} to {last}"


def label(m: Measurement) -> str:
    """A measurement in words: ``allreduce, 64 MiB, 64 ranks on 8 nodes, container``."""
    if m.what is What.START:
        return f"start: {m.subject}, {where(m)}, {name_of(m.way)}"
    words = {What.TRAIN: "training of", What.INPUT: "input of", What.PINGPONG: "pingpong,"}
    by = f"{words.get(m.what, m.what.value + ' by')} {subject(m)}" if m.subject else m.what.value
    return f"{by}, {where(m)}, {name_of(m.way)}"


def subject(m: Measurement) -> str:
    """What distinguishes it, for people: ``fairlead.comm, native core over mpich``, ``ranks 0 and 1``."""
    if match := _CARRIED.fullmatch(m.subject):
        carrier = "native core" if match[1] == "native" else match[1]
        return f"fairlead.comm, {carrier}" + (f" over {match[2]}" if match[2] else "")
    return m.subject.replace(" - ", " and ") if m.what is What.PINGPONG else m.subject


def model_title(name: str) -> str:
    """``HEP-CNN`` for ``hepcnn``; what is not a bundled model keeps its name."""
    task = registry.REGISTRY.find(name)
    return task.title if task else name


def where(m: Measurement) -> str:
    of = f"{size(m.bytes)}, " if m.bytes is not None else ""
    nodes = f" on {m.nodes} nodes" if m.nodes > 1 else ""
    crowded = ", sharing cores" if m.crowded else ""
    return f"{of}{count(m.ranks, 'rank')}{nodes}{crowded}"


def name_of(way: Way) -> str:
    """In a legend."""
    return "container, its own MPI" if way is Way.IMAGE else way.value


def count(number: int, thing: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def size(amount: int) -> str:
    """Bytes, as messages are called: powers of two by their short names, others by ten."""
    for unit, step in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if amount >= 1 << step and amount % (1 << step) == 0:
            return f"{amount >> step} {unit}"
    for unit, ten in (("GB", 9), ("MB", 6), ("kB", 3)):
        if amount >= 10**ten:
            return f"{amount / 10**ten:.4g} {unit}"
    return f"{amount} B"


def percent(share: float) -> str:
    """``0.59`` as ``59 %``."""
    return f"{100 * share:.0f} %"
