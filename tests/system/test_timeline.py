"""The timeline of a run's collectives and the account at its end, on ranks of a real MPI."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import traces
from tests.system import hosts
from tests.traces import of, read

import fairlead
from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.base.serde import from_json, to_json
from fairlead.doctor.install.host_mpi import install_wheel_mpi
from fairlead.ml.data.generate import DataSet, generate
from fairlead.ml.train.events import EventLog
from fairlead.ml.train.model import WorkerConfig, WorkerResult

RUNTIME = Path(fairlead.__file__).parents[1]
HOST = socket.gethostname()
Ran = subprocess.CompletedProcess[str]
Ranks = Callable[..., Ran]

SLOW = """
import sys, time
import numpy as np
from fairlead import comm
ranks = comm.init()
team = ranks.team(name="generator")
big = np.ones(300_000, np.float32)
for step in range(5):
    if ranks.rank == 1:
        time.sleep(0.06)
    ranks.aggregate([big, np.ones(3)])
    team.aggregate([big])
comm.broadcast([np.arange(10)])
comm.finalize()
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Runs a program on so many ranks, each started by the words ``around``."""
    mpi, core = install_wheel_mpi("mpich", "5.0.2"), native.ensure(native.CORE, cache_dir())

    def run(count: int, program: str, around: str = 'exec "$@"', **variables: str) -> Ran:
        path = tmp_path / "program.py"
        path.write_text(program)
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD_COMM_")},
            "LD_LIBRARY_PATH": str(mpi / "lib"),
            "PYTHONPATH": str(RUNTIME),
            "OMP_NUM_THREADS": "1",
            "FAIRLEAD_COMM_LIBRARY": str(core),
            **{f"FAIRLEAD_COMM_{name}": value for name, value in variables.items()},
        }
        return subprocess.run(
            [mpi / "bin/mpiexec", "-n", str(count), "sh", "-c", around, "sh", sys.executable, path],
            capture_output=True, text=True, env=environ, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run


# --- the runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "mpi4py"])
def test_slow_rank_is_seen_in_the_waits_of_the_others_and_named_at_the_end(
    backend: str, ranks: Ranks, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    done = ranks(3, SLOW, BACKEND=backend, TIMELINE=str(file))
    assert done.returncode == 0, done.stderr
    assert not Path(f"{file}.parts").exists()
    events = read(file)
    assert {event["rank"] for event in events} == {f"rank {r} ({HOST})" for r in range(3)}
    for rank in range(3):
        mine = of(events, rank=f"rank {rank} ({HOST})")
        assert len(of(mine, name="init", row="main")) == 1
        calls = [e for e in of(mine, cat="call", row="without a team") if "aggregate" in e["name"]]
        assert [e["args"]["bytes"] for e in calls] == [4 * 300_000 + 8 * 3] * 5
        row = "generator"
        assert [e["args"]["bytes"] for e in of(mine, cat="call", row=row)] == [4 * 300_000] * 5
        assert [
            e["args"]["bytes"]
            for e in of(mine, name="broadcast" if backend == "native" else "broadcast(root=0)")
        ] == [80]
        late = [
            e
            for e in of(mine, cat="wait")
            if e["args"]["for"].startswith("rank 1") and e["args"]["ms"] > 40
        ]
        if rank == 1:
            assert not late
        else:  # of each of the five steps
            assert len(late) == 5 and all(e["dur"] > 40_000 for e in late)
        moves = of(mine, cat="move", row=row)
        assert all(
            0
            < sum(e["args"][f"{s}_ms"] for s in ("pack", "network", "take"))
            < e["dur"] / 1000 + 0.01
            for e in moves
        )
    said = [line for line in done.stderr.splitlines() if "waited" in line]
    assert len(said) == 2, done.stderr
    for line, name in zip(said, ("without a team", "generator"), strict=True):
        match = re.fullmatch(
            r"fairlead.comm: (.*): (\d+) calls, ([\d.]+) MB; the 3 ranks waited ([\d.e-]+) s \(least\), ([\d.e-]+) s"
            rf" \(median\), ([\d.e-]+) s \(most\), longest for rank (\d) \({re.escape(HOST)}\)", line,
        )  # fmt: skip
        assert match and match[1] == name, line
        if name == "without a team":
            assert (
                float(match[4]) < 0.1 < 0.28 < float(match[5]) <= float(match[6])
                and match[7] == "1"
            )
    assert f"fairlead.comm: timeline: run.json: {len(events)} events of 3 ranks" in done.stderr


@pytest.mark.parametrize("backend", ["native", "mpi4py"])
def test_without_a_timeline_there_is_no_file_and_without_a_report_no_word(
    backend: str, ranks: Ranks, tmp_path: Path
) -> None:
    done = ranks(2, SLOW, BACKEND=backend, REPORT="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_run_that_averages_nothing_gives_no_account(ranks: Ranks) -> None:
    done = ranks(2, "from fairlead import comm\ncomm.barrier()\ncomm.finalize()\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_clock_of_another_host_is_set_right_and_its_drift_taken_out(
    ranks: Ranks, tmp_path: Path
) -> None:
    """Rank 1 reads another clock, as on another host: 1000 s ahead."""
    shifted = "unshare --time --fork --monotonic 1000"
    if subprocess.run([*shifted.split(), "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces of time here")
    file = tmp_path / "run.json"
    around = f'if [ "$PMI_RANK" = 1 ]; then exec {shifted} "$@"; fi; exec "$@"'
    done = ranks(2, SLOW, around, BACKEND="native", TIMELINE=str(file))
    assert done.returncode == 0, done.stderr
    mine, other = (of(read(file), rank=f"rank {r} ({HOST})") for r in range(2))
    # Both waits end when the last rank has come; a busy machine wakes one of them later.
    apart = sorted(
        abs(one["ts"] + one["dur"] - two["ts"] - two["dur"])
        for one, two in zip(
            of(mine, cat="wait", row="without a team"),
            of(other, cat="wait", row="without a team"),
            strict=True,
        )
    )
    assert apart[len(apart) // 2] < 10_000 and apart[-1] < 1_000_000
    late = [
        e
        for e in of(mine, cat="wait")
        if e["args"]["for"].startswith("rank 1") and 40 < e["args"]["ms"] < 1000
    ]
    assert len(late) == 5


def test_chunks_and_the_network_are_shown_when_they_are_asked_for(
    ranks: Ranks, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    done = ranks(2, SLOW, NODE_RANKS="1", TIMELINE=str(file), TIMELINE_CHUNKS="1")
    assert done.returncode == 0, done.stderr
    events = read(file)
    assert {e["name"] for e in of(events, cat="chunk")} == {"pack", "sum", "take"}
    flights = [e for e in traces.whole(file)["traceEvents"] if e["ph"] == "b"]
    assert {e["name"] for e in flights} == {"network"}
    chunks = len(of(events, cat="chunk", name="take"))
    assert len(flights) > 2 * 5 * 2 and chunks > len(flights) / 2
    assert all(e["args"]["network_ms"] > 0 for e in of(events, cat="move", row="generator"))


def test_full_ring_keeps_the_newest_and_counts_what_it_dropped(
    ranks: Ranks, tmp_path: Path
) -> None:
    program = """
