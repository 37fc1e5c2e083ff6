"""Programs of several ranks that wait for each other's turns: ``with Side(…) as side: side.ask(…)``.

Each side is a job of its own, started by ``fairlead run`` in its image, all at once; only one of them
computes at a time, the others are stopped (SIGSTOP), with all their helper threads. So many libraries,
each with its own settings, are measured in turns within minutes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from fairlead_build.build import build

PROGRAMS = Path(__file__).with_name("programs")
_CREDENTIALS = struct.Struct("3i")


class Side:
    """Ranks that run one of ``programs/`` and do what :meth:`ask` says."""

    def __init__(
        self,
        name: str,
        image: str,
        words: Sequence[str],
        folder: Path,
        *,
        ranks: int = 2,
        env: Mapping[str, str] | None = None,
        run: Sequence[str] = (),
        before: Sequence[str] = (),
        stops: bool = True,
    ):
        """Starts it; :meth:`ready` waits.

        Args:
            words: the program in ``programs/``, and its arguments behind the socket.
            folder: a short path that container and host both see.
            env: for the ranks.
            run: more options of ``fairlead run``.
            before: words in front of the whole line, as those that enter a namespace.
            stops: it bears to be stopped; else it waits its turn in a read.
        """
        self.name, self.ranks, self._stops = name, ranks, stops
        self._log = folder / f"{name}.log"
        path = folder / f"{name}.socket"
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(path))
        self._door.listen(ranks)
        program, *more = words
        variables = [word for k, v in (env or {}).items() for word in ("--env", f"{k}={v}")]
        binds = [word for one in (folder, PROGRAMS) for word in ("--bind", str(one))]
        line = [
            *before, sys.executable, "-m", "fairlead", "run", "-q", "-n", str(ranks), *binds, *variables, *run,
            image, "--", "python3", str(PROGRAMS / program), str(path), *more,
        ]  # fmt: skip
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ)
            )
        self._links: dict[int, Any] = {}
        self._pids: list[int] = []

    def ready(self, limit_s: float = 240) -> Side:
        """Waits until every rank has come.

        Raises:
            RuntimeError: it ended, or did not come in time.
        """
        late = time.monotonic() + limit_s
        self._door.settimeout(1)
        while len(self._links) < self.ranks:
            if self._process.poll() is not None or time.monotonic() > late:
                raise RuntimeError(f"{self.name} did not start:\n{self.said()}")
            with suppress(TimeoutError):
                link, _ = self._door.accept()
                link.settimeout(limit_s)
                size = _CREDENTIALS.size
                peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                self._pids.append(_CREDENTIALS.unpack(peer)[0])
                lines = link.makefile("rw")
                self._links[json.loads(lines.readline())["rank"]] = lines
        return self

    def ask(self, what: str, **words: Any) -> list[Any]:
        """Has every rank call one of its functions at once; what they return, in order of ranks.

        Raises:
            RuntimeError: a rank failed.
        """
        for link in self._links.values():
            link.write(json.dumps({"do": "call", "what": what, **words}) + "\n")
            link.flush()
        found = []
        for rank in range(self.ranks):
            try:
                answer = json.loads(self._links[rank].readline() or "{}")
            except TimeoutError:
                answer = {"error": "no answer in time"}
            if "is" not in answer:
                why = answer.get("error", "it ended")
                raise RuntimeError(
                    f"{self.name}, rank {rank}, {what} {words}: {why}\n{self.said()}"
                )
            found.append(answer["is"])
        return found

    def said(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-3000:]

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids if self._stops else ():
            os.kill(pid, number)

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:  # fmt: skip
        with suppress(ProcessLookupError):
            self.resume()
        for link in self._links.values():
            with suppress(OSError):
                link.write('{"do": "end"}\n')
                link.flush()
        self._door.close()
        if len(self._links) < self.ranks:
            self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()


class Turn:
    """``with Turn(side):`` it computes, and is stopped again."""

    def __init__(self, side: Side):
        self._side = side

    def __enter__(self) -> Side:
        self._side.resume()
        return self._side

    def __exit__(self, *_: object) -> None:
        self._side.pause()


def image(recipe: str) -> str:
    """The file of a bundled recipe's image, built where it is not."""
    entry = build(recipe).entry
    assert entry is not None
    return entry.path


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens at now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
