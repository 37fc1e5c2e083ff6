"""What ranks print and show, in the cell: equal lines of several ranks once, progress bars in place."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_FLUSH_S = 0.2  # in which equal lines of ranks come together
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


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

    def show(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """One rich output."""

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

    stdout: str = ""
    stderr: str = ""
    displays: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: tuple[str, str, list[str]] | None = None
    died: str = ""


class Output:
    """The output of one cell from all of its ranks.

    Args:
        quiet: nothing is shown.
    """

    def __init__(self, ranks: Sequence[int], screen: Screen, quiet: bool = False):
        self.of = {rank: Captured() for rank in ranks}
        self._screen, self._quiet = screen, quiet
        self._rest: dict[tuple[int, str], str] = defaultdict(str)
        self._bars: dict[tuple[int, str], str] = {}
        self._lines: dict[tuple[str, str], list[int]] = {}
        self._shown: list[tuple[list[int], dict[str, Any], dict[str, Any]]] = []
        self._flushed, self._bars_changed = time.monotonic(), False

    def take(self, rank: int, kind: str, content: Any) -> None:
        """One message of a rank."""
        one = self.of[rank]
        if kind == "stream":
            name, text = content["name"], content["text"]
            setattr(one, name, getattr(one, name) + text)
            self._stream(rank, name, text)
        elif kind == "display_data":
            one.displays.append(content["data"])
            self._display(rank, content["data"], content.get("metadata", {}))
        elif kind == "execute_result":
            one.result = content["data"]
        elif kind == "error":
            one.error = (content["ename"], content["evalue"], list(content["traceback"]))
        elif kind == "died":
            one.died = content
            self._screen.write("stderr", f"rank {rank} {content}\n")

    def _stream(self, rank: int, name: str, text: str) -> None:
        key = rank, name
        *lines, rest = (self._rest[key] + text).split("\n")
        for line in lines:
            if key in self._bars or "\r" in line:  # the last state of a bar
                self._bar(key, line)
                continue
            self._lines.setdefault((name, line), []).append(rank)
        self._rest[key] = rest
        if "\r" in rest:
            self._bar(key, rest)
            self._rest[key] = "\r" + self._bars.get(key, "")

    def _bar(self, key: tuple[int, str], text: str) -> None:
        state = [part for part in _ANSI.sub("", text).split("\r") if part.strip()]
        if state:
            self._bars[key] = state[-1]
            self._bars_changed = True

    def _display(self, rank: int, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        for ranks, other, _ in self._shown:
            if other == data and rank not in ranks:
                ranks.append(rank)
                return
        self._shown.append(([rank], data, metadata))

    def flush(self, last: bool = False) -> None:
        """Shows what has come since, if a moment has passed."""
        now = time.monotonic()
        if not last and now - self._flushed < _FLUSH_S:
            return
        self._flushed = now
        if last:
            for (rank, name), rest in self._rest.items():
                if rest and (rank, name) not in self._bars:
                    self._lines.setdefault((name, rest), []).append(rank)
            self._rest.clear()
        if not self._quiet:
            self._write()
        self._lines, self._shown, self._bars_changed = {}, [], False

    def _write(self) -> None:
        texts: dict[str, list[str]] = defaultdict(list)
        for (name, line), ranks in self._lines.items():
            # A rank may print a line several times.
            for times in range(max(map(ranks.count, ranks))):
                who = spans(r for r in set(ranks) if ranks.count(r) > times)
                texts[name].append(f"[{who}] {line}\n")
        for name, lines in texts.items():
            self._screen.write(name, "".join(lines))
        if self._bars_changed:
            bars: dict[str, list[int]] = defaultdict(list)
            for (rank, _), text in sorted(self._bars.items()):
                bars[text].append(rank)
            self._screen.update("\n".join(f"[{spans(r)}] {text}" for text, r in bars.items()))
        for ranks, data, metadata in self._shown:
            self._screen.write("stdout", f"[{spans(ranks)}]\n")
            self._screen.show(data, metadata)

    def results(self) -> None:
        """Shows the values of the last line, equal ones once."""
        groups: list[tuple[list[int], dict[str, Any]]] = []
        for rank, one in self.of.items():
            if one.result is None:
                continue
            same = next((ranks for ranks, data in groups if data == one.result), None)
            if same is not None:
                same.append(rank)
            else:
                groups.append(([rank], one.result))
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
        for rank, one in self.of.items():
            if one.error:
                groups[one.error[:2]].append(rank)
        said = []
        for (name, text), ranks in groups.items():
            error = self.of[ranks[0]].error
            assert error
            head = f"[{spans(ranks)}] {name}"
            self._screen.write("stderr", "\n".join([head, *error[2]]) + "\n")
            said.append(f"[{spans(ranks)}] {name}: {text}".rstrip(": "))
        return "; ".join(said)
