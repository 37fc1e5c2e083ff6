"""The connection of a node's agent to the launching host, and what both do when it ends; real sockets and processes."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.living import alive

from fairlead import __version__
from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead.launch import nodes
from fairlead.launch.nodes import HOME, Link, Nodes, unreachable

NODE = "node2.0-1"
# A launcher's daemon: it starts a rank's shell, as node.sh sees it, and waits for it.
DAEMON = """\
import subprocess, sys
words = [sys.executable, "-c", "import time; time.sleep(100)", sys.argv[1]]
rank = subprocess.Popen(words, stdout=subprocess.DEVNULL)
print(rank.pid, flush=True)
rank.wait()
if len(sys.argv) > 2: import time; time.sleep(100)
"""
# As `-m fairlead.launch.node`, which leaves a launcher more time to end its ranks itself.
AGENT = """
import sys
from fairlead.launch import node
node._GRACE_S = 1.0
node.main(sys.argv[1:])
"""


@pytest.fixture
def said() -> list[Finding]:
    return []


@pytest.fixture
def home(tmp_path: Path, said: list[Finding]) -> Iterator[Nodes]:
    folder = tmp_path / "runs" / "a-run"
    folder.mkdir(parents=True)
    made = Nodes(folder, said.append)
    yield made
    made.close()


@pytest.fixture
def folder(home: Nodes, tmp_path: Path) -> Path:
    return tmp_path / "runs" / "a-run"


def until(true: Callable[[], object], limit_s: float = 20) -> bool:
    late = time.monotonic() + limit_s
    while not true() and time.monotonic() < late:
        time.sleep(0.02)
    return bool(true())


def call(folder: Path, **message: object) -> Link:
    """A connection to the launching host that says what an agent does, but for ``message``."""
    there = json.loads((folder / HOME).read_text())
    link = Link(socket.create_connection(("127.0.0.1", there["port"])))
    link.send(**{"token": there["token"], "node": NODE, "version": __version__, **message})
    return link


def heard(home: Nodes, link: Link) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    until(lambda: (home.look(), found.extend(link.received()), found or link.ended is not None)[2])
    return found


def test_caller_without_the_token_learns_nothing_and_is_no_node(home: Nodes, folder: Path) -> None:
    stranger = call(folder, token="a guess")
    assert heard(home, stranger) == [] and stranger.ended is not None
    assert home.lost() == ()


def test_silent_strangers_keep_no_node_away(home: Nodes, folder: Path) -> None:
    port = json.loads((folder / HOME).read_text())["port"]
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            home.look()
        agent = call(folder)
        assert heard(home, agent)[0]["token"]
        agent.close()


@pytest.mark.parametrize(
    "line", [b"\xff\n", b"[1]\n", b"[" * 100_000 + b"\n", b"{}\n", b"1" * 300_000]
)
def test_odd_words_of_a_stranger_are_not_believed(line: bytes, home: Nodes, folder: Path) -> None:
    port = json.loads((folder / HOME).read_text())["port"]
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.settimeout(5)
        try:
            link.sendall(line)
        except OSError as exc:
            assert exc.errno in (errno.EPIPE, errno.ECONNRESET)
        for _ in range(20):
            home.look()
    assert home.lost() == ()


def test_home_is_for_its_owner_alone(folder: Path) -> None:
    assert (folder / HOME).stat().st_mode & 0o077 == 0


def test_node_of_another_version_is_reported_once(
    home: Nodes, folder: Path, said: list[Finding]
) -> None:
    agent = call(folder, version="0.0.9")
    heard(home, agent)
    home.look()
    assert [f.check for f in said] == ["version-skew"] and "0.0.9" in said[0].where
    agent.close()


def test_node_whose_way_is_gone_ends_the_launch_with_its_ranks(
    home: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard(home, call(folder))
    for rank, host in (("0", "node1"), ("1", "node2"), ("12", "node2")):
        (folder / f"started.{rank}").write_text(f"{host} 77\n")

    def broken(link: Link) -> list[object]:
        link.ended = os.strerror(errno.ETIMEDOUT)
        return []

    monkeypatch.setattr(Link, "received", broken)
    with pytest.raises(FairleadError) as found:
        home.look()
    [finding] = found.value.findings
    assert found.value.code is ExitCode.WATCHDOG and finding.check == "node-lost"
    assert finding.where == "node2, with rank 1, 12" and "Connection timed out" in finding.why


def test_node_that_does_not_answer_after_a_bad_end_is_lost(
    home: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_ANSWER_S", 0.3)
    agent = call(folder)
    heard(home, agent)
    assert [lost.host for lost in home.lost()] == ["node2"]


def test_node_that_has_left_is_not_lost(home: Nodes, folder: Path) -> None:
    agent = call(folder)
    heard(home, agent)
    agent.send(left=True)
    agent.close()
    assert home.lost() == ()


def test_node_whose_agent_was_killed_is_lost_only_where_it_would_have_lived(
    home: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "unreachable", lambda hosts, unresolved: {})
    agent = call(folder)
    heard(home, agent)
    agent.close()
    assert home.lost(agents_outlive_ranks=False) == ()
    assert [lost.host for lost in home.lost()] == ["node2"]


def test_node_without_an_agent_is_reported_as_unwatched(
    home: Nodes, folder: Path, said: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "unwatched.node3.0-1").write_text("there is no /opt/python\n")
    monkeypatch.setattr(nodes, "_AGENT_S", -1.0)
    (folder / "node.node4.0-1").write_text("ok 1\n")
    (folder / f"node.{nodes.key()}").write_text("ok 1\n")
    (folder / "agent.node4.0-1").write_text("Traceback\nNo module named fairlead\n")
    home.look()
    home.look()
    assert [(f.where, f.why) for f in said] == [
        ("node3", "there is no /opt/python"),
        ("node4", "No module named fairlead"),
    ]


def test_hosts_that_refuse_are_there_and_those_without_a_way_are_named() -> None:
    found = unreachable(["127.0.0.1", "no-such-host.invalid", "no-such-host.invalid"])
    assert list(found) == ["no-such-host.invalid"]
    assert "no address" in found["no-such-host.invalid"]


@pytest.fixture
def agent(folder: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], int, int]]]:
    """Starts a daemon with a rank, and their agent; gives the agent, the daemon's number and the rank's."""
    started = []

    def go(*more: str) -> tuple[subprocess.Popen[bytes], int, int]:
        words = [sys.executable, "-c", DAEMON, str(folder), *more]
        daemon = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert daemon.stdout
        rank = int(daemon.stdout.readline())
        there = json.loads((folder / HOME).read_text())
        (folder / HOME).write_text(json.dumps({**there, "addresses": ["127.0.0.1"]}))
        (folder / f"memory.{NODE}").write_text("*\n")
        mine = [sys.executable, "-c", AGENT, str(folder), NODE, str(rank)]
        process = subprocess.Popen(mine)
        started.extend((daemon, process))
        return process, daemon.pid, rank

    yield go
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def connected(home: Nodes) -> bool:
    home.look()
    return bool(home._nodes)


def test_agent_ends_with_the_ranks_and_says_so(home: Nodes, folder: Path, agent) -> None:
    process, _, rank = agent()
    assert until(lambda: connected(home))
    os.kill(rank, signal.SIGKILL)
    assert process.wait(20) == 0
    assert home.lost() == () and not list(folder.glob("shm.*"))


@pytest.mark.parametrize("end", ["over", "killed"])
def test_agent_ends_ranks_that_a_launch_has_left(end: str, home: Nodes, agent) -> None:
    process, daemon, rank = agent()
    assert until(lambda: connected(home))
    if end == "over":
        home.close()
    else:  # as the kernel does for a process that was killed
        for node in home._nodes.values():
            node.link.socket.close()
    assert process.wait(30) == 0
    assert until(lambda: not alive(rank) and not alive(daemon))


def test_agent_leaves_a_daemon_and_its_other_children_alone(home: Nodes, agent) -> None:
    """One that serves several runs, as Open MPI's may."""
    process, daemon, rank = agent("stays")
    assert until(lambda: connected(home))
    home.close()
    assert process.wait(30) == 0
    assert not alive(rank) and alive(daemon)


def test_agent_that_finds_no_way_home_still_ends_what_is_left(
    home: Nodes, folder: Path, agent
) -> None:
    home._listener.close()  # type: ignore[union-attr]
    process, _, rank = agent()
    assert until(lambda: list(folder.glob("unwatched.*")))
    assert alive(rank)
    home.close()
    assert process.wait(30) == 0 and not alive(rank)