import numpy as np
from fairlead import comm
for step in range(500):
    comm.aggregate([np.ones(3)])
comm.finalize()
"""
    file = tmp_path / "run.json"
    done = ranks(2, program, TIMELINE=str(file), TIMELINE_MB="0.01")
    assert done.returncode == 0, done.stderr
    events = read(file)
    dropped = traces.whole(file)["otherData"]["dropped_events"]
    kept = [e["args"]["call"] for e in of(events, cat="call", rank=f"rank 0 ({HOST})")]
    # 500 aggregates, the making of the background's team, the end.
    assert kept == list(range(502 - len(kept) + 1, 503)) and len(kept) == 109
    assert dropped == {f"rank {r}": 502 - 109 for r in range(2)}
    assert "older events had no room" in done.stderr


def test_run_that_dies_leaves_what_each_rank_has_done_by_then(ranks: Ranks, tmp_path: Path) -> None:
    program = SLOW.replace(
        "    ranks.aggregate",
        "    if step == 3 and ranks.rank == 1: os.kill(os.getpid(), 9)\n    ranks.aggregate",
    )
    file = tmp_path / "run.json"
    done = ranks(2, f"import os{program}", TIMELINE=str(file))
    assert done.returncode != 0 and not file.exists()
    merge = [sys.executable, "-m", "fairlead.trace.document", str(file)]
    merged = subprocess.run(merge, capture_output=True, text=True, check=False)
    assert merged.returncode == 0 and merged.stdout.startswith("run.json: "), merged.stderr
    for rank in range(2):
        mine = of(read(file), cat="call", row="without a team", rank=f"rank {rank} ({HOST})")
        assert len([e for e in mine if "aggregate" in e["name"]]) == 3
    again = subprocess.run(merge, capture_output=True, text=True, check=False)
    assert again.returncode == 2 and "there is nothing in" in again.stderr


@pytest.mark.full  # parts of killed ranks are merged above; the host's are in tests/unit/runtime/trace/test_trace.py
def test_trace_of_a_run_whose_rank_was_killed_is_put_together_by_its_host(tmp_path: Path) -> None:
    program = SLOW.replace(
        "    ranks.aggregate",
        "    if step == 3 and ranks.rank == 1: os.kill(os.getpid(), 9)\n    ranks.aggregate",
    )
    (tmp_path / "program.py").write_text(f"import os{program}")
    done = hosts.fairlead(
        "run", "-n", "2", "-B", tmp_path, "--timeline", tmp_path / "run.json.gz", hosts.image("mpi-base"), "--",
        "python3", tmp_path / "program.py",
    )  # fmt: skip
    assert done.returncode == 137 and "timeline: run.json.gz: " in done.stderr, done.stderr
    assert not (tmp_path / "run.json.gz.parts").exists()
    events = read(tmp_path / "run.json.gz")
    for rank in range(2):
        mine = of(events, rank=f"rank {rank} ({HOST})")
        calls = of(mine, cat="call", row="without a team")
        # Of rank 0 also a fourth may be there, which ended when rank 1 was gone.
        assert (
            len([e for e in calls if "aggregate" in e["name"] and "status" not in e["args"]]) == 3
        )
        assert len(of(mine, row="main", name="start Python and import")) == 1
    host = of(events, rank=f"fairlead ({HOST})")
    assert of(host, row="stages")[0]["name"] == "plan"
    run, *rest = (e["name"] for e in of(host, row="launches"))
    assert (run, rest[-1]) == ("run", "until the end") and "until every rank is proved" in rest


LOADER = """
import torch
from fairlead import comm
torch.manual_seed(1)
x = torch.randn(640, 8)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1), torch.nn.Flatten(0))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
samples = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).float())
for rows, labels in torch.utils.data.DataLoader(samples, batch_size=32, shuffle=True):
    optimizer.zero_grad()
    with comm.span("loss of my own"):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(rows), labels)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.full
