"""One stream of a rank, as a terminal would show it: lines that have ended, and progress bars that still change."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MOVES = re.compile(r"(\r|\n|\x08|\x1b\[[0-9;]*[AK])")
_MOST = 4  # bars that have ended and stay among the others


@dataclass
class _Row:
    """A line on the screen.

    Attributes:
        at: column of the cursor.
        bar: it was written over, so it is a bar.
    """

    text: str = ""
    at: int = 0
    bar: bool = False

    def write(self, text: str) -> None:
        if not self.bar:
            self.text += text
            return
        text = _ANSI.sub("", text)
        self.text = self.text[: self.at].ljust(self.at) + text + self.text[self.at + len(text) :]
        self.at += len(text)

    def back(self) -> None:
        """To the first column. A bar that was written over with blanks is none any more."""
        self.text, self.at = _ANSI.sub("", self.text), 0
        if self.bar and not self.text.strip():
            self.text, self.bar = "", False
        else:
            self.bar = True


class Stream:
    """What one stream of a rank has shown; tqdm's and Keras' bars, also nested ones, change in place."""

    def __init__(self) -> None:
        self._open: list[str] = []  # pieces of a line that has not ended, while there is no bar
        self._rows: list[_Row] = []
        self._at = 0

    def take(self, text: str) -> list[str]:
        """The lines that end with ``text``."""
        text = text.replace("\r\n", "\n")
        if self._rows or _MOVES.search(text.replace("\n", "")):
            return self._moved(text)
        *lines, rest = text.split("\n")
        if lines:
            lines[0] = "".join([*self._open, lines[0]])
            self._open.clear()
        if rest:
            self._open.append(rest)
        return lines

    def end(self) -> list[str]:
        """The line that has not ended, if there is one."""
        rest, self._open = "".join(self._open), []
        if self._rows and not self._rows[self._at].bar:
            rest, self._rows[self._at] = self._rows[self._at].text, _Row()
        return [rest] if rest else []

    def bars(self) -> list[str]:
        """The bars as they are."""
        return [row.text.rstrip() for row in self._rows if row.bar and row.text.strip()]

    def _moved(self, text: str) -> list[str]:
        if not self._rows:
            self._rows, self._at = [_Row("".join(self._open))], 0
            self._open = []
        lines = [line for piece in _MOVES.split(text) if piece for line in self._move(piece)]
        if len(self._rows) == 1 and not self._rows[0].bar:
            self._open, self._rows = [self._rows[0].text], []
        return lines

    def _move(self, piece: str) -> list[str]:
        """Text, or a movement of the cursor; the lines that end by it."""
        row = self._rows[self._at]
        if piece == "\n":
            self._at += 1
            if self._at == len(self._rows):
                self._rows.append(_Row())
            return self._ended()
        if piece == "\r":
            row.back()
        elif piece == "\b":
            row.at = max(0, row.at - 1)
        elif piece.startswith("\x1b[") and piece.endswith("A"):
            self._at = max(0, self._at - int(piece[2:-1].partition(";")[0] or 1))
        elif piece.startswith("\x1b[") and piece.endswith("K"):
            row.text = row.text[: row.at] if row.bar else row.text
        else:
            row.write(piece)
        return []

    def _ended(self) -> list[str]:
        """What is above the cursor and does not change any more: text, and the bars before it."""
        texts = [n for n in range(self._at) if not self._rows[n].bar]
        bars = sum(row.bar for row in self._rows[: self._at])
        count = texts[-1] + 1 if texts else max(0, bars - _MOST)
        gone, self._rows = self._rows[:count], self._rows[count:]
        self._at -= count
        return [row.text.rstrip() if row.bar else row.text for row in gone]
