"""A machine of several nodes validated in one command: its nodes, links and clocks; and who is to blame for what is slow.

Nodes are namespaces of this machine with a network between them (:mod:`tests.system.netns`), and MPICH's own ``mpiexec``
starts ranks on them by a file of hosts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.system import cgroups, hosts, netns
from tests.system.netns import Host
from tests.system.test_validate_faults import fault, process_of, waited

from fairlead.perf import stats

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
]
RATE = "100mbit"  # the veth carries some 10 Gbit/s
KEEP = ("--save-reference", "--save-crowded", "--save-slow")
LIMIT_S = 900


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Host, ...]]:
    with netns.two_hosts() as pair:
        yield pair


@pytest.fixture(scope="module")
def three() -> Iterator[tuple[Host, ...]]:
    with netns.switched(3) as found:
        yield found


def environment(nodes: tuple[Host, ...], slots: tuple[int, ...], folder: Path) -> dict[str, str]:
    """What tells MPICH's launcher which hosts there are, and how it gets there; and where references are kept."""
    folder.mkdir(exist_ok=True)
    (folder / "sites").mkdir(exist_ok=True)
    file = folder / "hosts"
    lines = (f"{host.name}:{n}\n" for host, n in zip(nodes, slots, strict=True))
    file.write_text("".join(lines))
    remote = netns.launcher(nodes[0], hosts.mpich() / "bin/mpiexec.hydra").with_name("rsh")
    return {
        "HYDRA_HOST_FILE": str(file),
        "HYDRA_LAUNCHER": "rsh",
        "HYDRA_LAUNCHER_EXEC": str(remote),
        "XDG_STATE_HOME": str(folder / "state"),
        "FAIRLEAD_SITES_EXTRA": str(folder / "sites"),
    }


