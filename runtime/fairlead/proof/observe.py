"""What processes of a launch have mapped, whether or not their MPI_Init was seen.

The witness stands around MPI_Init by name. A program that calls it by address passes it by, and a program for which
the loader ignores LD_PRELOAD has no witness at all. So each process says at its end what it has mapped (``seen.*``),
and those of this node are looked at while they run.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base import proc_stat
from fairlead.elf.reader import TEXTS
from fairlead.launch import processes
from fairlead.proof.closure import File, Library, Mapped, is_planned, judged
from fairlead.prove import RANK_VARIABLES
from fairlead.swap.model import WITNESS, Plan

_SMALLEST = 300_000  # bytes of a file that can contain an MPI
_READ = 1 << 28  # bytes of such files in one look; the rest has to wait for the next
_AT_SECURE = 23  # getauxval(3)
_MOST_S = 5.0  # between two looks
_COST = 20  # a look may take one part of so many of a core's time
_LATER_S, _LATER_COST = 2.0, 200  # the same once the launch is proved


@dataclass(frozen=True)
class Sighting:
    """One process and the MPI in it.

    Attributes:
        rank: as its launcher numbers it; may be "".
        how: ``end``, ``exec``, ``session``, ``init`` or ``unasked`` when the witness in it has reported, ``running`` when it was
            looked at.
        program: path of its program; "" when the witness has reported.
        unseen: why it has no witness: ``static``, ``privileged`` or ``unloaded``; "" when it has one.
        library_path: its LD_LIBRARY_PATH, where known.
        version: what the MPI that is not as planned says of itself; may be "".
        ran: an MPI was not only mapped, but started, as far as is known.
        ranked: it has some of the variables that its rank was launched with, or that is not known.
        world: how many ranks its session of MPI sees; 0 where that is not known.
    """

    rank: str
    host: str
    pid: int
    how: str
    mapped: Mapped
    program: str = ""
    unseen: str = ""
    library_path: str = ""
    version: str = ""
    ran: bool = True
    ranked: bool = True
    world: int = 0

    @property
    def wrong(self) -> tuple[File, ...]:
        """The files that are not as planned."""
        return (*self.mapped.foreign, *self.mapped.odd)


@dataclass
class Observer:
    """Looks at the processes of one launch on this node.

    Attributes:
        inode: of the planned MPI's file; 0 when its path decides.
        sightings: by process; the last look with an MPI in it counts.
        since: when a process that has another MPI than the planned one, and still runs, was first seen with it.
    """

    plan: Plan
    inode: int
    known: Sequence[Library]
    run_id: str
    clock: Callable[[], float] = time.monotonic
    sightings: dict[tuple[int, str], Sighting] = field(default_factory=dict)
    since: float | None = None
    _begun: float | None = None
    _next: float = 0.0
    _first: dict[tuple[int, str], float] = field(default_factory=dict)
    _contains: dict[tuple[int, int], bool] = field(default_factory=dict)
    _left: int = _READ
    _read_s: float = 0.0

    def hurry(self) -> None:
        """Looks often again, as at first: a program without a witness has just been started, and may not run for long."""
        self._begun = self.clock()
        self._next = 0.0

    def look(self, proved: bool = False) -> None:
        """One look, unless the last was a moment ago: often at first, every few seconds later, seldom after the proof."""
        now = self.clock()
        self._begun = self._begun if self._begun is not None else now
        if now < self._next:
            return
        spent, wrong = time.thread_time(), list[tuple[int, str]]()
        self._left, self._read_s = _READ, 0.0
        for pid in processes.of_run(self.run_id):
            with suppress(OSError, ValueError):  # it has ended, or may not be looked at
                key, sighting = self._observed(pid)
                if sighting:
                    self.sightings[key] = sighting
                    wrong += [key] if sighting.wrong else []
        self.since = min((self._first.setdefault(key, now) for key in wrong), default=None)
        spent = time.thread_time() - spent - self._read_s  # each file is read once
        often = max(_COST * spent, min(_MOST_S, (now - self._begun) / 10))
        self._next = now + (max(_LATER_COST * spent, _LATER_S) if proved else often)

    def _observed(self, pid: int) -> tuple[tuple[int, str], Sighting | None]:
        """A process, by pid and time of its start, and the MPI in it, if any."""
        proc = Path("/proc", str(pid))
        key = pid, proc_stat.fields(proc)[proc_stat.BEGAN]
        if (proc / "ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
            return key, None  # the launcher, or the engine
        maps = (proc / "maps").read_text(errors="replace")
        files = mapped_files(maps)
        mapped = judged(files, self.plan, self.inode, self.known)
        program = str((proc / "exe").readlink())
        unseen = ""
        if not any(mapped) and (inside := self._with_mpi(proc, program, maps)):
            planned = is_planned(inside, self.plan, self.inode, self.known)
            mapped = mapped._replace(**{"planned" if planned else "foreign": (inside,)})
            unseen = "static"
        if not any(mapped):
            return key, None
        if not unseen and not any(file.path == WITNESS for file in files):
            unseen = "privileged" if _is_privileged(proc) else "unloaded"
        environ, ranked = {}, True
        with suppress(OSError):
            environ = _environ(proc)
            ranked = bool(environ.keys() & {*RANK_VARIABLES, processes.MARKER})
        rank = next((environ[name] for name in RANK_VARIABLES if name in environ), "")
        return key, Sighting(
            rank, os.uname().nodename, pid, "running", mapped, program, unseen, environ.get("LD_LIBRARY_PATH", ""),
            ran=bool(unseen),  # one with a witness says so itself
            ranked=ranked,
        )  # fmt: skip

    def _with_mpi(self, proc: Path, program: str, maps: str) -> File | None:
        """The program's own file, or a library in it, with the code of an MPI that has no MPI's name."""
        lines = [line for line in maps.splitlines() if "x" in line.split(None, 2)[1]]
        for file in dict.fromkeys((File(program, 0), *mapped_files("\n".join(lines)))):
            path = proc / "exe" if file.path == program else proc / "root" / file.path[1:]
            with suppress(OSError, ValueError):  # it has been removed
                if self._contains_mpi(path):
                    return File(file.path, path.stat().st_ino)
        return None

    def _contains_mpi(self, path: Path) -> bool:
        status = path.stat()
        if (key := (status.st_dev, status.st_ino)) not in self._contains:
            large, began = status.st_size > _SMALLEST, time.thread_time()
            if large and self._left <= 0:
                return False
            self._contains[key] = large and _contains_mpi(path)
            self._left -= status.st_size if large else 0
            self._read_s += time.thread_time() - began
        return self._contains[key]


def _contains_mpi(path: Path) -> bool:
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        return any(text.find(mark) >= 0 for mark, _ in TEXTS)  # far faster than one pattern


def _is_privileged(proc: Path) -> bool:
    """Whether the loader ignores LD_LIBRARY_PATH and LD_PRELOAD: set-id bits, file capabilities (ld.so(8))."""
    data = (proc / "auxv").read_bytes()
    words = memoryview(data[: len(data) // 16 * 16]).cast("Q")
    return dict(zip(words[::2], words[1::2], strict=True)).get(_AT_SECURE) == 1


def _environ(proc: Path) -> dict[str, str]:
    pairs = (proc / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def mapped_files(maps: str) -> tuple[File, ...]:
    """The files in the text of a ``/proc/PID/maps``, each once."""
    files: dict[File, None] = {}
    for line in maps.splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and words[5].startswith("/"):
            files[File(words[5].removesuffix(" (deleted)"), int(words[4]))] = None
    return tuple(files)


def reported(folder: Path, plan: Plan, inode: int, known: Sequence[Library]) -> Iterable[Sighting]:
    """What processes have said at their end that had an MPI, and no proof."""
    for path in sorted(folder.glob("seen.*")):
        if path.suffix == ".partial":
            continue
        values: dict[str, list[str]] = {}
        for line in path.read_text(errors="replace").splitlines():
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
        report = {key: versions[0] for key, versions in values.items()}
        # At an exec and an _exit it cannot be asked, and a tool that a job begins with may only map an MPI.
        begun = report.get("begun", report.get("later", "1"))
        mpis = _files(values.get("mpi", ()))  # the witness has decided that they are
        planned = tuple(mpi for mpi in mpis if is_planned(mpi, plan, inode, known))
        foreign = tuple(mpi for mpi in mpis if mpi not in planned)
        yield Sighting(
            rank=report.get("rank", ""),
            host=report.get("host", ""),
            pid=int(report["pid"]) if report.get("pid", "").isdecimal() else 0,
            how=report.get("how", "end"),
            mapped=Mapped(planned, foreign, _files(values.get("other", ()))),
            library_path=report.get("library_path", ""),
            version=" ".join(report.get("version", "").split()),
            ran=begun == "1" or report.get("how") in ("init", "session", "unasked"),
            world=int(report["world"]) if report.get("world", "").isdecimal() else 0,
        )


@dataclass(frozen=True)
class Bare:
    """A program that a rank has started without LD_PRELOAD or FAIRLEAD_PROOF, and so without a proof.

    Attributes:
        program: its path, or its name where PATH was searched.
        ranked: it had some of the variables by which a launcher connects its ranks.
        words: what follows the program in its command; nothing where that is not known.
    """

    rank: str
    program: str
    ranked: bool
    words: tuple[str, ...] = ()


def bare(folder: Path) -> Iterable[Bare]:
    """What the witness has noted of such programs."""
    for path in sorted(folder.glob("bare.*")):
        if path.suffix == ".partial":
            continue
        lines = path.read_text(errors="replace").split("\n")
        report = dict(line.split("=", 1) for line in lines if "=" in line)
        words = report.get("words", "").replace("\x1e", "\n")
        yield Bare(
            report.get("rank", ""),
            report.get("program", "?"),
            report.get("ranked") != "0",
            tuple(words.split("\x1f")) if words else (),
        )


def _files(lines: Iterable[str]) -> tuple[File, ...]:
    """``DEVICE INODE PATH`` each, as the witness writes it."""
    words = [line.split(" ", 2) for line in lines]
    whole = [word for word in words if len(word) == 3 and word[1].isdecimal()]
    return tuple(File(path.removesuffix(" (deleted)"), int(inode)) for _, inode, path in whole)
