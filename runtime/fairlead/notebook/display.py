"""What ranks print and show, in the cell: equal lines of several ranks once, progress bars in place.

The order of a rank's lines and displays is that in which the rank has put them out.
"""

from __future__ import annotations

import io
import json
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from fairlead.notebook.terminal import Stream

_FLUSH_S = 0.2  # in which equal lines of ranks come together
Key = (
    tuple[int, ...] | tuple[int, str]
)  # of a display: its ranks, or its rank and that rank's name for it


def spans(ranks: Iterable[int]) -> str:
    """Numbers as ranges.

    >>> spans([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)


class Screen(Protocol):
    """Where a cell's output goes."""

    def write(self, name: str, text: str) -> None:
        """Text for stdout or stderr."""

    def show(
        self, data: dict[str, Any], metadata: dict[str, Any], key: Key = (), new: bool = True
    ) -> None:
        """One rich output; one that is not new takes the place of the latest with that key."""

    def update(self, text: str) -> None:
        """The text of the cell's progress bars."""


@dataclass
class Captured:
    """What one rank has put out.

    Attributes:
        displays: rich outputs, each a dictionary of MIME types.
        result: the value of the cell's last line, in the same form.
        error: name and text of an exception, with the lines of its traceback.
    """

    displays: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: tuple[str, str, list[str]] | None = None
    died: str = ""
    _text: dict[str, io.StringIO] = field(
        default_factory=lambda: defaultdict(io.StringIO), repr=False
    )

    def add(self, name: str, text: str) -> None:
        """Takes what comes on stdout or stderr."""
        self._text[name].write(text)

    @property
    def stdout(self) -> str:
        return self._text["stdout"].getvalue()

    @property
    def stderr(self) -> str:
        return self._text["stderr"].getvalue()


@dataclass
class _Entry:
    """Lines or displays that are to be shown, equal ones of several ranks together.

    Attributes:
        name: of a stream, or empty for a display.
        what: a line, or a display as JSON.
        new: false for an update of a display.
    """

    name: str
    what: str
    ranks: list[int]
    data: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    key: Key | None = None
    new: bool = True


