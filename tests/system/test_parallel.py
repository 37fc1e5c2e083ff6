"""Ranks that do not all do the same: messages, pipelines, workers out of step, teams at once; and the examples of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts
from tests.system.netns import Host, launcher, two_hosts
from tests.system.test_examples import _commands, _run

import fairlead
from fairlead import native
from fairlead.base.paths import cache_dir

RUNTIME = Path(fairlead.__file__).parents[1]
PROGRAM = hosts.PROGRAMS / "parallel.py"
Ran = subprocess.CompletedProcess[str]
Ranks = Callable[..., Ran]
# Hydra ends all ranks when one is killed; here the others are to say what they see.
LEFT_ALONE = ("-disable-auto-cleanup",)


@pytest.fixture(params=["mpich", "intel"])
def mpi(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def ranks() -> Ranks:
    """Runs a case of the program on so many ranks."""

    def run(
        count: int, *words: str, mpi: str = "mpich", launch: tuple[str, ...] = (), **variables: str
    ) -> Ran:
        prefix = hosts.intel() if mpi == "intel" else hosts.mpich()
        command = [sys.executable, str(PROGRAM), *words]
        if launch:
            command = ["sh", "-c", 'trap "" USR1; "$@"; true', "sh", *command]
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD_COMM_")},
            "LD_LIBRARY_PATH": str(prefix / "lib"),
            "PYTHONPATH": str(RUNTIME),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "FAIRLEAD_COMM_LIBRARY": str(native.ensure(native.CORE, cache_dir())),
            **variables,
        }
        return subprocess.run(
            [prefix / "bin/mpiexec", *launch, "-n", str(count), *command],
            capture_output=True, text=True, env=environ, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run


def said(done: Ran) -> dict[int, list[str]]:
    """What each rank has said."""
    lines = re.findall(r"^(\d): (.+)$", done.stdout, re.MULTILINE)
    return {int(rank): [text for r, text in lines if r == rank] for rank, _ in lines}


def each(done: Ran, count: int, words: str) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert said(done) == {rank: [words] for rank in range(count)}, done.stdout


# --- messages ---------------------------------------------------------------------------------


def test_messages_of_any_size_dtype_and_tag_arrive_whole_in_any_order(
    ranks: Ranks, mpi: str
) -> None:
    done = ranks(3, "traffic", mpi=mpi)
    assert done.returncode == 0, done.stderr
    counts = re.findall(r"(\d+) sent, (\d+) received", done.stdout)
    assert [sum(map(int, column)) for column in zip(*counts, strict=True)] == [200, 200]


@pytest.mark.parametrize("backend", ["native", "mpi4py"])
def test_two_communicators_and_parts_of_ranks_have_messages_of_their_own(
    ranks: Ranks, backend: str
) -> None:
    each(ranks(4, "apart", FAIRLEAD_COMM_BACKEND=backend), 4, "part of 2, all 4")


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("shape", "sent float32 (300, 1000) with tag 3; rank 1 expected float32 (1000, 300)"),
        ("dtype", "sent float32 (300, 1000) with tag 3; rank 1 expected float64 (300, 1000)"),
    ],
)
def test_what_does_not_fit_is_named_by_the_receiver_and_both_can_go_on(
    ranks: Ranks, which: str, words: str
) -> None:
    done = ranks(2, "mismatch", which)
    assert done.returncode == 0, done.stderr
    first, second = said(done)[0], said(done)[1]
    assert first == ["sent", "went on"] and second[1:] == ["went on"]
    assert re.fullmatch(rf"comm-message: rank 0 \(\S+\) {re.escape(words)}", second[0])


def test_tag_that_is_never_sent_and_message_that_is_never_received_are_named_with_the_limit(
    ranks: Ranks,
) -> None:
    done = ranks(2, "mismatch", "tag")
    (first,), (second,) = said(done)[0], said(done)[1]
    assert first.startswith("comm-message-late: rank 0 waited 2 s for rank 1 to receive tag 3 (")
    assert second.startswith("comm-message-late: rank 1 waited 1 s for rank 0 to send tag 4 (")


# --- pipelines --------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_two_replicas_of_a_pipeline_end_with_the_bits_of_one_process(
    ranks: Ranks, schedule: str
) -> None:
    each(ranks(4, "hybrid", schedule), 4, "the bits of one process")


@pytest.mark.full
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_four_stages_in_two_replicas_on_fewer_cores_do_too(ranks: Ranks, schedule: str) -> None:
    each(ranks(8, "hybrid", schedule), 8, "the bits of one process")


def test_stage_that_is_killed_is_named_at_once_by_both_neighbors(ranks: Ranks) -> None:
    done = ranks(3, "fault", "killed", launch=LEFT_ALONE)
    words = said(done)
    assert set(words) == {0, 2}, done.stdout + done.stderr
    for (line,) in words.values():
        assert re.match(r"comm-peer-lost after [0-4] s: rank 1 \(\S+\) has ended while rank", line)


def test_stage_that_is_slow_is_named_with_the_limit(ranks: Ranks) -> None:
    done = ranks(
        3,
        "fault",
        "slow",
        launch=LEFT_ALONE,
        FAIRLEAD_COMM_TIMEOUT_S="2",
        FAIRLEAD_COMM_STALL_S="1",
    )
    words = said(done)
    assert words[0][0].startswith("comm-message-late after 2 s: rank 0 waited 2 s for rank 1 to ")
    assert words[2][0].startswith("comm-message-late after 2 s: rank 2 waited 2 s for rank 1 to ")
    assert re.search(r"fairlead.comm: rank [02] has waited 1 s for rank 1 to send tag", done.stderr)


def test_stage_that_raises_ends_the_others(ranks: Ranks) -> None:
    done = ranks(3, "fault", "raises")
    assert done.returncode != 0 and not said(done)
    assert "no such layer" in done.stderr and "rank 1 of 3 failed; ending the others" in done.stderr


# --- workers out of step, layers in slices, two teams ------------------------------------------


@pytest.mark.parametrize("bound", ["0", "1", "4", "none"])
def test_workers_with_random_pauses_keep_the_bound_and_end_with_the_same_bits(
    ranks: Ranks, bound: str
) -> None:
    each(ranks(3, "stale", bound), 3, f"the bits of one process: {bound == '0'}")


def test_layers_in_slices_are_those_of_one_process_but_for_the_order_of_sums(ranks: Ranks) -> None:
    each(ranks(3, "wide"), 3, "within 1e-13 of one process")


def test_two_teams_are_under_way_at_once(ranks: Ranks, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    each(ranks(2, "teams", FAIRLEAD_COMM_TIMELINE=str(file)), 2, "both")
    events = json.loads(file.read_text())["traceEvents"]
    rows = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"
    }
    calls: dict[str, list[tuple[float, float]]] = {"generator": [], "discriminator": []}
    first = min(pid for pid, _ in rows)
    for event in events:
        row = rows.get((event.get("pid"), event.get("tid")))
        if event.get("cat") == "call" and row in calls and event["pid"] == first:
            calls[row].append((event["ts"], event["ts"] + event["dur"]))
    pairs: list[Any] = list(zip(*calls.values(), strict=True))
    assert len(pairs) == 3
    # Not all: on a busy machine one may be done before the other's thread gets a core.
    assert any(max(a[0], b[0]) < min(a[1], b[1]) for a, b in pairs), pairs


# --- the examples, in images ------------------------------------------------------------------


def _bits(output: str) -> str:
    (bits,) = re.findall(r"sha256 ([0-9a-f]{64})", output)
    return str(bits)


@pytest.fixture(scope="module")
def base_image() -> None:
    _run("fairlead build mpi-base")


def test_pipeline_by_either_schedule_has_the_bits_of_one_process(base_image: None) -> None:
    (command,) = _commands("parallel/pipeline.py")
    other = command.replace("1f1b", "gpipe")
    alone = other.replace("-n 2", "-n 1")
    assert len({_bits(_run(line)) for line in (command, other, alone)}) == 1


@pytest.mark.full
def test_layers_too_large_for_one_rank_train_on_two(base_image: None) -> None:
    (command,) = _commands("parallel/wide_layer.py")
    _bits(_run(command))
    done = hosts.typed(command.replace("-n 2", "-n 1"))
    assert done.returncode != 0 and "MemoryError: Unable to allocate" in done.stdout
    small = command.replace("65536", "4096")
    assert _bits(_run(small)) == _bits(_run(small.replace("-n 2", "-n 1")))


def test_workers_in_step_have_the_bits_of_one_process_and_others_stay_within_the_bound(
    base_image: None,
) -> None:
    (command,) = _commands("parallel/async_sgd.py")
    output = _run(command)
    assert "same bits on all ranks: True" in output
    missing = re.search(r"by rank: \{(.*?)\}", output)
    assert missing and {int(n) for n in re.findall(r"(\d+):", missing[1])} <= {0, 1, 2, 3}
    together = re.sub(r"3$", "0", command)
    assert _bits(_run(together)) == _bits(_run(together.replace("-n 2", "-n 1")))


def test_gan_of_two_teams_has_the_bits_of_one_process(base_image: None) -> None:
    (command,) = _commands("parallel/gan.py")
    output = _run(command)
    mean = re.search(r"mean (\S+) of 3.0", output)
    assert mean and abs(float(mean[1]) - 3) < 0.2
    assert _bits(output) == _bits(_run(command.replace("-n 2", "-n 1")))


@pytest.mark.full
def test_tensorflow_by_layers_over_ranks_has_the_bits_of_one_process() -> None:
    _run("fairlead build tensorflow")
    (command,) = _commands("parallel/layers_tensorflow.py")
    assert _bits(_run(command)) == _bits(_run(command.replace("-n 2", "-n 1")))


@pytest.mark.full
def test_torch_by_layers_over_ranks_has_the_bits_of_one_process() -> None:
    _run("fairlead build pytorch")
    (command,) = _commands("parallel/layers_torch.py")
    assert _bits(_run(command)) == _bits(_run(command.replace("-n 2", "-n 1")))


# --- two hosts --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, Host]]:
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    with two_hosts() as both:
        yield both


def test_messages_between_hosts_carry_a_pipeline_and_workers_out_of_step(
    pair: tuple[Host, Host], base_image: None
) -> None:
    one, two = pair
    mpiexec = launcher(one, hosts.mpich() / "bin/mpiexec.hydra")
    for example, word in (("pipeline.py", "1f1b"), ("async_sgd.py", "0")):
        path = hosts.ROOT / "examples/parallel" / example
        line = ("--bind", path.parent, "mpi-base", "--", "python3", path, word)
        before = one.sent(), two.sent()
        both = one.fairlead("run", "-n", "2", "-q", "--launcher", mpiexec, *line)
        assert both.returncode == 0, both.stdout + both.stderr
        assert min(one.sent() - before[0], two.sent() - before[1]) > 40_000
        alone = one.fairlead("run", "-n", "1", "-q", *line)
        assert _bits(both.stdout) == _bits(alone.stdout)
