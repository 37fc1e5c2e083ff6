"""How measurements are written for people: amounts with units, sizes of messages, what was measured where."""

from __future__ import annotations

from fairlead.validate.model import Measurement, Way, What


def amount(value: float, unit: str) -> str:
    """Three digits and a unit that suits them: ``12.3 µs``, ``4.56 GB/s``."""
    if unit == "s":
        for name, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
            if value >= scale:
                return f"{_digits(value / scale)} {name}"
        return f"{_digits(value / 1e-9)} ns"
    if unit == "B/s":
        for name, scale in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
            if value >= scale:
                return f"{_digits(value / scale)} {name}"
    return f"{_digits(value)} {unit}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def label(m: Measurement) -> str:
    """A measurement in words: ``allreduce of 64 MiB, 64 ranks on 8 nodes, container``."""
    if m.what is What.START:
        return f"start: {m.subject}, {where(m)}, {name_of(m.way)}"
    what = ("training" if m.what is What.TRAIN else m.what.value) + (
        f" of {m.subject}" if m.subject else ""
    )
    return f"{what}, {where(m)}, {name_of(m.way)}"


def where(m: Measurement) -> str:
    of = f"{size(m.bytes)}, " if m.bytes is not None else ""
    nodes = f" on {m.nodes} nodes" if m.nodes > 1 else ""
    crowded = ", sharing cores" if m.crowded else ""
    return f"{of}{count(m.ranks, 'rank')}{nodes}{crowded}"


def name_of(way: Way) -> str:
    """In a legend."""
    return {
        Way.NATIVE: "native",
        Way.CONTAINER: "container",
        Way.IMAGE: "container, its own MPI",
    }[way]


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
