"""``%%ranks`` and ``%ranks``: cells that run on ranks, and what a session is asked for."""

from __future__ import annotations

import queue
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import DisplayHandle, display

from fairlead.notebook import variables
from fairlead.notebook.display import Captured, Key, Output, spans
from fairlead.notebook.journal import missed
from fairlead.notebook.ranks import Ranks, RanksError, Running, deaths
from fairlead.notebook.settings import NAMES, TRACE, order, read_json, saved_to, write_private

_USAGE = """\
%%ranks [LIST] [--quiet] [--capture NAME]   run the cell on all ranks, or on those of LIST, as 0-3,7
%ranks [LIST] STATEMENT                     the same for one line
%ranks                                      show the ranks
%ranks restart [LIST] [--fresh]             new ranks, with their variables; those of LIST, or all, without
%ranks interrupt                            interrupt what runs on the ranks
%ranks save NAME... [--to DIR]              save variables when the session ends, also at the end of its job
%ranks load [DIR]                           take saved variables
%ranks timeline [SECONDS]                   draw what the ranks did in the latest cell, or in the last SECONDS of the record
%ranks missed                               show again what cells have put out while no browser was connected
%ranks stop                                 end the session"""
_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
# Short waits leave no line. VS Code 1.139 was seen to drop updates that follow at once, so that "0 of 3" stayed.
_QUIET_S = 2.0
_AFTER_DEATH_S = 2.0  # for ranks that do not wait for the dead one to end their cell


def chosen(text: str, count: int) -> list[int]:
    """The ranks of a list such as ``0-3,7``; all of them where it is empty.

    Raises:
        UsageError: there is no such rank.
    """
    if not text:
        return list(range(count))
    ranks: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high >= count:
            raise UsageError(f"%ranks {text}: ranks are 0-{count - 1}")
        ranks |= dict.fromkeys(range(low, high + 1))
    return list(ranks)


class Waiting:
    """A line in the cell that shows what a wait of more than ``quiet_s`` is for, and changes in place."""

    def __init__(self, at_end: str, quiet_s: float = _QUIET_S):
        self._at_end, self._quiet_until = at_end, time.monotonic() + quiet_s
        self._line: DisplayHandle | None = None
        self._last = ""

    def __call__(self, text: str) -> None:
        """Shows what is waited for; nothing once ``text`` is empty."""
        if self._line and text != self._last:
            self._line.update({"text/plain": text or self._at_end}, raw=True)
        elif text and not self._line and time.monotonic() >= self._quiet_until:
            self._line = DisplayHandle()
            self._line.display({"text/plain": text}, raw=True)
        self._last = text


class Cell:
    """The output of the cell that runs in this kernel."""

    def __init__(self) -> None:
        self._bars: DisplayHandle | None = None
        self._handles: dict[Key, DisplayHandle] = {}

    def write(self, name: str, text: str) -> None:
        getattr(sys, name).write(text)

    def show(
        self, data: dict[str, Any], metadata: dict[str, Any], key: Key = (), new: bool = True
    ) -> None:
        if new or key not in self._handles:
            self._handles[key] = DisplayHandle()
            self._handles[key].display(data, metadata=metadata, raw=True)
        else:
            self._handles[key].update(data, metadata=metadata, raw=True)

    def update(self, text: str) -> None:
        shown = {"text/plain": text}
        if self._bars is None:
            self._bars = DisplayHandle()
            self._bars.display(shown, raw=True)
        else:
            self._bars.update(shown, raw=True)
        if not text:  # later bars come below what is printed until then
            self._bars = None


