"""The other nodes of a launch, as this host sees them: each has a connection to here, held by its agent.

The kernels of both ends watch the connection (keepalive): it breaks within 25 s when the cable is pulled or the node
dies, whatever the ranks do, also where this process is stopped or the disk hangs. Both ends then end what is theirs.
Read next: :mod:`fairlead.launch.node`, the other end.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.base import bounded_json, interfaces
from fairlead.base.errors import Finding, fail, os_error_as, warning
from fairlead.base.paths import atomic_write

BOOT = Path("/proc/sys/kernel/random/boot_id")
_HOSTNAME = Path("/proc/sys/kernel/hostname")
HOME = "home.json"
OVER = "over"  # the file of a run's folder that says so
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 25_000}
_HELLO_S, _MOST_STRANGERS = 5.0, 64
_MOST_BYTES = 1 << 16  # of an unfinished line
_ANSWER_S = 5.0
_END_S = 10.0  # of a step's end, in which Slurm kills what its tasks have left
_AGENT_S = 30.0  # by when an agent is connected, or has said why not
_GONE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


@dataclass(frozen=True)
class Lost:
    """A node that was lost, and what shows it, in words."""

    host: str
    why: str


def keep_alive(link: socket.socket, settings: Mapping[str, int] = KEEPALIVE) -> None:
    """Has the kernel notice within 25 s that the other end is gone."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in settings.items():
        link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Link:
    """A connection of lines, each a JSON object; nothing blocks.

    Attributes:
        ended: None while it is open; "" when the other end has closed it; else what the kernel says of a way there
            that is gone.
    """

    def __init__(self, link: socket.socket):
        link.setblocking(False)
        self.socket = link
        self.ended: str | None = None
        self.unread: list[dict[str, Any]] = []  # received, and still to be taken
        self._rest = b""

    def received(self) -> list[dict[str, Any]]:
        """What has come since the last call."""
        messages, self.unread = self.unread, []
        while self.ended is None:
            try:
                data = self.socket.recv(_MOST_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as exc:
                gone = exc.errno in _GONE  # else the process at the other end was killed
                self.ended = os.strerror(exc.errno or 0) if gone else ""
                break
            if not data:
                self.ended = ""
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > _MOST_BYTES:
                self.ended = "it sent no line"
            for line in lines:
                with contextlib.suppress(ValueError, RecursionError):
                    message = bounded_json.loads(line)
                    if isinstance(message, dict):
                        messages.append(message)
        return messages

    def send(self, **message: object) -> None:
        """A message is small, and the other end reads: what does not fit at once is a connection that is broken."""
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps(message).encode() + b"\n", socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Closes it."""
        self.ended = self.ended or ""
        self.socket.close()


class _Node:
    def __init__(self, name: str, link: Link):
        self.name, self.link = name, link
        self.left = False  # it has said that its ranks are through
        self.answered = 0
        self.ended_at: float | None = None

    @property
    def host(self) -> str:
        return self.name.rpartition(".")[0]


class Nodes:
    """The agents of a launch's other nodes.

    Attributes:
        answers: the latest to each question, by host and number, with when it came.
        stopped: a rank that stands still, by host; "" where it is unknown which.
    """

    def __init__(self, folder: Path, on_finding: Callable[[Finding], None]):
        """
        Raises:
            FairleadError: exit code 123; the run's folder cannot be written.
        """
        self._folder, self._on_finding = folder, on_finding
        self._token, self._asked = secrets.token_hex(16), 0
        self._strangers: list[tuple[float, Link]] = []
        self._nodes: dict[str, _Node] = {}
        self._warned: set[str] = set()
        self._broadcast: list[dict[str, object]] = []
        self.answers: dict[tuple[str, int], tuple[float, dict[str, Any]]] = {}
        self.stopped: dict[str, str] = {}
        self._begun, self._called = time.monotonic(), False
        self._listener: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._listener = socket.create_server(("", 0), backlog=1024)
            self._listener.setblocking(False)
        port = self._listener.getsockname()[1] if self._listener else 0
        home = {
            "addresses": _addresses(), "port": port, "token": self._token, "version": __version__,
        }  # fmt: skip
        written = os_error_as("run-folder-records", folder=folder)
        with written, atomic_write(folder / HOME, "w") as out:
            json.dump(home, out)
        (folder / HOME).chmod(0o600)

    def look(self) -> None:
        """Hears what nodes say.

        Raises:
            FairleadError: exit code 124; one cannot be reached any more.
        """
        for node in self._hear():
            if node.link.ended is None or node.left:
                continue
            if node.link.ended:
                ranks = ranks_of(self._folder, node.host)
                raise fail("node-lost", host=node.host, ranks=ranks, why=node.link.ended)
            node.ended_at = node.ended_at or time.monotonic()
            if time.monotonic() - node.ended_at > _END_S:
                self._unwatched(node.host, "its agent was killed")
        for path in self._folder.glob("unwatched.*"):
            self._unwatched(host_of(path), _first_line(path))
        if not self._called and time.monotonic() - self._begun > _AGENT_S:
            self._called = True
            self._roll_call()

    def lost(self, *, agents_outlive_ranks: bool = True) -> tuple[Lost, ...]:
        """The nodes that do not answer any more, after a launch that ended badly; takes up to 5 s.

        Args:
            agents_outlive_ranks: the launcher ends its ranks only, not what they have left.
        """
        self._hear()  # one may have called a moment ago
        waiting = {name for name, node in self._nodes.items() if not node.left}
        for name in waiting:
            self._nodes[name].link.send(ask="alive")
            self._nodes[name].answered = 0
        until = time.monotonic() + _ANSWER_S
        while time.monotonic() < until:
            self._hear()
            silent = [
                n for n in map(self._nodes.__getitem__, waiting) if not (n.answered or n.left)
            ]
            if all(node.link.ended is not None for node in silent):
                break
            time.sleep(0.02)
        findings = []
        for node in (self._nodes[name] for name in sorted(waiting)):
            if node.link.ended:
                findings.append(Lost(node.host, node.link.ended))
            elif node.link.ended is None and not node.answered and not node.left:
                findings.append(Lost(node.host, f"it has not answered for {_ANSWER_S:g} s"))
        # Whose agent has ended without a word may be killed, or be dead as well.
        hushed = [
            n.host
            for n in map(self._nodes.__getitem__, waiting)
            if n.link.ended == "" and not n.left
        ]
        # They may have died before it called.
        uncalled = [host_of(path) for path in self._uncalled()]
        gone = unreachable([*hushed, *uncalled], unresolved=False)
        findings += [
            Lost(host, gone.get(host, "all that the run had there was killed at once"))
            for host in hushed
            if host in gone or agents_outlive_ranks
        ]
        findings += [Lost(host, gone[host]) for host in uncalled if host in gone]
        return tuple(findings)

    def ask(self, host: str, **question: object) -> int | None:
        """Asks the agent of a host; the number of the question, None where there is no one agent of that name."""
        nodes = [n for n in self._nodes.values() if n.host == host and n.link.ended is None]
        if len(nodes) != 1:
            return None
        self._asked += 1
        nodes[0].link.send(**question, number=self._asked)
        return self._asked

    def ask_all(self, **question: object) -> list[tuple[str, int]]:
        """Asks every agent, also those that call later; the keys in ``answers`` of those that have called."""
        there = [node for node in self._nodes.values() if node.link.ended is None]
        self._broadcast.append(question)
        asked = []
        for node in there:
            self._asked += 1
            node.link.send(**question, number=self._asked)
            asked.append((node.host, self._asked))
        return asked

    def close(self) -> None:
        """The launch is over: what is left of it on the nodes ends."""
        with contextlib.suppress(OSError):
            (self._folder / OVER).touch()
        for node in self._nodes.values():
            node.link.send(over=True)
            node.link.close()
        for _, link in self._strangers:
            link.close()
        if self._listener:
            self._listener.close()

    def _roll_call(self) -> None:
        """Names the nodes whose agent never came up."""
        for path in self._uncalled():
            name = path.name.partition(".")[2]
            words = _last_line(self._folder / f"agent.{name}") or "its agent has not called"
            self._unwatched(host_of(path), words)

    def _uncalled(self) -> list[Path]:
        """The records of nodes that ranks have come up on, and whose agent has not called."""
        known = {*self._nodes, key()}
        paths = sorted(self._folder.glob("node.*.*"))
        return [
            p for p in paths if p.name.partition(".")[2] not in known and p.suffix != ".partial"
        ]

    def _hear(self) -> list[_Node]:
        self._accept()
        for node in self._nodes.values():
            for message in node.link.received():
                node.left = node.left or bool(message.get("left"))
                node.answered += 1
                if "stopped" in message:
                    self.stopped[node.host] = str(message["stopped"])
                if isinstance(number := message.get("number"), int):
                    self.answers[node.host, number] = (time.monotonic(), message)
        return list(self._nodes.values())

    def _accept(self) -> None:
        now = time.monotonic()
        while self._listener:
            try:
                link, _ = self._listener.accept()
            except OSError:
                break
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if len(self._strangers) >= _MOST_STRANGERS:
                self._strangers.pop(0)[1].close()
            if link.fileno() > soft - 64:  # the rest of this process needs some, too
                link.close()
                self._unwatched("a node", f"`ulimit -n` is {soft}")
                break
            keep_alive(link)
            self._strangers.append((now, Link(link)))
        for item in list(self._strangers):
            since, peer = item
            for message in peer.received()[:1]:
                self._strangers.remove(item)
                self._greet(peer, message)
                break
            else:
                if peer.ended is not None or now - since > _HELLO_S:
                    self._strangers.remove(item)
                    peer.close()

    def _greet(self, link: Link, message: Mapping[str, Any]) -> None:
        token, name = str(message.get("token")), str(message.get("node"))
        if not secrets.compare_digest(token.encode(), self._token.encode()) or name in self._nodes:
            return link.close()
        link.send(token=self._token)
        for earlier in self._broadcast:
            link.send(**earlier)
        node = self._nodes[name] = _Node(name, link)
        if (version := message.get("version")) != __version__:
            finding = warning("node-version", host=node.host, there=version, here=__version__)
            self._warn(f"version {node.host}", finding)
        return None

    def _unwatched(self, host: str, why: str) -> None:
        self._warn(f"unwatched {host}", warning("node-unwatched", host=host, why=why))

    def _warn(self, key: str, finding: Finding) -> None:
        if key not in self._warned:
            self._warned.add(key)
            self._on_finding(finding)


def key() -> str:
    """This node's name among a run's records."""
    return f"{_HOSTNAME.read_text('utf-8').strip()}.{BOOT.read_text('utf-8').strip()}"


def host_of(record: Path) -> str:
    """The host in the name of a node's record, ``KIND.HOST.BOOT``."""
    return record.name.partition(".")[2].rpartition(".")[0]


def ranks_of(folder: Path, host: str) -> str:
    """The ranks that have reported from a host, in words."""
    ranks = set()
    for kind in ("alive", "started", "left"):
        for path in folder.glob(f"{kind}.*"):
            if path.suffix != ".partial" and _first_line(path).split(" ")[0] == host:
                ranks.add(path.name.partition(".")[2])
    ordered = sorted(ranks, key=lambda rank: (len(rank), rank))
    more = f" and {len(ordered) - 8} more" if len(ordered) > 8 else ""
    return f"rank {', '.join(ordered[:8])}{more}" if ordered else "its ranks"


def _first_line(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text("utf-8", "replace").partition("\n")[0]
    return ""


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError, IndexError):
        return path.read_text("utf-8", "replace").splitlines()[-1]
    return ""


def unreachable(
    hosts: Iterable[str], seconds: float = 4.0, *, unresolved: bool = True
) -> dict[str, str]:
    """Of hosts, those of which the kernel or the resolver says that no packet gets there, with its words.

    A host that refuses the connection is there; of one that says nothing, nothing is known.

    Args:
        unresolved: also those whose name has no address, which a scheduler may know by another.
    """
    reasons, tries = {}, []
    for host in list(dict.fromkeys(hosts))[:64]:
        try:
            address = socket.getaddrinfo(host, 22, type=socket.SOCK_STREAM)[0]
        except OSError as exc:
            if unresolved:
                reasons[host] = f"its name has no address: {exc.strerror}"
            continue
        link = socket.socket(*address[:3])
        link.setblocking(False)
        code = link.connect_ex(address[4])
        tries.append((host, link, code))
    until = time.monotonic() + seconds
    while tries and time.monotonic() < until:
        for item in list(tries):
            host, link, code = item
            code = code if code in _GONE else link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code in _GONE:
                reasons[host] = os.strerror(code)
            if code or _connected(link):
                tries.remove(item)
                link.close()
        time.sleep(0.02)
    for _, link, _ in tries:
        link.close()
    return reasons


def _connected(link: socket.socket) -> bool:
    try:
        link.getpeername()
    except OSError:
        return False
    return True


def _addresses() -> list[str]:
    """By which other nodes may reach this host: its name, then those of its interfaces."""
    addresses = [socket.gethostname()]
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            addresses.append(interfaces.ipv4(name))
    return [address for address in dict.fromkeys(addresses) if not address.startswith("127.")]