def test_steps_of_a_torch_script_are_shown_in_their_parts(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LOADER)
    done = hosts.fairlead(
        "train", "--auto", tmp_path / "script.py", "-n", "2", "--timeline", tmp_path / "run.json",
        "--image", hosts.image("pytorch"), limit_s=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = read(tmp_path / "run.json")
    for rank in range(2):
        mine = of(events, rank=f"rank {rank} ({HOST})")
        steps = of(mine, row="steps", cat="step")
        assert [e["name"] for e in steps] == [f"step {n}" for n in range(10)]
        for step in steps[1:]:
            order = [e["name"] for e in traces.parts_of(step, mine) if e["name"] != "other"]
            assert order == [
                "input", "forward", "backward", "idle", "exposed communication", "update",
            ]  # fmt: skip
        assert len(of(mine, row="main", name="loss of my own")) == 10


@pytest.mark.full
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_trace_of_a_bundled_model_has_the_border_of_its_passes_by_either_backend(
    backend: str, tmp_path: Path
) -> None:
    few = DataSet(160, 24, per_shard=40, kind="cosmo", format="tfrecord")
    generate(few, tmp_path / "data", 2, EventLog(None))
    config = WorkerConfig(
        tmp_path / "data", tmp_path / "result.json", model="cosmoflow", backend=backend, batch=4, max_steps=8,
        events=tmp_path / "events.jsonl", checkpoints=tmp_path / "checkpoints", every_steps=3, epochs=1,
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(to_json(config)))
    options = hosts.keras_on_torch() if backend == "torch" else ()
    done = hosts.fairlead(
        "run", "-n", "2", *options, "-B", tmp_path, "--timeline", tmp_path / "run.json",
        hosts.image("pytorch" if backend == "torch" else "tensorflow"), "--",
        "python3", "-m", "fairlead.ml.train.worker", "--config", tmp_path / "config.json", limit_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = from_json(WorkerResult, json.loads((tmp_path / "result.json").read_text()))
    events = read(tmp_path / "run.json")
    traces.agrees(events, result.steps)
    forward = of(events, cat="phase", name="forward")
    assert len(forward) == 16
    assert {e["args"].get("border") for e in forward} == {
        None if backend == "torch" else "measured apart"
    }
    for steps in result.steps:
        assert all(v > 0 for part in (steps.forward_s, steps.backward_s) for v in part)
    written = of(events, row="checkpoints", name="write a checkpoint")
    assert [e["args"]["step"] for e in written] == [3, 6, 8]


def test_folder_that_is_not_there_is_said_and_the_run_goes_on(ranks: Ranks, tmp_path: Path) -> None:
    done = ranks(2, SLOW, TIMELINE="/proc/nowhere/run.json")
    assert done.returncode == 0
    assert f"rank 1 ({HOST}) records no timeline" in done.stderr


def _untouched(folder: Path) -> Path:
    victim = folder / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    return victim


def test_link_that_somebody_planted_is_replaced_and_not_followed(
    ranks: Ranks, tmp_path: Path
) -> None:
    """In the core's file and Python's, of each rank; one that starts later than rank 0 empties the folder, too."""
    victim, parts = _untouched(tmp_path), tmp_path / "run.json.parts"
    parts.mkdir()
    plant = "import os, pathlib\nfrom fairlead.comm import timeline\nkept = timeline._emptied\n" + (
        "def emptied(folder):\n"
        "    kept(folder)\n"
        "    for rank in range(2):\n"
        "        for end in ('ring', 'jsonl'):\n"
        f"            pathlib.Path(folder, f'rank-{{rank:06d}}.{{end}}').symlink_to({str(victim)!r})\n"
        "timeline._emptied = emptied\n"
    )
    done = ranks(2, plant + SLOW, TIMELINE=str(tmp_path / "run.json"))
    assert done.returncode == 0, done.stderr
    assert victim.read_text() == "precious"
    assert {event["pid"] for event in read(tmp_path / "run.json") if event["ph"] == "X"} == {1, 2}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("link", "Not a directory"),
        pytest.param("other", "the folder belongs to another user", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")),
    ],
)  # fmt: skip
def test_folder_that_is_a_link_or_of_another_user_is_not_written_to(
    kind: str, reason: str, ranks: Ranks, tmp_path: Path
) -> None:
    """By neither half: the core is in programs without Python, too."""
    place, parts = tmp_path / "elsewhere", tmp_path / "run.json.parts"
    place.mkdir()
    if kind == "link":
        parts.symlink_to(place)
    else:
        place = parts
        parts.mkdir(mode=0o777)
        os.chown(parts, 54321, 54321)
    done = ranks(2, SLOW, TIMELINE=str(tmp_path / "run.json"))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        lines = [
            line for line in done.stderr.splitlines() if f"rank {rank} ({HOST}) records" in line
        ]
        assert len(lines) == 2 and all(reason in line for line in lines), done.stderr
    assert list(place.iterdir()) == []


def test_words_of_a_failing_rank_are_not_kept_back_by_another_hook(ranks: Ranks) -> None:
    """torch.distributed puts a hook around ours that collects what ours says, to print it afterwards: there
    is no afterwards where MPI_Abort does not return."""
    program = """
import contextlib, io, sys
from fairlead import comm
ranks = comm.init()
inner = sys.excepthook
def outer(*what):
    with contextlib.redirect_stderr(io.StringIO()):
        inner(*what)
sys.excepthook = outer
if ranks.rank == 1:
    raise ValueError("bad batch")
ranks.barrier()
"""
    done = ranks(2, program)
    assert done.returncode != 0
    assert "ValueError: bad batch" in done.stderr
    assert "rank 1 of 2 failed; ending the others" in done.stderr


# --- NaN and infinities ---------------------------------------------------------------------------

ODD = """
import numpy as np
from fairlead import comm
from fairlead.base.errors import FairleadError
ranks = comm.init()
count, dtype, in_place, value, culprit, at, anything = {arguments}
team = ranks.team(2)
for step in range(4):
    arrays = [np.ones(3), np.ones((0, 4)), np.ones(count, dtype), np.ones(5)]
    if step >= 2 and ranks.rank == culprit:
        arrays[2][at] = value
    try:
        out = arrays if in_place else None
        team.aggregate(arrays, out, names=["a", "b", "conv/kernel", "d"], any_values=anything)
    except FairleadError as exc:
        print(f"{{step}} {{exc.findings[0].check}} {{exc.findings[0].what}}\\n", end="")
(mean,) = team.aggregate([np.full(70_000, ranks.rank)  * 1.0])  # the team is as good as before
assert (mean == (ranks.size - 1) / 2).all()
comm.finalize()
"""
CASES = {
    "little": (5, "float32", False, float("nan"), 1, 2, False),
    "in-place-another's-share": (500_000, "float32", True, float("inf"), 1, 3, False),
    "in-place-own-share": (500_000, "float64", True, float("nan"), 0, 3, False),
    "half": (500_000, "float16", False, float("-inf"), 2, 499_999, False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("backend", "node"),
    [("native", "0"), pytest.param("native", "1", marks=pytest.mark.full), ("mpi4py", "0")],
)
def test_rank_that_passes_nan_or_infinity_is_named_with_its_tensor(
    case: str, backend: str, node: str, ranks: Ranks
) -> None:
    arguments = list(CASES[case])
    if backend == "mpi4py" and case == "half":
        pytest.skip("the reference has no type for it")
    program = "from math import inf, nan\n" + ODD.format(arguments=arguments)
    _, _, _, value, culprit, at, _ = CASES[case]
    what = "NaN" if value != value else "-infinity" if value < 0 else "infinity"
    said = f"rank {culprit} ({HOST}) passed {what} as element {at} of tensor 2 (conv/kernel) to aggregate (mean), call 3 of team 0"
    settings = {"BACKEND": backend, "NODE_RANKS": node, "REPORT": "0"}
    done = ranks(3, program, **settings)
    assert done.returncode == 0, done.stderr
    once = "reported once per rank (FAIRLEAD_COMM_NONFINITE)"
    assert done.stderr == f"fairlead.comm: {said}; {once}\n" and not done.stdout
    done = ranks(3, program, NONFINITE="stop", **settings)
    assert done.returncode == 0, done.stderr
    again = f"3 comm-nonfinite {said}".replace("call 3", "call 4")
    assert sorted(done.stdout.splitlines()) == sorted([f"2 comm-nonfinite {said}", again] * 3)


@pytest.mark.parametrize("backend", ["native", "mpi4py"])
def test_infinities_that_are_to_be_expected_are_no_news(backend: str, ranks: Ranks) -> None:
    expected, plain = (
        ODD.format(arguments=(50_000, "float32", False, 1e39, 1, 7, any_)) for any_ in (True, False)
    )
    for program, settings in (
        (expected, {}),
        (expected, {"NONFINITE": "stop"}),
        (plain, {"NONFINITE": "ignore"}),
    ):
        done = ranks(2, program, BACKEND=backend, REPORT="0", **settings)
        assert (done.returncode, done.stdout) == (0, "") and "passed" not in done.stderr, (
            done.stderr
        )


def test_sum_that_overflows_though_no_rank_passed_infinity_is_distinguished(ranks: Ranks) -> None:
    done = ranks(
        2,
        ODD.format(arguments=(50_000, "float32", False, 3e38, 1, 7, False)).replace(
            "np.ones(count, dtype)", "np.full(count, 3e38, dtype)"
        ),
        REPORT="0",
        NONFINITE="stop",
    )
    assert (
        "the sum of element 0 of tensor 2 is infinity though no rank passed NaN or infinity"
        in done.stdout
    )


def test_ranks_that_are_configured_otherwise_of_nan_are_refused(ranks: Ranks) -> None:
    around = (
        'export FAIRLEAD_COMM_NONFINITE=$([ "$PMI_RANK" = 1 ] && echo stop || echo warn); exec "$@"'
    )
    done = ranks(2, SLOW, around, BACKEND="native")
    assert done.returncode != 0 and "were given different FAIRLEAD_COMM_NONFINITE" in done.stderr


@pytest.mark.full
def test_keras_names_the_variable_and_leaves_loss_scaling_alone_and_its_steps_are_shown(
    tmp_path: Path,
) -> None:
    shutil.copy(hosts.PROGRAMS / "odd_keras.py", tmp_path)
    done = hosts.fairlead(
        "run", "-n", "2", "-B", tmp_path, "--timeline", tmp_path / "run.json", hosts.image("tensorflow"), "--",
        "python3", tmp_path / "odd_keras.py", limit_s=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    output = [line for line in done.stderr.splitlines() if " passed " in line]
    # Rank 1; also rank 0, whose weights are not numbers any more in the next step. Their lines come in either order.
    (first,) = [line for line in output if "rank 1 " in line]
    assert re.search(
        r"rank 1 \(\S+\) passed (NaN|-?infinity) as element 0 of tensor 0 \(\S*head/kernel\)", first
    )
    assert all("rank 0 " in line for line in output if line != first) and len(output) <= 2, output
    assert done.stderr.index("rank 1: plain") < done.stderr.index(first)
    events = read(tmp_path / "run.json")
    for rank in range(2):
        mine = of(events, rank=f"rank {rank} ({HOST})")
        assert [e["name"] for e in of(mine, row="steps", cat="step")] == [
            f"step {n}" for n in range(6)
        ]
        assert {"init", "broadcast"} <= {e["name"] for e in of(mine, row="main")}
    assert "longest for rank" in done.stderr
