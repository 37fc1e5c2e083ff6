"""Programs of several ranks that take turns: ``with started({…}) as sides: …``.

Each side is a job of its own, started by ``fairlead run`` in its image, all at once; only one of them computes at a
time, the others are stopped (SIGSTOP), with all their helper threads. So many libraries, each with its own settings,
are measured in turns within minutes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import watchdog
from benchmarks.result import FAIRLEAD, IMPORTABLE, PACKAGE, RESULTS
from fairlead_build.build import build

PROGRAMS = PACKAGE / "programs"
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Job:
    """What a side runs.

    Attributes:
        words: a program in ``programs/``, and its arguments after the socket.
        env: for the ranks.
        run: more options of ``fairlead run``.
        before: words in front of the whole line, such as those that enter a namespace.
        stops: it tolerates being stopped; otherwise it waits its turn in a read.
    """

    image: str
    words: Sequence[str]
    ranks: int = 2
    env: Mapping[str, str] = field(default_factory=dict)
    run: Sequence[str] = ()
    before: Sequence[str] = ()
    stops: bool = True


class Side:
    """Ranks that run one of ``programs/`` and do what :meth:`ask` says."""

    def __init__(self, name: str, job: Job, folder: Path):
        """Starts it; :meth:`ready` waits.

        Args:
            folder: a short path that container and host both see.
        """
        self.name, self.ranks, self._stops = name, job.ranks, job.stops
        self._log = folder / f"{name}.log"
        path = folder / f"{name}.socket"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(job.ranks)
        program, *more = job.words
        variables = [word for k, v in job.env.items() for word in ("--env", f"{k}={v}")]
        binds = [word for place in (folder, PACKAGE) for word in ("--bind", str(place))]
        line = [
            *job.before, *FAIRLEAD, "run", "-q", "-n", str(job.ranks), *binds, *variables, *job.run, job.image,
            "--", *IMPORTABLE, "python3", str(PROGRAMS / program), str(path), *more,
        ]  # fmt: skip
        self._line, self._mark = line, uuid.uuid4().hex
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, watchdog.MARK: self._mark},
            )  # fmt: skip
        self._links: dict[int, Any] = {}
        self._pids: list[int] = []

    def ready(self, limit_s: float = 240) -> Side:
        """Waits until every rank has connected.

        Raises:
            RuntimeError: it ended, or did not connect in time; then a file has its processes.
        """
        late = time.monotonic() + limit_s
        self._listener.settimeout(1)
        while len(self._links) < self.ranks:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} did not start:\n{self._output()}")
            if time.monotonic() > late:
                raise self._stuck(f"{self.name} did not start within {limit_s:g} s")
            with suppress(TimeoutError):
                link, _ = self._listener.accept()
                link.settimeout(limit_s)
                size = _CREDENTIALS.size
                peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                self._pids.append(_CREDENTIALS.unpack(peer)[0])
                lines = link.makefile("rw")
                self._links[json.loads(lines.readline())["rank"]] = lines
        return self

    def ask(self, what: str, **words: Any) -> list[Any]:
        """Has every rank call one of its functions at once; what they return, by rank.

        Raises:
            RuntimeError: a rank failed, or did not answer in time; then a file has the processes.
        """
        for link in self._links.values():
            link.write(json.dumps({"do": "call", "what": what, **words}) + "\n")
            link.flush()
        answers = []
        for rank in range(self.ranks):
            try:
                answer = json.loads(self._links[rank].readline() or "{}")
            except TimeoutError:
                raise self._stuck(f"{self.name}, rank {rank}, {what} {words}: no answer") from None
            if "is" not in answer:
                why = f"{answer.get('error', 'it ended')}\n{self._output()}"
                raise RuntimeError(f"{self.name}, rank {rank}, {what} {words}: {why}")
            answers.append(answer["is"])
        return answers

    def _stuck(self, why: str) -> watchdog.Stuck:
        """Writes down where its processes stand, and ends them."""
        lines = self._output().splitlines()
        file = watchdog.describe(self._line, lines, self._mark, RESULTS)
        watchdog.end(self._mark)
        return watchdog.Stuck(f"{why}: {file} has its processes\n{self._output()}")

    def _output(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-3000:]

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    @contextmanager
    def turn(self) -> Iterator[Side]:
        """It computes, and is stopped again."""
        self._signal(signal.SIGCONT)
        try:
            yield self
        finally:
            self.pause()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids if self._stops else ():
            os.kill(pid, number)

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:  # fmt: skip
        with suppress(ProcessLookupError):
            self._signal(signal.SIGCONT)
        for link in self._links.values():
            with suppress(OSError):
                link.write('{"do": "end"}\n')
                link.flush()
        self._listener.close()
        if len(self._links) < self.ranks:
            self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            watchdog.end(self._mark)
            self._process.wait()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder with a short path that every user of the machine can enter."""
    with tempfile.TemporaryDirectory(prefix="fairlead-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def started(jobs: Mapping[str, Callable[[], Job]]) -> Iterator[dict[str, Side]]:
    """All jobs, started at once, ready and paused."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        sides = {name: stack.enter_context(Side(name, job(), folder)) for name, job in jobs.items()}
        for side in sides.values():
            side.ready()
        for side in sides.values():
            side.pause()
        yield sides


def slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Of each repeat, the time of the slowest rank."""
    return [max(each) for each in zip(*ranks, strict=True)]


def image(recipe: str) -> str:
    """The file of a bundled recipe's image, built if it is missing."""
    entry = build(recipe).entry
    assert entry is not None
    return entry.path


def free_ports(count: int) -> list[int]:
    """Ports that are free now, none of which the kernel gives to a connection in the meantime."""
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(10000, ephemeral), 1000):
        with suppress(OSError), socket.create_server(("", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"fewer than {count} ports from 10000 to {ephemeral} are free")
