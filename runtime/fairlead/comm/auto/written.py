"""What a script writes: rank 0 alone changes files and folders that all ranks name alike.

Another rank that opens a file for writing gets one of its own, in a temporary folder, and reads it back under the name that
it gave. At the end of the script those get their names that rank 0 has not written: each rank had its own. A folder is made
by rank 0, and whether it was there already it tells the others; only rank 0 renames and removes. Temporary folders and
caches (hidden folders outside of the script's) are as in one process.

Libraries that write by themselves, not by Python's ``open``, are not seen, but for h5py.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from fairlead import comm
from fairlead.comm.auto import files
from fairlead.comm.auto.shared import before

_DIGITS = 8  # of a time, at least
_MADE_S = 30.0  # a folder that rank 0 has not come to until then is this rank's own
_EVENTS = "events.out.tfevents."  # the rest of a name has the time and the process's number
_TEMPORARY = ("/tmp", "/var/tmp", "/dev", "/proc", "/sys")
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SETS = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)


class Files:
    """The functions that write, of Python, for as long as a script runs."""

    def __init__(self, rank: int, folder: str):
        """
        Args:
            folder: of the script.
        """
        self._rank, self._process, self._begun = rank, os.getpid(), time.time()
        temporary = [tempfile.gettempdir(), *_TEMPORARY, *filter(None, [files.folder()])]
        self._temporary = {os.path.realpath(each) for each in temporary}
        bases = {os.path.realpath(each) for each in (folder, os.curdir)}
        self._bases = [b for b in bases if not any(_below(t, [b]) for t in self._temporary)]
        self._made: Counter[str] = Counter()
        self._timed: dict[str, list[str]] = {}  # folders of rank 0 with the time in their names
        self._outcomes: dict[str, str] = {}  # of rank 0's attempts to make folders
        self._written: set[str] = set()  # by this rank, if it is rank 0
        self._of_rank_0: set[str] | None = None
        self._aside: dict[str, str] = {}  # the files of another rank, by the names that it gave
        self._own_folders: set[str] = set()  # temporary ones
        self._makes_own = False
        self._folder = ""
        self._replaced: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        """Until :meth:`end`."""
        self._replace(io, "open", self._open)
        self._replace(builtins, "open", self._open)
        self._replace(os, "open", self._open_low)
        self._replace(os, "mkdir", self._mkdir)
        self._replace(tempfile, "mkdtemp", self._mkdtemp)
        for name in ("rename", "replace"):
            self._replace(os, name, self._rename)
        if self._rank:
            for name in ("stat", "listdir", "scandir"):
                self._replace(os, name, self._stat)
            for name in ("chmod", "truncate", "utime"):
                self._replace(os, name, self._mark)
            for name in ("link", "symlink"):
                self._replace(os, name, self._link)
            self._replace(shutil, "rmtree", self._remove)
            for name in ("remove", "unlink", "rmdir"):
                self._replace(os, name, self._remove)

    def _replace(self, module: Any, name: str, change: Callable[..., Any]) -> None:
        original = getattr(module, name)
        # No function: a class that has it as an attribute is not to bind it.
        changed = partial(self._changed, change, original)
        for each in _SETS:
            if original in each:
                each.add(changed)
        self._replaced.append((module, name, original))
        setattr(module, name, changed)

    def _changed(
        self, change: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        in_folder = any(name.endswith("dir_fd") and kwargs[name] is not None for name in kwargs)
        # A loader's worker writes by itself, and reads what this rank has.
        reads = change in (self._open, self._open_low, self._stat)
        if in_folder or not (self._replaced and (reads or self._here())):
            return original(*args, **kwargs)
        return change(original, *args, **kwargs)

    def _here(self) -> bool:
        return os.getpid() == self._process

    def settle(self) -> None:
        """What rank 0 has written is known to all. Collective."""
        from fairlead.comm.frameworks.common import broadcast_object

        self._of_rank_0 = set(broadcast_object(comm.init(), sorted(self._written), 0))

    def end(self) -> None:
        """The script has ended, after :meth:`settle` or by failing."""
        for module, name, original in reversed(self._replaced):
            setattr(module, name, original)
        self._replaced.clear()
        for place, aside in self._aside.items():
            known = self._of_rank_0
            others = os.path.exists(place) if known is None else place in known
            others |= known is not None and _is_events_of(known, place)
            if not others and os.path.exists(aside):
                with suppress(OSError):
                    os.makedirs(os.path.dirname(place), exist_ok=True)
                    shutil.move(aside, place)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _place(self, path: Any) -> str:
        """The path that all ranks write, or "": it is this rank's own, or none."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return ""
        place = files.place(path)
        base = next((each for each in self._bases if _below(place, [each])), "")
        folders = place[len(base) :].split(os.sep)[:-1]
        hidden = any(each.startswith(".") for each in folders)
        temporary = not base and _below(place, self._temporary)
        return "" if hidden or temporary or _below(place, self._own_folders) else place

    def named(self, path: Any, writes: bool, keeps: str = "") -> Any:
        """The path to open in place of ``path``.

        Args:
            keeps: what is there stays: "all" of it, or "old", what was there before the script began.
        """
        writes = writes and self._here()
        if not self._rank:
            if writes and (place := self._place(path)):
                self._written.add(place)
            return path
        if not (writes or self._aside or files.names) or not (place := self._place(path)):
            return path
        if writes and place not in self._aside:
            self._aside[place] = self._new(place, keeps)
        aside = self._aside.get(place, "")
        if aside and (writes or os.path.exists(aside)):
            return aside
        return place if files.names else path

    def _new(self, place: str, keeps: str) -> str:
        """The name of a file of this rank's own, which is there if it has to have what ``place`` has."""
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="fairlead-auto-")
        aside = os.path.join(tempfile.mkdtemp(dir=self._folder), os.path.basename(place))
        there = bool(keeps) and os.path.isfile(place)
        if there and (keeps == "all" or os.path.getmtime(place) < self._begun):
            shutil.copyfile(place, aside)
        return aside

    def _open(
        self, original: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any
    ) -> Any:
        if kwargs.get("opener") is not None or not isinstance(mode, str):
            return original(file, mode, *args, **kwargs)
        writes = bool({*mode} & {*"wax+"})
        if not writes and files.was_to_save(file):
            files.wait_for(file)
        name = self.named(file, writes, {"a": "old", "r": "all"}.get(mode.strip("bt+U"), ""))
        mode = mode if name is file else mode.replace("x", "w")
        return original(name, mode, *args, **kwargs)

    def _open_low(
        self, original: Callable[..., Any], path: Any, flags: int, *args: Any, **kwargs: Any
    ) -> Any:
        keeps = "" if flags & os.O_TRUNC else "old" if flags & os.O_APPEND else "all"
        name = self.named(path, bool(flags & _CHANGES), keeps)
        flags = flags if name is path else flags & ~os.O_EXCL
        return original(name, flags, *args, **kwargs)

    def _stat(
        self, original: Callable[..., Any], path: Any = ".", *args: Any, **kwargs: Any
    ) -> Any:
        return original(self.named(path, False), *args, **kwargs)

    def _mark(self, original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> None:
        name = self.named(path, False)
        if name is not path or not self._place(path):
            original(name, *args, **kwargs)

    def _link(
        self, original: Callable[..., Any], src: Any, dst: Any, *args: Any, **kwargs: Any
    ) -> None:
        if not self._place(dst):
            original(src, dst, *args, **kwargs)

    def _mkdtemp(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._makes_own = True
        try:
            made = original(*args, **kwargs)
        finally:
            self._makes_own = False
        self._own_folders.add(os.path.realpath(os.fsdecode(made)))
        return made

    def _rename(
        self, original: Callable[..., Any], src: Any, dst: Any, *args: Any, **kwargs: Any
    ) -> None:
        source, target = self._place(src), self._place(dst)
        within = [
            each for each in self._aside or self._written if source and _below(each, [source])
        ]
        moved = {each: target + each[len(source) :] for each in within if target}
        if not self._rank or not target:
            self._written |= {target, *moved.values()} - {""}
            original(self.named(src, False), dst, *args, **kwargs)
        elif not source:  # its own becomes what all have
            self._aside[target] = self._new(target, "")
            shutil.move(src, self._aside[target])
        for each in moved if self._rank else ():
            self._aside[moved[each]] = self._aside.pop(each)

    def _remove(self, original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> None:
        if place := self._place(path):
            for each in [each for each in self._aside if _below(each, [place])]:
                del self._aside[each]
        else:
            original(path, *args, **kwargs)

    def h5py(self, module: Any) -> None:
        """Files that HDF5 opens by itself."""

        def opened(
            original: Callable[..., Any],
            file: Any,
            name: Any,
            mode: str = "r",
            *args: Any,
            **more: Any,
        ) -> None:
            writes = mode not in ("r", None)
            aside = self.named(name, writes, {"a": "old", "r+": "all"}.get(mode, ""))
            original(file, aside, mode if aside is name else mode.replace("w-", "w"), *args, **more)

        before(module.File, "__init__", opened)

    def _mkdir(self, original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> None:
        place = "" if self._makes_own else self._place(path)
        if not place or not files.folder():
            with suppress(*([FileExistsError] if place and self._rank else [])):
                original(path, *args, **kwargs)
            return
        self._made[place] += 1
        if self._rank == 0:
            self._make(place, partial(original, path, *args, **kwargs))
        elif (outcome := self._outcome(place)) == "=":
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        elif outcome != "+":
            original(path, *args, **kwargs)

    def _make(self, place: str, make: Callable[[], object]) -> None:
        outcome = "!"
        try:
            make()
            outcome = "+"
        except FileExistsError:
            outcome = "="
            raise
        finally:
            self._outcomes[place] = self._outcomes.get(place, "") + outcome
            files.write_note(files.note_of(place, "made"), self._outcomes[place])
            if outcome == "+" and (pattern := _of_now(place)):
                self._timed.setdefault(pattern, []).append(place)
                files.write_note(files.note_of(pattern, "timed"), "\n".join(self._timed[pattern]))

    def _outcome(self, place: str) -> str:
        """What rank 0's attempt to make the folder came to, made as often; "" where there was none."""
        until, note = time.monotonic() + _MADE_S, files.note_of(place, "made")
        while True:
            ended = files.ended()  # what it has noted by then is read after it
            if len(known := files.read_note(note)) >= self._made[place]:
                return known[self._made[place] - 1]
            if self._of_other_time(place):
                return "+"
            if ended or time.monotonic() > until:
                return ""
            time.sleep(0.01)

    def _of_other_time(self, place: str) -> bool:
        """Whether rank 0 has made this folder a moment before or after, which is in its name. It is then the same."""
        pattern = _of_now(place)
        of_rank_0 = files.read_note(files.note_of(pattern, "timed")).splitlines() if pattern else []
        first = pattern not in self._timed and len(of_rank_0) == 1 and place not in of_rank_0
        if not first or files.used(of_rank_0[0]) or of_rank_0[0] in self._folders_aside():
            return False
        self._timed[pattern] = of_rank_0
        files.names[place] = of_rank_0[0]
        return True

    def _folders_aside(self) -> list[str]:
        """Folders in which this rank has files aside."""
        return [os.path.dirname(each) for each in self._aside]


def _of_now(place: str) -> str:
    """A name that holds today's date or the time in seconds, with # in place of digits; "" for others."""
    name = os.path.basename(place)
    digits = "".join(filter(str.isdigit, name))
    now = time.time()
    days = [time.strftime(form, time.localtime(now)) for form in ("%Y%m%d", "%d%m%Y", "%m%d")]
    if len(digits) < _DIGITS or not any(each in digits for each in (*days, str(int(now))[:6])):
        return ""
    return os.path.join(os.path.dirname(place), "".join("#" if c.isdigit() else c for c in name))


def _is_events_of(known: Iterable[str], place: str) -> bool:
    """Whether it is a file of TensorBoard next to one of ``known``: it would draw both as one curve."""
    folder, name = os.path.split(place)
    return name.startswith(_EVENTS) and any(
        os.path.dirname(each) == folder and os.path.basename(each).startswith(_EVENTS)
        for each in known
    )


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == each or path.startswith(each.rstrip(os.sep) + os.sep) for each in folders)
