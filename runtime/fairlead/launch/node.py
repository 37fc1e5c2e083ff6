"""The agent of one other node of a launch: ``python -m fairlead.launch.node RUN NODE SHELL``, started by ``node.sh``.

It holds a connection to the launching host (:mod:`fairlead.launch.nodes`). When that breaks, or the launch is over, it
ends what is left of the run on its own node: the ranks, the launcher's daemon that started them, their shared memory.
It ends itself when its node's ranks have. What it needs is loaded before anything can hang.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.base import bounded_json, proc_stat
from fairlead.launch import leftovers, node_container, processes, shm_cleanup
from fairlead.launch.leaving import Watches
from fairlead.launch.nodes import HOME, KEEPALIVE, OVER, Link, keep_alive
from fairlead.launch.stopped import Stopped
from fairlead.launch.warning_signals import FORWARDED

# A little later than the launching host, so that it names the cause first.
_KEEPALIVE = {**KEEPALIVE, "TCP_KEEPCNT": 5, "TCP_USER_TIMEOUT": 30_000}
_CONNECT_S = 3.0
_GRACE_S = 5.0  # for the launcher, to end its ranks itself
_GUARD_S = 10.0
_LOOK_S = 1.0


class Agent:
    """What is done on the node."""

    def __init__(self, run: Path, node: str, shell: int):
        """
        Args:
            node: this node's name among the run's records.
            shell: process number of a rank's shell, a child of the launcher's daemon.
        """
        self._run, self._node, self._id = run, node, run.name
        self._above = _parent(shell)
        self._above_began = proc_stat.began(self._above)
        self._link: Link | None = None
        self._watches = Watches(self._left)
        self._stopped = Stopped(self._left)

    def work(self) -> None:
        """Until the node's ranks have ended, by themselves or not."""
        note = leftovers.note_of(self._node)
        before = (self._run / f"memory.{self._node}").read_text("utf-8", "replace")
        memory = frozenset(Path("/dev/shm", name) for name in before.splitlines())
        leftovers.begin(self._run, note=note, before=memory)
        self._connect()
        leftovers.clear_dead(self._run.parent, among=memory)
        over = self._until_over()
        node_container.release(self._run, self._node)
        if over:
            self._end()
        node_container.end(self._run, self._node)
        shm_cleanup.clear(memory)
        if self._link:
            self._link.send(left=True)
            self._link.close()
        leftovers.end(self._run, note)

    def _connect(self) -> None:
        try:
            home = bounded_json.loads((self._run / HOME).read_bytes())
            self._link = _connected(home, self._node)
            why = "no address of it answers: " + ", ".join(home["addresses"])
        except (OSError, ValueError, KeyError) as exc:
            why = str(exc)
        if self._link is None:
            with contextlib.suppress(OSError):
                (self._run / f"unwatched.{self._node}").write_text(f"{why}\n", "utf-8")

    def _until_over(self) -> bool:
        """True when the launch is over, or its host out of reach, and ranks are left here."""
        while self._ranks():
            if self._link is None:
                time.sleep(_LOOK_S)
                if not self._run.is_dir() or (self._run / OVER).exists():
                    return self._ranks_after(_GRACE_S)
                continue
            select.select([self._link.socket], [], [], _LOOK_S)
            over = False
            for message in self._link.received():
                over = over or bool(message.get("over"))
                self._answer(message)
            for answer in self._watches.now():
                self._link.send(**answer)
            if (rank := self._stopped.look()) is not None:
                self._link.send(stopped=rank)
            if self._link.ended:
                return True
            if over or self._link.ended is not None:
                return self._ranks_after(_GRACE_S)
        return False

    def _answer(self, message: dict[str, Any]) -> None:
        if self._link and message.get("ask") == "alive":
            self._link.send(alive=True)
        elif self._link and message.get("ask") == "watch":
            self._link.send(**self._watches.begin(message))
        elif message.get("ask") == "stop":
            self._watches.stop(message.get("watch"))
        elif message.get("ask") == "signal" and (number := message.get("signal")) in FORWARDED:
            count = processes.signal_ranks(self._left(), int(number))
            if self._link and (question := message.get("number")):
                self._link.send(number=question, signalled=count)

    def _ranks(self) -> bool:
        """Whether anything of the run lives here; the ranks' shells are looked at first, which costs next to nothing."""
        return bool(self._shells() or self._left())

    def _shells(self) -> list[int]:
        """The ranks' shells among the children of the launcher's daemon, which may have other runs' too."""
        shells = []
        run = os.fsencode(self._run)
        children = ""
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self._above}/task/{self._above}/children").read_text("ascii")
        for pid in children.split() if self._same() else ():
            with contextlib.suppress(OSError):  # it has just ended
                if run in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    shells.append(int(pid))
        return shells

    def _ranks_after(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self._ranks():
                return False
            time.sleep(0.1)
        return True

    def _end(self) -> None:
        """Ends them. Guards clean up after containers by themselves; the daemon mostly ends with its ranks, but not
        where it waits for a host that is out of reach."""
        begun = time.monotonic()
        cut_off = bool(self._link and self._link.ended)
        while (late := time.monotonic() - begun) < 2 * _GUARD_S:
            left = self._left()
            guards = processes.guards() & set(left) if late < _GUARD_S else set()
            doomed = [pid for pid in left if pid not in guards]
            if cut_off and not doomed and self._same():
                doomed = [self._above]
            elif not doomed and not guards:
                return
            for pid in doomed:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _left(self) -> list[int]:
        return processes.of_run(self._id, self._shells())

    def _same(self) -> bool:
        """Whether the launcher's daemon is still there."""
        return bool(self._above_began) and proc_stat.began(self._above) == self._above_began


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        parent = int(proc_stat.fields(f"/proc/{pid}")[proc_stat.PARENT])
        return parent if parent > 1 else 0
    return 0


def _connected(home: dict[str, Any], node: str) -> Link | None:
    """The connection to the first address that proves to be the launching host's."""
    for address in home["addresses"]:
        with contextlib.suppress(OSError):
            plain = socket.create_connection((address, home["port"]), _CONNECT_S)
            keep_alive(plain, _KEEPALIVE)
            link = Link(plain)
            link.send(token=home["token"], node=node, version=__version__)
            until = time.monotonic() + _CONNECT_S
            while link.ended is None and (rest := until - time.monotonic()) > 0:
                select.select([plain], [], [], rest)
                messages = link.received()
                tokens = [message.get("token") for message in messages]
                if home["token"] in tokens:
                    link.unread = messages[tokens.index(home["token"]) + 1 :]
                    return link
            link.close()
    return None


def main(words: Sequence[str]) -> None:
    """Does its work apart from the launcher's streams and process group."""
    with contextlib.suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.closerange(3, 1024)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("fairlead-node", "ascii")
    Agent(Path(words[0]), words[1], int(words[2])).work()


if __name__ == "__main__":
    main(sys.argv[1:])
