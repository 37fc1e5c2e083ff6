"""The page why-it-stopped: what each check means, from the catalogues of messages.

``python -m tools.why_it_stopped`` writes it; a test compares.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fairlead_build
from fairlead.base.errors import CATALOGUES
from fairlead.base.paths import atomic_write, checkout
from fairlead.doctor.registry import ordered

PAGE = "docs/reference/why-it-stopped.md"
SECTIONS = "sections.toml"  # beside the catalogues of a package
_HEAD = """\
# Why it stopped

<!-- Made by `python -m tools.why_it_stopped` from the catalogues of messages; do not edit. -->
"""
_TABLE = "| name | it means | do |\n| --- | --- | --- |\n"

assert fairlead_build.__name__  # importing it adds its catalogue


def catalogues() -> dict[Path, dict[str, Any]]:
    """Every file of messages, parsed."""
    files = sorted(f for c in CATALOGUES for f in Path(c).glob("*.toml") if f.name != SECTIONS)
    return {file: tomllib.loads(file.read_text()) for file in files}


def sections() -> tuple[str, list[dict[str, Any]]]:
    """The page's introduction, and its parts in order; what packages say of one part is together."""
    introduction = ""
    parts: dict[int, dict[str, Any]] = {}
    for folder in CATALOGUES:
        data = tomllib.loads((Path(folder) / SECTIONS).read_text())
        introduction += data.get("introduction", "")
        for part in data["part"]:
            known = parts.setdefault(part["order"], {"row": [], "section": [], "checks": []})
            for key, value in part.items():
                known[key] = known[key] + value if isinstance(value, list) else value
    return introduction, [parts[order] for order in sorted(parts)]


def documented() -> list[str]:
    """Every check that the page speaks of, as often as it does."""
    names = [check.name for check in ordered()]
    for part in sections()[1]:
        names += part["checks"] + [name for row in part["row"] for name in row["checks"]]
        for section in part["section"]:
            names += [section["check"]] if "check" in section else []
            names += [name for row in section.get("row", ()) for name in row["checks"]]
    return names


def page() -> str:
    """The page as it is published."""
    introduction, parts = sections()
    return "\n".join([_HEAD, f"{introduction}\n", *(line for p in parts for line in _part(p))])


def _part(part: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {part['title']}\n"
    if text := part.get("text", ""):
        yield f"{_with_doctor_checks(text)}\n"
    if part["row"]:
        yield _rows(part["row"])
    for section in part["section"]:
        yield f"### {section['title'] if 'title' in section else '`' + section['check'] + '`'}\n"
        if "shown" in section:
            yield f"> {' · '.join(section['shown'])}\n"
        yield f"{section['text']}\n"
        if "row" in section:
            yield _rows(section["row"])


def _rows(rows: Iterable[Mapping[str, Any]]) -> str:
    cells = (
        (", ".join(f"`{name}`" for name in row["checks"]), row["means"], row["do"]) for row in rows
    )
    return _TABLE + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _with_doctor_checks(text: str) -> str:
    """``{checks}`` stands for the names of doctor's checks."""
    if "{checks}" not in text:
        return text
    *names, last = (f"`{check.name}`" for check in ordered())
    whole = text.replace("{checks}", f"{', '.join(names)} and {last}")
    return textwrap.fill(whole, 110, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    root = checkout()
    if root is None:
        raise SystemExit("the page belongs to a checkout of fairlead")
    with atomic_write(Path(root, PAGE), "w") as out:
        out.write(page())


if __name__ == "__main__":
    main()