def validated(
    on: Host,
    out: Path,
    env: dict[str, str],
    *words: str | Path,
    meanwhile: Callable[[], None] | None = None,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """What a quick validation says as JSON, with its ``code`` and its ``page_text``."""
    whole = (
        "--quick",
        "--despite-load",
        "--image",
        hosts.image("tensorflow"),
        "-o",
        out,
        "--json",
        *words,
    )
    if meanwhile:
        threading.Thread(target=meanwhile, daemon=True).start()
    done = on.fairlead("validate", *whole, env=env, limit_s=limit_s)
    assert done.stdout, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert "page" in found, found
    return found | {"code": done.returncode, "page_text": Path(found["page"]).read_text()}


def lines(found: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    """Measurements of that kind, each with its verdict."""
    pairs = zip(found["measurements"], found["verdicts"], strict=True)
    return [m | {"verdict": v} for m, v in pairs if all(m[k] == w for k, w in wanted.items())]


def over(found: dict[str, Any], what: str) -> list[dict[str, Any]]:
    """Lines of large messages between nodes, of as many repeats as say something."""
    every = [m for m in lines(found, what=what) if m["nodes"] > 1 and m["bytes"] >= 1 << 20]
    judged = [m for m in every if len(m["samples"]) >= stats.FEWEST]
    assert judged, every
    return judged


def test_two_nodes_are_validated_in_one_command_and_each_line_knows_its_nodes(
    two: tuple[Host, ...], tmp_path: Path
) -> None:
    env = environment(two, (2, 1), tmp_path)
    words = ("--site", "laptop", "--ranks", "1,3", "--models", "cosmoflow")
    found = validated(two[0], tmp_path / "out", env, *words)
    assert found["code"] in (0, 125) and found["faults"] == [], found["headline"]
    assert found["machine"]["hosts"] == ["node1", "node2"] and found["machine"]["site"] == "laptop"
    assert [r["host"] for r in found["proof"]["ranks"]] == ["node1", "node1", "node2"]
    placed = {(m["what"], m["ranks"], m["nodes"]) for m in found["measurements"]}
    assert placed == {
        ("start", 3, 2), ("checkpoint", 1, 1), ("pingpong", 2, 1), ("pingpong", 2, 2),
        ("allreduce", 3, 2), ("broadcast", 3, 2), ("input", 1, 1), ("train", 1, 1), ("train", 3, 2),
    }  # fmt: skip
    assert {tuple(m["hosts"]) for m in lines(found, what="pingpong", nodes=2)} == {
        ("node1", "node2")
    }
    assert [s["host"] for s in found["steps"]] == ["node1", "node1", "node2"]
    assert found["evidence"]["culprits"] == []
    assert "2 nodes of" in found["page_text"] and "node1, node2" in found["page_text"]


@pytest.mark.parametrize("ways", [1, 2])
def test_slow_link_between_the_only_two_nodes_is_named(
    ways: int, two: tuple[Host, ...], tmp_path: Path
) -> None:
    """One way beside the other; both ways by a reference, as there is no other link to hold it against."""
    env = environment(two, (1, 1), tmp_path)
    words = ("--models", "none", "--ranks", "2")
    well = validated(two[0], tmp_path / "well", env, *words, *KEEP)
    assert well["references"] and well["evidence"]["culprits"] == [] and well["faults"] == []
    slowed = two[-ways:]
    try:
        for host in slowed:
            netns.slow_link(host, RATE)
        found = validated(two[0], tmp_path / "ill", env, *words)
    finally:
        for host in slowed:
            netns.unlimited(host)
    assert found["code"] == 125
    (culprit,) = found["evidence"]["culprits"]
    name = "path node1 - node2" if ways == 1 else "link between node1 and node2"
    assert culprit["name"] == name and culprit["times"] > 3
    said = "from node2 to node1" if ways == 1 else "reference"
    assert said in culprit["seen"]
    assert found["headline"].startswith(f"{name[0].upper()}{name[1:]} is ")
    held = "the other way" if ways == 1 else "expected"
    assert f"× as slow as {held}: " in found["headline"]
    reasons = [m["verdict"] for m in (*over(found, "pingpong"), *over(found, "allreduce"))]
    slow = [v for v in reasons if v["state"] == "slow"]
    assert len(slow) > 1 and all(v["because"].startswith(name) for v in slow), reasons
    assert not [v for v in reasons if v["state"] == "normal"], reasons
    assert name in found["page_text"]


def test_slow_link_of_one_of_three_nodes_is_named_and_slow_lines_give_it(
    three: tuple[Host, ...], tmp_path: Path
) -> None:
    env = environment(three, (1, 1, 1), tmp_path)
    words = ("--models", "none", "--ranks", "3")
    well = validated(three[0], tmp_path / "well", env, *words, *KEEP)
    assert well["evidence"]["culprits"] == [] and well["faults"] == [], well["headline"]
    netns.slow_link(three[1], RATE)
    try:
        found = validated(three[0], tmp_path / "ill", env, *words)
    finally:
        netns.unlimited(three[1])
    (culprit,) = found["evidence"]["culprits"]
    assert culprit["name"] == "link of node2" and culprit["hosts"] == ["node2"]
    assert culprit["from_nodes"] == 2 and found["code"] == 125
    assert found["headline"].startswith("Link of node2 is ")
    slow = [m["verdict"] for m in over(found, "allreduce") if m["verdict"]["state"] == "slow"]
    assert slow and all(v["because"].startswith("link of node2") for v in slow)
    assert "link of node2 is" in found["page_text"]


def test_rank_that_is_killed_on_another_node_is_named_with_its_host(
    two: tuple[Host, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def kill() -> None:
        pid = waited(lambda: process_of("fairlead.perf.measure.ranks.messages", 1, out))
        time.sleep(2)
        os.kill(pid, signal.SIGKILL)

    env = environment(two, (1, 1), tmp_path)
    words = ("--models", "none", "--ranks", "2")
    found = validated(two[0], out, env, *words, meanwhile=kill)
    assert found["code"] == 1
    output = fault(found, found["faults"][0]["check"])
    assert output["check"] in ("rank-died", "rank-failed") and "rank 1" in output["what"]
    assert output["where"].startswith("messages, container: rank 1 on node2"), output
    assert {m["what"] for m in found["measurements"] if m["samples"]} == {"start", "checkpoint"}


def test_node_whose_clock_is_ahead_is_named_and_no_start_is_longer_for_it(
    two: tuple[Host, ...], tmp_path: Path
) -> None:
    """What the ranks read is another time; the kernel of both nodes is the same and has but one."""
    python, library = tmp_path / "python3", hosts.preloaded("shifted_clock", tmp_path)
    ahead = f'[ "$(hostname)" = node2 ] && export LD_PRELOAD={library}'
    python.write_text(f'#!/bin/sh\n{ahead}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = environment(two, (1, 1), tmp_path)
    words = ("--models", "none", "--ranks", "2", "--native", python)
    found = validated(two[0], tmp_path / "out", env, *words)
    assert found["code"] in (0, 125), found["headline"]
    (output,) = found["faults"]
    assert output["check"] == "validate-clock" and output["where"] == "node2"
    assert output["what"] == "the clock of node2 is 100 s ahead" and output["severity"] == "warning"
    assert found["headline"].endswith("The clock of node2 is 100 s ahead.")
    starts = lines(found, what="start", way="native")
    assert starts and all(-1 < s < 60 for m in starts for s in m["samples"]), starts
    assert "The clock of node2 is 100 s ahead" in found["page_text"]


@pytest.fixture(scope="module")
def eight() -> Iterator[tuple[Host, ...]]:
    with netns.switched(8) as found:
        yield found


def test_slow_host_link_and_disk_are_found_by_64_ranks_in_one_run(
    eight: tuple[Host, ...], tmp_path: Path
) -> None:
    """The processor of a host by a quota, a link by the network's queue, a disk by the kernel's rate for it."""
    env = environment(eight, (8,) * 8, tmp_path)
    # 64 ranks share this machine's few cores, and 8 of them four tenths of one.
    words = ("--models", "none", "--ranks", "64", "--watchdog", "600")
    with ExitStack() as stack:
        quota = stack.enter_context(cgroups.processor(0.4))
        stack.enter_context(cgroups.inside(quota, eight[2].init))
        stack.callback(netns.unlimited, eight[4])
        netns.slow_link(eight[4], "50mbit")
        rate = stack.enter_context(cgroups.disk(tmp_path, 2 << 20))
        stack.enter_context(cgroups.inside(rate, eight[6].init))
        found = validated(eight[0], tmp_path / "out", env, *words, limit_s=2400)
    culprits = {c["name"]: c for c in found["evidence"]["culprits"]}
    seeded = {"processor of node3", "link of node5", "disk of node7"}
    assert set(culprits) == seeded, {name: culprits[name] for name in culprits.keys() ^ seeded}
    assert "ranks of node3 are slow" in culprits["processor of node3"]["seen"]
    assert all(f"{name[1:]} " in found["headline"] for name in culprits), found["headline"]
    assert not [v for v in found["verdicts"] if v["because"].startswith("disk of node7")]
    assert all(name in found["page_text"] for name in culprits)
    assert len(found["page_text"]) < 1_000_000
