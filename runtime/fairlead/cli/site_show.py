"""A site profile as text: every value, how well it is known, and which profile sets it.

A guess is marked with a question mark, so that it shows without colour.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import click

from fairlead.base.text import plain
from fairlead.cli.screen import table, wrap
from fairlead.site import Site, Status
from fairlead.site.model import COUNTED, UNSOURCED, Origin

_SECTIONS = (
    "detect", "scheduler", "launcher", "engine", "fabric", "mpi", "dependencies", "binds", "devices",
    "environment", "gpu", "comm", "nccl", "storage", "node", "images", "watchdog",
)  # fmt: skip
_KEY = 15  # characters; the value of a longer key begins on the next line


def profile_lines(site: Site, sources: bool, width: int) -> Iterator[str]:
    """The whole profile.

    Args:
        sources: also the source of each value.
        width: of a line, in characters.
    """
    first, *rest = wrap(plain(f"{site.name}: {site.summary}"), width)
    yield click.style(plain(site.name), bold=True) + first[len(plain(site.name)) :]
    yield from rest
    yield table(_about(site), indent="  ", width=width)
    for note in site.notes:
        first, *rest = wrap(plain(note), width - 4)
        yield f"  - {first}"
        yield from (f"    {line}" for line in rest)
    notes = _notes(site) if sources else {}
    known = 10 + (5 if notes else 0)
    own = max((len(o.profile) for o in site.origins.values()), default=0)
    head = f"  {'':{_KEY}}  {'known':{known}}  {'set by':{own}}  value"
    yield "\n" + click.style(head, bold=True)
    for section in _SECTIONS:
        keys = _keys(site, section)
        if keys:
            yield click.style(section, bold=True)
        for key in keys:
            yield from _value_lines(site, key, (known, own, width), notes)
    if site.performance:
        yield click.style("performance", bold=True)
        yield from _performance(site, notes, width)
    if notes:
        yield "\n" + click.style("sources", bold=True)
        rows = ((f"[{n}]", f"{o[0]}{f', read {o[1]}' if o[1] else ''}") for o, n in notes.items())
        yield table(rows, indent="  ", width=width)


_Notes = Mapping[tuple[str, str], int]  # (source, date of reading): its number


def _notes(site: Site) -> _Notes:
    """A number for each source, in the order of the values."""
    ordered = [o for section in _SECTIONS for o in (site.origins[k] for k in _keys(site, section))]
    origins = [*ordered, *(reference.origin for reference in site.performance)]
    named = dict.fromkeys((o.source, o.read) for o in origins if o.source != UNSOURCED)
    return {source: number for number, source in enumerate(named, start=1)}


def _keys(site: Site, section: str) -> list[str]:
    """The values of a section; an entry of a table is shown with the table."""
    return [k for k in site.origins if k.startswith(f"{section}.") and k.count(".") == 1]


def _note(origin: Origin, notes: _Notes) -> str:
    number = notes.get((origin.source, origin.read))
    return f" [{number}]" if number else ""


def _about(site: Site) -> list[tuple[str, str]]:
    counts = [f"{n} {COUNTED[status]}" for status, n in site.known.items() if n]
    about = {
        "extends": " < ".join(site.lineage[1:]),
        "operator": site.operator,
        "valid": _validity(site),
        "values": ", ".join(counts) + " (? below)" * bool(site.known[Status.GUESS]),
    }
    return [row for row in about.items() if row[1]]


def _validity(site: Site) -> str:
    """``until 2023-05-31 (past)``; empty where no date is known."""
    parts = [f"from {site.since}"] if site.since else []
    if site.until:
        past = str(datetime.date.today()) > site.until
        parts.append(f"until {site.until}" + " (past)" * past)
    return " ".join(parts)


def _value_lines(
    site: Site, key: str, widths: tuple[int, int, int], notes: _Notes
) -> Iterator[str]:
    origin = site.origins[key]
    guess = origin.status is Status.GUESS
    known, own, width = widths
    name = key.partition(".")[2]
    source = f"{origin.status.value}{' ?' if guess else ''}{_note(origin, notes)}"
    indent = " " * (2 + _KEY + 2 + known + 2 + own + 2)
    lines = [
        line
        for item in _items(site, key)
        for line in wrap(plain(item), max(width - len(indent), 20))
    ]
    if len(name) > _KEY:
        yield f"  {name}"
        name = ""
    shown = f"{source:{known}}"
    marked = click.style(shown, fg="yellow") if guess else shown
    yield f"  {name:{_KEY}}  {marked}  {origin.profile:{own}}  {lines[0]}".rstrip()
    yield from (f"{indent}{line}" for line in lines[1:])


def _items(site: Site, key: str) -> list[str]:
    """A value in paragraphs: an entry of a table each, a list in one."""
    value = site.value(key)
    if isinstance(value, Mapping):
        entries = [f"{_entry(n, v)}{_apart(site, key, n)}" for n, v in value.items()]
        return entries or ["none"]
    if isinstance(value, tuple):
        return [", ".join(map(str, value)) or "none"]
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if isinstance(value, float):
        return [f"{value:g}"]
    return [str(value) or "none"]


def _entry(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return f"{name}: {' '.join(value)}"
    variable = name.replace("_", "").isalnum()
    return f"{name}={value}" if variable else f"{name}: {value}"


def _apart(site: Site, key: str, name: str) -> str:
    """Where an entry of a table comes from, when that is another profile than the table's last."""
    table_, entry = site.origins[key], site.origins.get(f"{key}.{name}")
    if entry is None or (entry.status, entry.profile) == (table_.status, table_.profile):
        return ""
    return f" ({entry.status.value}{' ?' * (entry.status is Status.GUESS)}, {entry.profile})"


def _performance(site: Site, notes: _Notes, width: int) -> Iterator[str]:
    for reference in site.performance:
        which = "or more" if reference.higher_is_better else "or less"
        value = f"{reference.what}: {reference.value:g} {reference.unit} {which}"
        known = f"{reference.origin.status.value}{_note(reference.origin, notes)}"
        yield from (f"  {line}" for line in wrap(plain(f"{value} ({known})"), width - 2))
        if reference.conditions:
            yield from (f"    {line}" for line in wrap(plain(reference.conditions), width - 4))
