"""Text that remembers which line of a file each of its characters came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Located:
    """A piece of a file. Lines are counted from 1.

    Attributes:
        lines: the line of each character of ``text``, never falling.
    """

    text: str
    lines: tuple[int, ...]

    def __getitem__(self, part: slice) -> Located:
        return Located(self.text[part], self.lines[part])

    def __bool__(self) -> bool:
        return bool(self.text)

    def strip(self) -> Located:
        start = len(self.text) - len(self.text.lstrip())
        return self[start : len(self.text.rstrip())] if self.text.strip() else self[:0]

    @property
    def first(self) -> int:
        return self.lines[0] if self.lines else 0

    @property
    def last(self) -> int:
        return self.lines[-1] if self.lines else 0

    @property
    def shown(self) -> str:
        """On one line, for people."""
        return " ".join(self.text.split())


def of_lines(rows: Iterable[tuple[int, str]], end: str = "\n") -> Located:
    """Whole lines, given with their numbers, each closed by ``end``."""
    text, lines = [], []
    for number, row in rows:
        text.append(row + end)
        lines += [number] * len(row + end)
    return Located("".join(text), tuple(lines))


def has_content(line: str) -> bool:
    """Whether a line is neither blank nor a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def split_lines(text: str) -> list[tuple[int, str]]:
    """The lines of a file with their numbers; only ``\\n`` and ``\\r\\n`` end a line."""
    rows = text.split("\n")
    if rows and not rows[-1]:
        rows.pop()
    return [(number, row.removesuffix("\r")) for number, row in enumerate(rows, 1)]