class Output:
    """The output of one cell from all of its ranks.

    Args:
        quiet: nothing is shown.
    """

    def __init__(self, ranks: Sequence[int], screen: Screen, quiet: bool = False):
        self.of = {rank: Captured() for rank in ranks}
        self._screen, self._quiet = screen, quiet
        self._streams: dict[tuple[int, str], Stream] = defaultdict(Stream)
        self._entries: list[_Entry] = []
        self._places: dict[tuple[str, str], list[int]] = defaultdict(list)  # among the entries
        self._next: dict[int, int] = defaultdict(int)  # place behind a rank's latest entry
        self._cleared: set[int] = set()  # ranks whose next display takes the place of their latest
        self._drawn: set[Key] = set()
        self._bars: list[str] = []
        self._flushed = time.monotonic()

    def take(self, rank: int, kind: str, content: Any) -> None:
        """One message of a rank."""
        rank_output = self.of[rank]
        if kind == "stream":
            name, text = content["name"], content["text"]
            rank_output.add(name, text)
            if not self._quiet:
                for line in self._streams[rank, name].take(text):
                    self._enter(rank, _Entry(name, line, [rank]))
        elif kind in ("display_data", "update_display_data"):
            if kind == "display_data":
                rank_output.displays.append(content["data"])
            self._display(rank, kind == "display_data", content)
        elif kind == "clear_output":
            self._cleared.add(rank)
        elif kind == "execute_result":
            rank_output.result = content["data"]
        elif kind == "error":
            rank_output.error = (content["ename"], content["evalue"], list(content["traceback"]))
        elif kind == "died":
            rank_output.died = content
            self._screen.write("stderr", f"rank {rank} {content}\n")

    def _display(self, rank: int, new: bool, content: Any) -> None:
        if self._quiet:
            return
        self._end_lines(rank)
        data, metadata = content["data"], content.get("metadata", {})
        name = (content.get("transient") or {}).get("display_id")
        what = json.dumps(data, sort_keys=True, default=str)
        entry = _Entry("", what, [rank], data, metadata, (rank, str(name)) if name else None, new)
        if not new:  # between two looks, the latest update counts
            for place in range(len(self._entries) - 1, -1, -1):
                if self._entries[place].key == entry.key:
                    entry.new = self._entries[place].new
                    self._entries[place] = entry
                    return
        self._enter(rank, entry)

    def _enter(self, rank: int, entry: _Entry) -> None:
        """Puts an entry behind the rank's latest; one that is equal, and comes after that, takes the rank in."""
        places = self._places[entry.name, entry.what] if entry.key is None else []
        at = bisect_left(places, self._next[rank])
        if at < len(places):
            place = places[at]
            self._entries[place].ranks.append(rank)
        else:
            place = len(self._entries)
            self._entries.append(entry)
            places.append(place)
        self._next[rank] = place + 1

    def _end_lines(self, rank: int) -> None:
        for name in ("stdout", "stderr"):
            if (rank, name) in self._streams:
                for line in self._streams[rank, name].end():
                    self._enter(rank, _Entry(name, line, [rank]))

    def flush(self, last: bool = False) -> None:
        """Shows what has come since, if a moment has passed."""
        now = time.monotonic()
        if not last and now - self._flushed < _FLUSH_S:
            return
        self._flushed = now
        if last:
            for rank in self.of:
                self._end_lines(rank)
        self._write()
        self._entries = []
        self._places.clear()
        self._next.clear()

    def _write(self) -> None:
        for name, entries in groupby(self._entries, lambda entry: entry.name):
            if name:
                lines = (f"[{spans(entry.ranks)}] {entry.what}\n" for entry in entries)
                self._screen.write(name, "".join(lines))
                continue
            for entry in entries:
                self._show(entry)
        bars: dict[str, list[int]] = defaultdict(list)
        for (rank, _), stream in sorted(self._streams.items()):
            for text in stream.bars():
                bars[text].append(rank)
        shown = [f"[{spans(ranks)}] {text}" for text, ranks in bars.items()]
        if shown != self._bars:
            self._bars = shown
            self._screen.update("\n".join(shown))

    def _show(self, entry: _Entry) -> None:
        ranks, key = tuple(sorted(entry.ranks)), entry.key
        if key is None and self._cleared.issuperset(ranks) and ranks in self._drawn:
            key, entry.new = ranks, False
        self._cleared.difference_update(ranks)
        if entry.new or (key or ranks) not in self._drawn:
            self._drawn.add(key or ranks)
            self._screen.write("stdout", f"[{spans(ranks)}]\n")
        self._screen.show(entry.data, entry.metadata, key or ranks, entry.new)

    def results(self) -> None:
        """Shows the values of the last line, equal ones once."""
        groups: list[tuple[list[int], dict[str, Any]]] = []
        for rank, rank_output in self.of.items():
            if rank_output.result is None:
                continue
            same = next((ranks for ranks, data in groups if data == rank_output.result), None)
            if same is not None:
                same.append(rank)
            else:
                groups.append(([rank], rank_output.result))
        for ranks, data in groups:
            head = f"Out[{spans(ranks)}]:"
            if set(data) <= {"text/plain"}:
                text = str(data.get("text/plain", ""))
                self._screen.write("stdout", f"{head}{chr(10) if chr(10) in text else ' '}{text}\n")
            else:
                self._screen.write("stdout", f"{head}\n")
                self._screen.show(data, {})

    def errors(self) -> str:
        """Shows one traceback of each kind of error; all of them in one line, empty without any."""
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for rank, rank_output in self.of.items():
            if rank_output.error:
                groups[rank_output.error[:2]].append(rank)
        errors = []
        for (name, text), ranks in groups.items():
            error = self.of[ranks[0]].error
            assert error
            head = f"[{spans(ranks)}] {name}"
            self._screen.write("stderr", "\n".join([head, *error[2]]) + "\n")
            errors.append(f"[{spans(ranks)}] {name}: {text}".rstrip(": "))
        return "; ".join(errors)
