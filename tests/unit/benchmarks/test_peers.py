"""``python -m benchmarks.peers``: who is measured when, what counts as right, what is shown, and what is written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.peers import __main__ as command
from benchmarks.peers import catalogue, nets, show, summary
from benchmarks.peers import launches as host
from benchmarks.peers import placement as cluster
from benchmarks.peers.results import (
    SCHEMA,
    SCHEMA_VERSION,
    Block,
    Estimate,
    Launch,
    Outcome,
    PeersBench,
    WorkerConfig,
)
from click.testing import CliRunner
from tests.findings import fail
from tests.support.json_schema import mistakes, validates
from tools import json_schemas

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity
from fairlead.base.progress import Silent
from fairlead.base.serde import from_json, to_json
from fairlead.ml.train.runner import RunOutcome
from fairlead.perf.bench import Machine
from fairlead.perf.records import documents

MACHINE = Machine("laptop", ("node",), 2, 0.5, {"MPI": "MPICH 5.0.2"})


def launched(own: float = 0.2, base: float = 0.1, **more: Any) -> Launch:
    """A launch of two ranks whose answers are right, unless ``more`` says otherwise."""
    blocks = (Block((base, base / 2), (own, own)), Block((base, base), (own / 2, own)))
    right: dict[str, Any] = {
        "blocks": blocks, "error": 1e-7, "apart": 0.5, "alike": True, "updates": None,
        "expected_updates": None, "hosts": ("node", "node"), "cores": (1, 1), "crowded": False,
        "backend": "", "versions": {"numpy": "2"}, "load": 1.0, "seconds": 9.0,
    }  # fmt: skip
    return Launch(**right | more)


def wished(tmp_path: Path, *names: str, rounds: int = 6) -> host.PeersOptions:
    return host.PeersOptions(tmp_path, "hepcnn", catalogue.select(names), 2, rounds=rounds)


def found(**launches: Launch) -> dict[str, host.PeerRuns]:
    return {
        name.replace("_", "-"): host.PeerRuns([replace(one) for _ in range(6)])
        for name, one in launches.items()
    }


def test_speed_efficiency_and_ratios_are_those_of_the_blocks(tmp_path: Path) -> None:
    options = wished(tmp_path, "horovod")
    rows = {
        row.name: row
        for row in summary.results(
            options,
            found(alone=launched(0.1), fairlead=launched(0.2), horovod=launched(0.4)),
        )
    }
    assert [row.outcome for row in rows.values()] == [Outcome.RIGHT] * 3
    assert list(rows) == ["alone", "fairlead", "horovod"]  # the fastest first
    batch = nets.TASKS["hep"].batch
    for name, rate, efficiency in (("fairlead", 10 * batch, 0.5), ("horovod", 5 * batch, 0.25)):
        row = rows[name]
        assert row.samples_per_s and row.efficiency and row.of_alone
        assert row.samples_per_s.value == pytest.approx(rate)
        assert row.efficiency.value == pytest.approx(efficiency)
        # One process alone makes 10 batches a second, two of them 20.
        assert row.of_alone.value == pytest.approx(efficiency)
    times = rows["horovod"].fairlead_times
    assert times and (times.value, times.low, times.high) == pytest.approx((2, 2, 2))
    assert times.confidence >= 0.95 and rows["fairlead"].fairlead_times is None
    assert rows["alone"].efficiency is None


def test_interval_needs_five_rounds() -> None:
    few, enough = (
        summary.estimate([1.0, 2.0, 3.0, 4.0]),
        summary.estimate([1.0, 2.0, 3.0, 4.0, 5.0]),
    )
    assert few and (few.value, few.low, few.high) == (2.5, None, None)
    assert enough and (enough.low, enough.high) == (1.0, 5.0) and enough.confidence < 0.95
    assert summary.estimate([]) is None


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"alike": False}, "different weights"),
        ({"error": 0.3}, "off by 30.0%"),
        ({"error": float("nan")}, "off by"),
        ({"apart": 1e-6}, "the same gradients"),
        ({"updates": 27, "expected_updates": 28}, "27 updates of 28"),
    ],
)
def test_answer_that_is_wrong_in_one_round_makes_the_peer_wrong(
    tmp_path: Path, wrong: dict[str, Any], word: str
) -> None:
    seen = found(alone=launched(), fairlead=launched(), horovod=launched())
    assert summary.wrong(launched()) == ""
    seen["horovod"].launches[4] = launched(**wrong)
    (row,) = [r for r in summary.results(wished(tmp_path, "horovod"), seen) if r.name == "horovod"]
    assert (
        row.outcome is Outcome.WRONG
        and word in row.why
        and row.next.startswith("python -m benchmarks.peers --peers horovod;")
    )


class Launches:
    """A stand-in for an image: notes who was launched, and answers for the ranks."""

    def __init__(self, fails: tuple[str, ...] = ()):
        self.fails, self.log = fails, [("", 0, 0)][:0]

    def __call__(self, ranks: int, command: Any, binds: Any) -> RunOutcome:
        config = from_json(WorkerConfig, json.loads(Path(command[-1]).read_text()))
        self.log.append((config.peer, ranks, config.cores))
        if config.peer in self.fails:
            return RunOutcome(1, "it hurts")
        config.out.write_text(json.dumps(to_json(launched(cores=(3, 4)))))
        return RunOutcome(0, "")


def test_one_peer_that_fails_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    options = wished(tmp_path, "horovod", "ps-2", rounds=4)
    tensorflow, horovod = Launches(), Launches(fails=("horovod",))
    seen = host.measure(
        options, {"tensorflow": tensorflow, "tensorflow-horovod": horovod}, Silent()
    )
    assert [name for name, *_ in horovod.log] == ["horovod"] * 2
    assert [x is None for x in seen["horovod"].launches] == [True] * 4
    assert all(all(seen[name].launches) for name in ("alone", "fairlead", "ps-2"))
    # Each round begins with another; one process alone has as many cores as a rank of the others.
    assert [name for name, *_ in tensorflow.log[:6]] == [
        "fairlead", "ps-2", "alone", "ps-2", "fairlead", "alone"
    ]  # fmt: skip
    assert {entry[1:] for entry in tensorflow.log if entry[0] == "alone"} == {(1, 3)}
    assert {entry[1:] for entry in tensorflow.log if entry[0] != "alone"} == {(2, 0)}
    rows = {row.name: row for row in summary.results(options, seen)}
    assert rows["horovod"].outcome is Outcome.FAILED and "it hurts" in rows["horovod"].why
    assert rows["horovod"].why.startswith("round 1: ") and rows["horovod"].samples_per_s is None


def test_interrupt_ends_all(tmp_path: Path) -> None:
    def interrupted(*_: Any) -> RunOutcome:
        raise fail("interrupted", where="", why="", remedy="", check="x", code=ExitCode.INTERRUPTED)

    with pytest.raises(FairleadError):
        host.measure(wished(tmp_path, "ps-1"), {"tensorflow": interrupted}, Silent())


def ill(what: str, where: str, why: str, remedy: str) -> Finding:
    return Finding(Severity.ERROR, what, where, why, remedy, "bench-rank")


def bench_of(tmp_path: Path) -> PeersBench:
    """With a peer that was right, one that was wrong, one that failed and one that was not run."""
    options = wished(tmp_path, "horovod", "ps-2", "ddp")
    seen = found(
        alone=launched(), fairlead=launched(), ps_2=launched(updates=1, expected_updates=2),
        horovod=launched(), alone_torch=launched(), ddp=launched(), ddp_fairlead=launched(),
    )  # fmt: skip
    for name in ("alone-torch", "ddp", "ddp-fairlead"):
        seen[name] = host.PeerRuns(
            refused=ill("no image called `pytorch`", "IMAGE", "x", "fairlead build pytorch")
        )
    seen["horovod"].launches[2] = None
    seen["horovod"].failures[2] = ill("a rank failed", "node", "<why> & so", "look")
    task = options.task
    return PeersBench(
        "2026-01-02T03:04:05+00:00", 60.0, "python -m benchmarks.peers", MACHINE, "hepcnn", task.name, task.image,
        task.weights, task.batch, "full", 2, 6, 4, 3, summary.results(options, seen),
    )  # fmt: skip


def test_table_has_every_peer_and_says_what_is_not_well(tmp_path: Path) -> None:
    text = show.text(bench_of(tmp_path))
    lines = text.splitlines()
    for peer in catalogue.select(["horovod", "ps-2", "ddp"]):
        assert any(line.startswith(peer.title) for line in lines), peer
    assert (
        "not run: torch DDP, Gloo: no image called `pytorch`\n  next: fairlead build pytorch"
        in text
    )
    assert (
        "failed: Horovod, default: round 3: a rank failed; node; <why> & so\n  next: look" in text
    )
    assert "wrong: parameter server, 2 servers: the servers made 1 updates of 2" in text
    (line,) = [line for line in lines if line.startswith("fairlead ")]
    assert line.split()[1:3] == ["20", "[20,"] and line.endswith("right")


def test_picture_reaches_to_the_end_of_every_interval_up_to_a_limit(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)

    def caps(high: float) -> tuple[int, float]:
        """Of the one peer with an interval: its caps, and how far right it reaches."""
        peers = [
            replace(one, efficiency=Estimate(1.1, 0.9, high, 0.97, 6) if one.name == "fairlead" else None)
            for one in bench.peers
        ]  # fmt: skip
        (mark,) = re.findall(r'class="whisker" d="([^"]+)"', show.picture(replace(bench, peers=tuple(peers))))  # fmt: skip
        return mark.count("v8"), float(mark.split("H")[1].split("M")[0])

    whole, past = caps(1.4), caps(1.6)
    assert whole[0] == 2 and past[0] == 1
    assert (
        whole[1] < past[1] and caps(1.7) == past
    )  # the axis ends there, and nothing says that the interval does


def test_picture_is_well_formed_and_shows_every_peer(tmp_path: Path) -> None:
    made = show.picture(bench_of(tmp_path))
    root = ElementTree.fromstring(made)
    words = " ".join(root.itertext())
    assert "Horovod, default" in words and "not run: no image called `pytorch`" in words
    assert "failed: round 3" in words and "parameter server, 2 servers (wrong)" in words
    assert made == show.picture(bench_of(tmp_path)) and "http" not in made.replace("http://www.w3.org/2000/svg", "")  # fmt: skip


@validates
def test_document_follows_its_published_schema(tmp_path: Path) -> None:
    value = bench_of(tmp_path)
    schema = json.loads(json_schemas.text("bench-peers.schema.json"))
    written = json.loads(documents.text(value, SCHEMA, SCHEMA_VERSION))
    assert not mistakes(schema, written)
    assert from_json(PeersBench, {k: v for k, v in written.items() if k in to_json(value)}) == value
    written["knots"] = 1
    assert mistakes(schema, written)


def test_peers_chosen_bring_what_they_are_compared_with() -> None:
    names = [peer.name for peer in catalogue.select(["ps-3", "ps-3"])]
    assert names == ["alone", "fairlead", "ps-3"]
    assert [p.name for p in catalogue.select(["ddp"])] == ["alone-torch", "ddp", "ddp-fairlead"]
    assert catalogue.select(None) == catalogue.PEERS and len(set(catalogue.NAMES)) == len(
        catalogue.PEERS
    )
    # What the issue asks for.
    assert {"horovod", "horovod-tuned", "ddp", "mirrored", "ps-1", "ps-2", "ps-4"} < set(
        catalogue.NAMES
    )
    for peer in catalogue.PEERS:
        assert catalogue.find(peer.ours).framework == peer.framework
    with pytest.raises(FairleadError, match="horovot"):
        catalogue.find("horovot")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hepcn"], "hepcnn"),
        (["--peers", "ps-0"], "unknown peer `ps-0`"),
        (["--image", "tensorflo=x"], "RECIPE=IMAGE"),
        (["-n", "1"], "x>=2"),
    ],
)
def test_wrong_words_are_refused_with_the_right_ones(words: list[str], said: str) -> None:
    done = CliRunner().invoke(command.peers, words)
    assert done.exit_code != 0 and said in done.output + str(done.exception)


def test_servers_are_spread_over_hosts_and_none_is_left_out() -> None:
    hosts = ["a"] * 4 + ["b"] * 4
    assert {hosts[rank] for rank in cluster.holders(hosts, 2)} == {"a", "b"}
    for count in (1, 4, 8, 20):
        held = cluster.holders(hosts, count)
        assert len(held) == count
        assert max(map(held.count, range(8))) - min(map(held.count, range(8))) <= 1


def test_cores_are_shared_out_within_a_machine_only() -> None:
    node = tuple(range(8))
    known = [("a", node), ("b", node), ("a", node), ("b", node)]
    assert [cluster.place_of(rank, known) for rank in range(4)] == [
        (0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 7), (4, 5, 6, 7),
    ]  # fmt: skip
    # What a launcher has bound stays.
    assert cluster.place_of(1, [("a", (0, 1)), ("a", (2, 3))]) == (2, 3)
    assert [cluster.place_of(rank, [("a", (5,))] * 3) for rank in range(3)] == [(5,)] * 3


def test_port_that_is_given_is_free() -> None:
    import socket

    with socket.create_server(("", cluster.free_port())) as door:
        assert door.getsockname()[1] != cluster.free_port()


def test_name_that_leads_nowhere_is_reported_before_anything_waits_for_it() -> None:
    cluster.require_names(["localhost", "localhost"])
    with pytest.raises(FairleadError) as caught:
        cluster.require_names(["localhost", "no-such-node.invalid"])
    (shown,) = caught.value.findings
    assert "`no-such-node.invalid`" in shown.what and shown.check == "bench-name"
