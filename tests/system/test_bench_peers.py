"""``python -m benchmarks.peers`` for real: every peer training in its own image."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers import catalogue
from tests.support.json_schema import mistakes
from tests.system import hosts, slurm

SCHEMA = hosts.ROOT / "docs/reference/bench-peers.schema.json"
PEERS = (sys.executable, "-m", "benchmarks.peers")


def measured(
    *words: str | Path, env: Mapping[str, str] | None = None, limit_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """``python -m benchmarks.peers WORDS`` in the checkout; a hang beyond ``limit_s`` fails the test."""
    return hosts.program(*PEERS, *words, env=env, limit_s=limit_s, cwd=hosts.ROOT)


def written(folder: Path) -> dict[str, Any]:
    """The document in a folder, once it follows its schema."""
    document: dict[str, Any] = json.loads((folder / "bench-peers.json").read_text())
    assert mistakes(json.loads(SCHEMA.read_text()), document) == []
    return document


def images() -> list[str]:
    recipes = dict.fromkeys(peer.recipe for peer in catalogue.PEERS)
    return [word for name in recipes for word in ("--image", f"{name}={hosts.image(name)}")]


@pytest.mark.full
def test_every_peer_trains_and_its_answers_are_right(tmp_path: Path) -> None:
    words = ("--quick", "--rounds", "1", "--limit", "400", "-o", tmp_path)
    done = measured(*images(), *words, limit_s=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    document = written(tmp_path)
    rows = {row["name"]: row for row in document["peers"]}
    assert set(rows) == set(catalogue.NAMES)
    assert {row["outcome"] for row in rows.values()} == {"right"}
    for peer in catalogue.PEERS:
        (launch,) = rows[peer.name]["launches"]
        assert rows[peer.name]["samples_per_s"]["value"] > 0
        assert len(launch["hosts"]) == (1 if peer.alone else 2)
        assert len(set(launch["cores"])) == 1
        if peer.alone:
            assert launch["error"] is None
        else:
            assert launch["error"] < 1e-4 < 0.01 < launch["apart"]
        if peer.servers:
            assert launch["updates"] == launch["expected_updates"] > 0
    speeds = [row["samples_per_s"]["value"] for row in document["peers"]]
    assert speeds == sorted(speeds, reverse=True)
    assert "<svg" in (tmp_path / "bench-peers.svg").read_text()


@pytest.mark.full
def test_peer_that_takes_too_long_is_named_and_the_next_is_launched(tmp_path: Path) -> None:
    """TensorFlow alone takes longer to import and to compile two networks than three seconds."""
    words = ("--quick", "--rounds", "1", "--peers", "ps-1", "--limit", "3", "-o", tmp_path)
    one = ("--image", f"tensorflow={hosts.image('tensorflow')}")
    done = measured(*one, *words, limit_s=600)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {row["name"]: row for row in written(tmp_path)["peers"]}
    assert set(rows) == {"alone", "fairlead", "ps-1"}
    for name, row in rows.items():
        assert row["outcome"] == "failed"
        assert f"`{name}` did not end within 3 s" in row["why"] and "--limit" in row["next"]
    assert left(tmp_path) == []


def test_peer_without_an_image_is_listed_with_what_builds_it(tmp_path: Path) -> None:
    words = ("--dry-run", "--json", "-o", tmp_path, "--image", f"tensorflow={hosts.image()}")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = measured(*words, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = json.loads(done.stdout)["steps"]
    assert "Horovod, default: not run, fairlead build tensorflow-horovod" in steps
    assert "torch DDP, Gloo: not run, fairlead build pytorch" in steps
    assert "MultiWorkerMirrored, gRPC ring: tensorflow" in steps


def left(folder: Path) -> list[str]:
    """Ranks and parameter servers of a benchmark in that folder that still run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        of = any(word.startswith(str(folder)) for word in words)
        if words[1:2] == ["-m"] and words[2].startswith("benchmarks.peers.") and of:
            found.append(" ".join(words))
    return found


@pytest.mark.full
def test_interrupt_leaves_neither_ranks_nor_servers(tmp_path: Path) -> None:
    line = ["--quick", "--peers", "ps-2", "-o", str(tmp_path)]
    line += ["--image", f"tensorflow={hosts.image('tensorflow')}"]
    process = subprocess.Popen(
        [*PEERS, *line],
        cwd=hosts.ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    late = time.monotonic() + 300
    while not any("benchmarks.peers.parameter_server" in one for one in left(tmp_path)):
        assert process.poll() is None and time.monotonic() < late
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert left(tmp_path) == []


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs jobs of others: only root can start it")
def test_peers_find_each_other_on_two_nodes_of_a_slurm() -> None:
    """The nodes' names are known in the container by a file: no DNS here has them."""
    image = hosts.image("tensorflow")
    with slurm.slurm() as cluster:
        cluster.idle()
        names, out = cluster.folder / "hosts", cluster.folder / "bench"
        names.write_text("".join(f"127.0.0.1 {name}\n" for name in ("localhost", *slurm.NODES)))
        line = ["env", f"--chdir={hosts.ROOT}", *PEERS, "--quick", "--rounds", "1"]
        line += ["--peers", "mirrored,ps-2", "--image", f"tensorflow={image}", "--limit", "200"]
        line += ["-B", f"{names}:/etc/hosts:ro", "-o", str(out)]
        done = cluster.run("salloc", "--quiet", "-N2", "-n2", *line, limit_s=1500)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = {row["name"]: row for row in written(out)["peers"]}
    assert set(rows) == {"alone", "fairlead", "mirrored", "ps-2"}
    for name, row in rows.items():
        (launch,) = row["launches"]
        assert row["outcome"] == "right"
        assert len(set(launch["hosts"])) == (1 if name == "alone" else 2)