@magics_class
class RanksMagics(Magics):  # type: ignore[misc]
    """The magics of a kernel with ranks."""

    def __init__(self, shell: Any, ranks: Ranks):
        super().__init__(shell)
        self._ranks = ranks
        self._verbs: dict[str, Callable[[list[str]], None]] = {
            "restart": self._restart, "interrupt": self._interrupt, "save": self._save,
            "load": self._load, "missed": self._missed, "stop": self._stop, "help": self._help,
            "timeline": self._timeline,
        }  # fmt: skip
        self._latest = 0, 0  # when the latest cell on ranks began and ended, ns

    @line_cell_magic  # type: ignore[untyped-decorator]
    def ranks(self, line: str, cell: str | None = None) -> None:
        """Runs a cell on ranks, or shows and manages them; `%ranks help` lists all forms."""
        words = line.split(maxsplit=1)
        head = words[0] if words else ""
        if cell is None and not head:
            self._table()
        elif cell is None and head in self._verbs:
            self._verbs[head](shlex.split(words[1]) if len(words) > 1 else [])
        elif cell is None:
            listed = _LIST.fullmatch(head) and len(words) > 1
            self._run(
                words[1] if listed else line, chosen(head if listed else "", len(self._ranks))
            )
        else:
            self._cell(line, cell)

    def _cell(self, line: str, cell: str) -> None:
        words, listed, quiet, capture = shlex.split(line), "", False, ""
        while words:
            word = words.pop(0)
            if word in ("-q", "--quiet"):
                quiet = True
            elif word == "--capture" and words:
                capture, quiet = words.pop(0), True
            elif _LIST.fullmatch(word) and not listed:
                listed = word
            else:
                raise UsageError(f"%%ranks {line}: unknown word `{word}`\n{_USAGE}")
        self._run(cell, chosen(listed, len(self._ranks)), quiet, capture)

    def _run(self, code: str, ranks: Sequence[int], quiet: bool = False, capture: str = "") -> None:
        self._ready()
        output = Output(ranks, Cell(), quiet)
        begun = time.time_ns()
        running = self._ranks.start(self.shell.transform_cell(code), ranks)
        try:
            self._follow(running, output)
        finally:
            self._latest = begun, time.time_ns()
            running.left.clear()
            output.flush(last=True)
            if capture:
                self.shell.user_ns[capture] = output.of
        if not quiet:
            output.results()
        failed = output.errors()
        if gone := {
            n: rank_output.died for n, rank_output in output.of.items() if rank_output.died
        }:
            raise RanksError(deaths(gone))
        if failed:
            raise RanksError(failed)

    def _ready(self) -> None:
        self._ranks.ready(Waiting("all ranks are there"))

    def _follow(self, running: Running, output: Output) -> None:
        """Shows what comes until all ranks are through, or one has died."""
        until = None
        try:
            while running.left and (until is None or time.monotonic() < until):
                died = _next(running, output)
                until = until or (time.monotonic() + _AFTER_DEATH_S if died else None)
        except KeyboardInterrupt:
            self._interrupted(running, output)
        if running.left:
            self._free_of_dead(running, output)

    def _free_of_dead(self, running: Running, output: Output) -> None:
        """Interrupts ranks that may wait for a dead one; those that are inside MPI stay there until a restart."""
        self._ranks.signal(signal.SIGINT, running.left)
        until = time.monotonic() + _AFTER_DEATH_S
        while running.left and time.monotonic() < until:
            _next(running, output)
        if running.left:
            output.flush(last=True)
            print(
                f"ranks {spans(running.left)} wait inside a call, perhaps for it", file=sys.stderr
            )

    def _interrupted(self, running: Running, output: Output) -> None:
        """Sends SIGINT to ranks; replaces those that a call of MPI keeps from seeing it."""
        grace = self._ranks.settings.grace_s
        self._ranks.signal(signal.SIGINT, running.left)
        until = time.monotonic() + grace
        try:
            while running.left and time.monotonic() < until:
                _next(running, output)
        except KeyboardInterrupt:  # impatience
            pass
        output.flush(last=True)
        if not running.left:
            return
        print(
            f"ranks {spans(running.left)} are inside a call that SIGINT does not end, of MPI perhaps: all ranks are "
            "replaced, and keep their variables", file=sys.stderr,
        )  # fmt: skip
        for rank in running.left:
            output.of[rank].error = ("KeyboardInterrupt", "inside a call", [])
        running.left.clear()
        self._replace(keep=True)

    def _replace(self, keep: bool) -> None:
        begun = time.monotonic()
        carried = self._ranks.restart(keep)
        kept = sum(map(len, carried["kept"].values()))
        text = f"world {self._ranks.world}: {len(self._ranks)} new ranks in {time.monotonic() - begun:.1f} s"
        print(f"{text}, {kept} variables kept; {self._ranks.proof}".rstrip("; "))
        for rank, names in sorted(carried["lost"].items()):
            for name, why in names.items():
                print(f"rank {rank}: {name} is lost: {why}", file=sys.stderr)

    # The forms of %ranks.

    def _table(self) -> None:
        known = self._ranks.table()
        rows = [f"{'rank':>5} {'process':>8} {'host':<16} state"]
        for row in known:
            state = row.died or row.busy or ("idle" if row.pid else "starting")
            rows.append(f"{row.rank:>5} {row.pid or '':>8} {row.host:<16} {state}")
        if proof := self._ranks.proof:
            rows.append(proof)
        print("\n".join(rows))

    def _restart(self, words: list[str]) -> None:
        fresh = "--fresh" in words
        listed = [word for word in words if word != "--fresh"]
        if len(listed) > 1 or (listed and not _LIST.fullmatch(listed[0])):
            raise UsageError(_USAGE)
        if listed:
            named = chosen(listed[0], len(self._ranks))
            living = [n for n in named if n not in self._ranks.dead]
            # A rank that is to be new takes nothing with it.
            self._ranks.signal(signal.SIGKILL, living)
            until = time.monotonic() + _AFTER_DEATH_S
            while {*named} - {*self._ranks.dead} and time.monotonic() < until:
                time.sleep(0.01)
        self._replace(keep=not fresh)

    def _interrupt(self, words: list[str]) -> None:
        self._ranks.signal(signal.SIGINT, range(len(self._ranks)))

    def _save(self, words: list[str]) -> None:
        folder = ""
        if "--to" in words[:-1]:
            at = words.index("--to")
            folder = str(Path(words[at + 1]).expanduser().absolute())
            words = [*words[:at], *words[at + 2 :]]
        path = self._ranks.folder / NAMES
        asked = read_json(path)
        names = sorted({*asked.get("names", ()), *words})
        if bad := [name for name in words if not name.isidentifier()]:
            raise UsageError(f"%ranks save: not names of variables: {', '.join(bad)}")
        folder = folder or str(saved_to(self._ranks.folder))
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_private(path, _json({"names": names, "folder": folder}))
        print(f"saved to {folder} when the session ends: {', '.join(names) or 'nothing'}")

    def _load(self, words: list[str]) -> None:
        folder = Path(words[0]).expanduser().absolute() if words else None
        folder = folder or saved_to(self._ranks.folder)
        if not folder.is_dir():
            raise UsageError(f"%ranks load: there is no folder {folder}")
        if lost := variables.restore(folder / "kernel.pickle", self.shell.user_ns):
            print(lost, file=sys.stderr)
        code = (
            "from fairlead.notebook import variables as _v; from pathlib import Path as _P\n"
            f"print(_v.restore(_P({str(folder)!r}) / f'rank-{{MPI.COMM_WORLD.rank}}.pickle', globals()), end='')"
        )
        self._run(code, chosen("", len(self._ranks)))

    def _timeline(self, words: list[str]) -> None:
        settings = self._ranks.settings
        if not settings.timeline:
            raise UsageError(
                "this session records no timeline; start it by `fairlead notebook --timeline`"
            )
        from fairlead.notebook import timeline
        from fairlead.trace.document import recorded

        group = recorded(settings.world(self._ranks.world) / TRACE)
        if group is None:
            raise UsageError(
                "nothing is recorded before `fairlead.comm.init()` on the ranks of this world"
            )
        begin, end = timeline.window(group, _seconds(words)) if words else self._latest
        drawn = timeline.draw(group, begin, end)
        if drawn is None:
            print(
                "no step, collective or span then; `%ranks timeline 60` draws the last 60 s of what is recorded"
            )
            return
        display({"image/svg+xml": drawn.svg, "text/plain": drawn.text}, raw=True)

    def _missed(self, words: list[str]) -> None:
        missed(self._ranks.folder, self.shell)

    def _stop(self, words: list[str]) -> None:
        order(self._ranks.folder, do="stop", why="`%ranks stop`")
        print("the session ends")

    def _help(self, words: list[str]) -> None:
        print(_USAGE)


def _seconds(words: list[str]) -> float:
    try:
        [seconds] = map(float, words)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError("%ranks timeline: SECONDS is a number above 0")
    return seconds


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


def _next(running: Running, output: Output) -> bool:
    """Takes one event, or waits a moment for it; whether a rank has died."""
    try:
        rank, kind, content = running.events.get(timeout=0.05)
    except queue.Empty:
        output.flush()
        return False
    if rank not in output.of or (kind == "died" and rank not in running.left):
        return kind == "died"
    output.take(rank, kind, content)
    if kind in ("over", "died"):
        running.left.discard(rank)
    if running.left:
        output.flush()
    return kind == "died"


__all__ = ["Captured", "RanksMagics", "chosen"]
