"""``python -m benchmarks.tables``: writes the kept results' figures into docs/reference/measured.md, between its marks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.result import RESULTS, kept

DOC = Path(__file__).parents[1] / "docs" / "reference" / "measured.md"
_MARKED = re.compile(r"(<!-- figures ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = Mapping[str, Any]


def render(text: str) -> str:
    """The document with the figures of what is kept now."""
    from benchmarks import discover

    known = discover()

    def fill(match: re.Match[str]) -> str:
        name = match[2]
        table = known[name].table
        assert table is not None, name
        if not (RESULTS / f"{name}.json").is_file():
            return f"{match[1]}Nothing is kept yet: `python -m benchmarks {name}` measures it.\n{match[3]}"
        shown = f"![{name}](../../benchmarks/results/{name}.svg)\n\n"
        return match[1] + shown + table(kept(name)) + match[3]

    return _MARKED.sub(fill, text)


def plain(result: Mapping[str, Any]) -> str:
    """Every row as it is."""
    lines = ["| what | value | bar | |", "| --- | --- | --- | --- |"]
    for row in result["rows"]:
        lines.append(f"| {row['name']} | {value(row)} | {bar(row)} | {verdict(row)} |")
    return finished(lines, result)


def finished(lines: list[str], result: Mapping[str, Any], *more: str) -> str:
    """A table, and below it what it was measured on."""
    on = result["machine"]
    measured = (
        f"Measured {result['measured'][:10]} on {on['cores']} cores, {on['processor']}; load before:"
        f" {on['load_before']:.1f}."
    )
    return "\n".join([*lines, "", measured, *more, ""])


def efficiency(row: Row) -> str:
    """The inverse of a row's ratio of times, in percent."""
    text = f"{100 / row['value']:.0f} % [{100 / row['high']:.0f}, {100 / row['low']:.0f}]"
    if row["bar"] is None:
        return text
    return f"**{text}**, bar {100 / row['bar']:.0f} %: {verdict(row)}"


def value(row: Row) -> str:
    return f"{row['value']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"


def bar(row: Row) -> str:
    return "" if row["bar"] is None else f"{row['bar']:.3g}"


def verdict(row: Row) -> str:
    if row["bar"] is None:
        return ""
    return "not judged" if row["met"] is None else "met" if row["met"] else "missed"


if __name__ == "__main__":
    DOC.write_text(render(DOC.read_text()))
