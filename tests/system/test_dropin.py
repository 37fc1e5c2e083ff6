"""Scripts written for the Cray plugin and for Horovod, unchanged, on two ranks in the real image."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.peers import horovod_parameters
from tests.system import hosts

import fairlead
from fairlead import native
from fairlead.base.paths import cache_dir

OLD = hosts.PROGRAMS / "old_scripts"
DROPIN = ("python3", "-m", "fairlead.comm.dropin")


def _ran(
    script: Path, folder: Path, *words: str | Path, recipe: str = "tensorflow"
) -> tuple[str, str]:
    """stdout and stderr of an old script on two ranks."""
    shutil.copy(script, folder)
    done = hosts.fairlead(
        "run", "-n", "2", "-B", folder, hosts.image(recipe), "--",
        *DROPIN, folder / script.name, *words, limit_s=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_session_with_the_hook_starts_and_stays_equal(tmp_path: Path) -> None:
    """Delayed from the second step; the initializers run once more within the session."""
    kept = tmp_path / "checkpoints"
    words = ("--sync-fraction", "0", "--steps", "16", "--rerun-initializer", "--checkpoints", kept)
    said, output = _ran(OLD / "hepcnn_session.py", tmp_path, *words)
    for rank in (0, 1):
        assert f"rank {rank}: begun at 0, 8 steps, different: 0" in said
        assert re.search(rf"fairlead: rank {rank}: waited [\d.]+ s in team 0, 8 calls", output)
    # Weights, Adam's moments, statistics of batch normalization and the step; at the start, and again
    # after the initializers.
    assert output.count("26 variables are rank 0's on every rank") == 2
    assert "16 steps of 2 rank(s) are 8 of each, 1 of them synchronous" in output
    assert output.count("gradients come one step late from here; at momentum 0.9") == 1
    assert output.count("has no mean yet, and gets zeros") == 1
    assert len(re.findall(r"training: lr 0.01, epoch 1, loss [\d.]+, twice [\d.]+", said)) == 2


@pytest.mark.full
def test_session_that_rank_0_restores_goes_on_from_there_on_all_ranks(tmp_path: Path) -> None:
    kept = tmp_path / "checkpoints"
    _ran(OLD / "hepcnn_session.py", tmp_path, "--steps", "12", "--checkpoints", kept)
    said, output = _ran(OLD / "hepcnn_session.py", tmp_path, "--steps", "8", "--checkpoints", kept)
    for rank in (0, 1):
        assert f"rank {rank}: begun at 6, 4 steps, different: 0" in said
    assert "gradients are synchronous throughout" in output


@pytest.mark.full
def test_two_networks_with_a_team_each_get_every_mean_once(tmp_path: Path) -> None:
    said, output = _ran(OLD / "gan_two_teams.py", tmp_path, "3")
    for rank in (0, 1):
        assert f"rank {rank}: different: 0, sums delivered: [True, True], zeros in step 3" in said
    for team in (0, 1):
        assert f"team {team}: of 10 steps of each rank, those from 3 to 8 get" in output
        assert re.search(rf"fairlead: rank 0: waited [\d.]+ s in team {team}, 10 calls", output)
    assert "model_size" not in output


@pytest.mark.full
def test_eager_tapes_end_with_equal_weights_in_each_precision(tmp_path: Path) -> None:
    said, output = _ran(OLD / "eager_tape.py", tmp_path)
    for rank in (0, 1):
        for name in ("float64", "float32", "float16", "bfloat16"):
            assert f"rank {rank}: {name}: different: 0, moved: True" in said
        assert f"rank {rank}: average [0.5, 1.0], None, [0.5, 0.5]" in said
    assert "model_size of 5242880, but the gradients have 4 elements; all of them" in output
    assert "transition_alg=16 is ignored" in output


def test_keras_script_for_horovod_ends_fit_with_equal_weights(tmp_path: Path) -> None:
    said, output = _ran(OLD / "horovod_keras.py", tmp_path)
    for rank in (0, 1):
        assert f"rank {rank}: fit: same: True, metrics True, rate True" in said
        assert f"rank {rank}: tape: same: True" in said
        values = "[0.5, 1.0] [1, 4] [3, 2] {'from': 1}"
        assert f"rank {rank}: {values} {rank} of 2, node 0 of 1" in said
    assert output.count("in place of Horovod") == 1


@pytest.mark.full
def test_torch_scripts_end_with_equal_parameters(tmp_path: Path) -> None:
    said, _ = _ran(OLD / "horovod_torch.py", tmp_path, recipe="pytorch")
    for rank in (0, 1):
        assert f"rank {rank}: horovod: different: 0" in said
        assert f"rank {rank}: plugin: different: 0" in said
        assert f"rank {rank}: [0.5] [3, 2]" in said


@pytest.mark.full  # the image
def test_weights_of_a_process_set_that_is_removed_are_not_compared_at_the_end(
    tmp_path: Path,
) -> None:
    """Those of all ranks are, by `shutdown` as well."""
    said, output = _ran(hosts.PROGRAMS / "dropin_removed_set.py", tmp_path, recipe="pytorch")
    assert said.split() == ["done", "done"]
    assert output.count("not compared at the end: their process set was removed") == 2
    assert output.count("weights are bit-identical on 2 ranks (2 arrays)") == 1


@pytest.mark.full
@pytest.mark.parametrize(("kind", "recipe"), [("torch", "pytorch"), ("tensorflow", "tensorflow")])
def test_gradients_go_back_through_collectives_by_the_rules_of_horovod(
    kind: str, recipe: str, tmp_path: Path
) -> None:
    said, _ = _ran(hosts.PROGRAMS / "dropin_gradients.py", tmp_path, kind, recipe=recipe)
    assert sorted(said.splitlines()) == ["rank 0: right", "rank 1: right"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "recipe"),
    [("torch", "pytorch"), ("tensorflow", "tensorflow"), ("tensorflow", "tensorflow:keras2")],
)
def test_states_normalization_and_partial_tapes_of_horovod(
    kind: str, recipe: str, tmp_path: Path
) -> None:
    said, _ = _ran(hosts.PROGRAMS / "dropin_parts.py", tmp_path, kind, recipe=recipe)
    assert sorted(said.splitlines()) == ["fine 0", "fine 1"]


WAYS = ("eager", "function", "session", "plugin session", "plugin eager", "torch")


@pytest.mark.full
@pytest.mark.parametrize("what", ["ok", "none", "odd"])
@pytest.mark.parametrize("way", WAYS)
def test_weights_that_differ_are_reported_at_the_second_step_and_at_the_end(
    way: str, what: str
) -> None:
    script = hosts.PROGRAMS / "dropin_weights.py"
    image = hosts.image("pytorch" if way == "torch" else "tensorflow")
    done = hosts.fairlead(
        "run", "-n", "2", "-B", script.parent, image, "--", *DROPIN, script, way, what, limit_s=120
    )
    both = "the ranks hold different state"
    expected = {
        "ok": "weights are bit-identical on 2 ranks",
        "none": f"{both} before the second step",
        "odd": f"{both} at the end of the training",
    }[what]
    if way == "plugin eager":  # it is given gradients, and never sees a weight
        unseen = "weights were not compared at the end"
        expected = {"none": "gradients of weights that were never broadcast"}.get(what, unseen)
    assert expected in done.stderr, done.stdout + done.stderr
    assert (done.returncode == 0) == (what == "ok" or expected.startswith("weights were"))
    ended = done.stdout.count("the script has come to its end")
    assert ended == (0 if what == "none" or (what == "odd" and "session" in way) else 2)


# Of ranks 0 and 1 step s has the gradients s and s + 2.
@pytest.mark.full
@pytest.mark.parametrize(
    ("warmup", "moves"),
    [("1.0", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), ("0.34", [1.0, 2.0, 0.0, 3.0, 4.0, 11.0])],
)
def test_first_torch_front_delays_what_its_warm_up_leaves(
    warmup: str, moves: list[float], tmp_path: Path
) -> None:
    said, output = _ran(OLD / "ml_comm_torch_delayed.py", tmp_path, warmup, recipe="pytorch")
    for rank in (0, 1):
        assert f"rank {rank}: different: 0, moves {moves}" in said
        assert re.search(rf"fairlead: rank {rank}: waited [\d.]+ s in team 0, 6 calls", output)


OF_TENSORFLOW = "horovod.tensorflow horovod.tensorflow.keras horovod.tensorflow.keras.callbacks"
OF_KERAS_3 = {
    "horovod.tensorflow.keras.broadcast_global_variables",
    "horovod.tensorflow.keras.callbacks.BestModelCheckpoint",
}


@pytest.mark.parametrize(
    ("recipe", "fronts", "absent"),
    [
        pytest.param("pytorch", "horovod.torch", set(), marks=pytest.mark.full),
        ("tensorflow", OF_TENSORFLOW, OF_KERAS_3),
        pytest.param(
            *("tensorflow:keras2", OF_TENSORFLOW),
            {"horovod.tensorflow.keras.callbacks.BestModelCheckpoint"},
            marks=pytest.mark.full,
        ),
    ],
)
def test_each_call_takes_the_parameters_that_horovods_takes(
    recipe: str, fronts: str, absent: set[str], tmp_path: Path
) -> None:
    """In their order, by name, and no others."""
    program = hosts.PROGRAMS / "dropin_parameters.py"
    for file in (program, horovod_parameters.RECORD):
        shutil.copy(file, tmp_path)
    done = hosts.fairlead(
        "run", "-n", "1", "-B", tmp_path, hosts.image(recipe), "--",
        "python3", tmp_path / program.name, tmp_path / horovod_parameters.RECORD.name, *fronts.split(), limit_s=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    unlike = json.loads(done.stdout[done.stdout.index("{") :])
    assert {*unlike} == absent, unlike
    assert all(words.startswith("fairlead's drop-in has no") for words in unlike.values())


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    said, _ = _ran(hosts.PROGRAMS / "dropin_cases.py", tmp_path_factory.mktemp("cases"))
    seen: dict[str, list[Any]] = {}
    for text in re.findall(r'\{"case".*?\}(?=\{|\n|$)', said):
        found = json.loads(text)
        seen.setdefault(found["case"], [None, None])[found["rank"]] = found["seen"]
    return seen


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # What an initializer undid is apart, and equal again after the next step.
        ("initializer_that_runs_again_within_training", [False, True]),
        ("head_that_is_not_rank_0", [2.0, 2.0]),
        ("variable_that_differs_after_the_broadcast", "odd, rank 1"),
        ("session_in_half_precision", [True, "float16", [0.625, 1.25]]),
        ("session_for_horovod", [True, [0.5, 1.5, 2.5, 3.5]]),
        ("session_with_one_thread", True),
        (
            "horovod_reductions",
            [[1, 7], pytest.approx([1.2]), [1.5], "float32", [0.5, [1.0]], [[0.5], [0.5]]],
        ),
        (
            "horovod_by_place",
            [
                *([3.0], [1.5], [3.0], [1.5], 1),
                "allreduce() got an unexpected keyword argument 'proces_set'",
            ],
        ),
        (
            "horovod_among_some_ranks",
            [True, True, "the process set of ranks [1] does not exist"],
        ),
        ("keras_callbacks_of_the_plugin", [True, True, 0.01]),
    ],
)
def test_promise_is_kept_on_both_ranks(
    cases: dict[str, list[Any]], case: str, expected: Any
) -> None:
    assert cases[case] == [expected, expected]


def test_what_is_not_offered_is_an_error_that_names_it(cases: dict[str, list[Any]]) -> None:
    for seen in cases["horovod_lacks"]:
        *absent, unknown, sets = seen
        assert [words.partition("`")[2] for words in absent] == [
            "horovod.runner`", "horovod.spark`", "horovod.PartialDistributedOptimizer`",
        ]  # fmt: skip
        assert sets == "the process set of ranks 1 does not exist"
        assert unknown == "the stand-in for horovod has no attribute 'nonsense'"


def _ranks(count: int, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A script of NumPy alone under the drop-in names, without a container."""
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(hosts.mpich() / "lib"),
        "PYTHONPATH": str(Path(fairlead.__file__).parents[1]),
        "FAIRLEAD_COMM_LIBRARY": str(native.ensure(native.CORE, cache_dir())),
        "PYTHONUNBUFFERED": "",
        **more,
    }
    line = [hosts.mpich() / "bin/mpiexec", "-n", str(count), sys.executable, "-m"]
    return subprocess.run(
        [*line, "fairlead.comm.dropin", *words],
        capture_output=True,
        text=True,
        env=environ,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("backend", ["native", "mpi4py"])
def test_arrays_go_through_every_call_on_three_ranks(tmp_path: Path, backend: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import numpy as np
import dl_comm
import ml_comm as mc
mc.init_mpi()
me, n = mc.get_rank(), mc.get_nranks()
mc.init(1, 2, 3, "tensorflow")
got, = mc.broadcast([np.array([me])], 2)
mc.config_team(0, 0, ksteps=-2, max_steps=6, verbosity=0, perf_freq=0)
sums = np.zeros((2, 3))
for step in range(6):
    mine = np.arange(3.0) + me + step
    sums += [mine, mc.gradients([mine], 0)[0]]
mc.average(sums)
half = mc.gradients([np.full(2, me, np.float16)], 1)[0]
counts = np.array([me, 2 * me])
mc.average(counts)
mc.barrier()
print(n, np.allclose(*sums), half.dtype, half.tolist(), counts.tolist(), got.tolist(), mc.check_buffers_match([sums]),
      mc.check_buffers_match([np.array([me])]), dl_comm.local_rank() == me, flush=True)
dl_comm.finalize()
""")
    done = _ranks(
        3, script, FAIRLEAD_COMM_BACKEND=backend, DL_COMM_DEFAULT_PREC_LEVEL="1", DL_COMM_USE_CRCCL="1"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = "3 True float16 [1.0, 1.0] [1, 2] [2] 0 1 True"
    assert done.stdout.splitlines() == [expected] * 3
    assert "set, and without meaning here: DL_COMM_USE_CRCCL" in done.stderr
    assert "those from 0 to 3 get their gradients one step late" in done.stderr


@pytest.mark.parametrize("backend", ["native", "mpi4py"])
def test_sums_are_exact_and_other_dtypes_are_refused_on_three_ranks(
    tmp_path: Path, backend: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import numpy as np
from fairlead import comm
from fairlead.comm.dropin import hvd
hvd.init()
me = hvd.rank()
print(hvd.allreduce(np.array([2**60 + 1 if me == 0 else 0]), op=hvd.Sum).tolist())
for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
    limits = np.iinfo(dtype)
    whole = hvd.allreduce(np.array(limits.max, dtype), op=hvd.Sum)
    assert int(whole) == (3 * limits.max - limits.min) % 2**limits.bits + limits.min, (dtype, whole)
    assert hvd.allreduce(np.array([7 - me, 0], dtype)).tolist() == [6, 0], dtype
halves = np.array([me], np.float16)
print([a.tolist() for a in comm.init().sum([np.array([0.5, me]), halves, np.array(-me)])])
for mine, other in (("i4", "i2"), ("f4", "f8"), ("f4", "i8"), ("i8", "u8")):
    for call in (hvd.allreduce, hvd.allgather):
        try:
            call(np.ones(2, other if me == 1 else mine))
        except Exception as exc:
            assert exc.findings[0].check == "comm-signature", exc
            print(exc.findings[0].where, exc.findings[0].why, flush=True)
hvd.shutdown()
""")
    done = _ranks(3, script, FAIRLEAD_COMM_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    pairs = [("int32", "int16"), ("float32", "float64"), ("float32", "int64"), ("int64", "uint64")]
    refused = [
        f"rank 1, array 0 rank 0 has {mine} {shape}, rank 1 has {other} {shape}"
        for mine, other in pairs
        for shape in ("(2,)", "()")
    ]
    once = [f"[{2**60 + 1}]", "[[1.5, 3.0], [3.0], -3]", *refused]
    assert sorted(done.stdout.splitlines()) == sorted(3 * once)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", ["native", "mpi4py"])
def test_collectives_of_horovod_against_numpy(backend: str, ranks: int) -> None:
    """On real MPI: each kind, in process sets as well, in another order on each rank, with uneven rows and join."""
    if ranks == 1 and backend == "native":
        pytest.skip("one rank needs no core")
    script = hosts.PROGRAMS / "dropin_collectives.py"
    done = _ranks(ranks, script, FAIRLEAD_COMM_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"rank {r}: right" for r in range(ranks))


@pytest.mark.parametrize("backend", ["native", "mpi4py"])
@pytest.mark.parametrize("level", ["", "serialized"])
def test_program_that_keeps_mpi4py_from_starting_mpi_trains(
    tmp_path: Path, backend: str, level: str
) -> None:
    """As Horovod's documentation advises; and MPI ends with the program, which cannot start it again."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import mpi4py
mpi4py.rc.initialize = False
mpi4py.rc.thread_level = "{level}" or mpi4py.rc.thread_level
import sys
import numpy as np
from fairlead.comm.dropin import hvd
hvd.init()
print(hvd.allreduce(np.ones(1), op=hvd.Sum).tolist(), flush=True)
if "again" in sys.argv:
    hvd.shutdown()
    hvd.init()
""")
    done = _ranks(2, script, FAIRLEAD_COMM_BACKEND=backend)
    assert (done.returncode, done.stdout) == (0, "[2.0]\n" * 2), done.stderr
    done = _ranks(2, script, "again", FAIRLEAD_COMM_BACKEND=backend)
    assert done.returncode == 1 and "MPI can start only once per process" in done.stderr
    assert "Attempting to use an MPI routine" not in done.stderr


@pytest.mark.parametrize("way", ["exit", "exit of a training", "raise"])
def test_rank_that_ends_early_is_named_to_those_that_wait(tmp_path: Path, way: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys
import numpy as np
from fairlead.comm.dropin import hvd
from fairlead.comm.frameworks import common
hvd.init()
hvd.allreduce(np.ones(1))
if "{way}" == "exit of a training":
    common.end_together()
if hvd.rank() == 1 and "{way}" != "raise":
    sys.exit(0)
if hvd.rank() == 1:
    raise RuntimeError("out of data")
try:
    hvd.allreduce(np.ones(1), name="loss")
except hvd.HorovodInternalError as exc:
    print(exc, flush=True)
    sys.exit(3)
""")
    done = _ranks(3, script)
    assert done.returncode != 0
    if way == "raise":
        assert "out of data" in done.stderr
    else:
        assert done.stdout.count("rank 1 (") == 2
        assert (
            done.stdout.count("has ended; other ranks wait for it in allreduce(Average) `loss`")
            == 2
        )


def test_check_on_rank_0_alone_ends_and_names_the_absent(tmp_path: Path) -> None:
    """A validation on rank 0 only, as some scripts have it."""
    script = tmp_path / "script.py"
    script.write_text("""
import numpy as np
import ml_comm as mc
mc.init(1, 1, 3, "tensorflow")
if mc.get_rank() == 0:
    mc.check_buffers_match([np.ones(3)], 1)
mc.gradients([np.ones(3)], 0)
mc.finalize()
""")
    done = _ranks(2, script, FAIRLEAD_COMM_STALL_S="1", FAIRLEAD_COMM_TIMEOUT_S="2")
    assert done.returncode != 0
    said = r"rank 1 \(\S+\) waits in call 1 of team 0 of the plugin while rank 0 \(\S+\) waits in gather"
    assert re.search(said, done.stderr), done.stderr


def test_script_that_does_not_finalize_ends_all_the_same(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import numpy as np
import ml_comm as mc
mc.init(1, 1, 2, "tensorflow")
mc.config_team(0, 0, 1, 100, 2, 50)
mc.check_buffers_match([np.ones(2)])  # of a common seed
for _ in range(3):
    mc.gradients([np.ones(2)], 0)
""")
    done = _ranks(2, script)
    assert done.returncode == 0, done.stderr
    assert "the program ended after 3 of 100 steps" in done.stderr
    assert re.search(r"rank 1: waited [\d.]+ s in team 0, 3 calls", done.stderr)


@pytest.mark.full
def test_each_line_of_the_page_fails_as_keras_2_and_works_as_keras_3() -> None:
    page = (hosts.ROOT / "docs/howto/old-scripts.md").read_text()
    table = page.partition("| Keras 2 | Keras 3 |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    old, new = ([re.findall(r"`([^`]*)`", row[side]) for row in rows] for side in (0, 1))
    assert len(rows) > 25
    # what is not a line of its own names a class or a method
    no_lines = ("PyDataset", "workers=2", "set_weights", "keras.Model", "serve")
    lines = [line for cell in (*old, *new) for line in cell if line not in no_lines]
    script = hosts.PROGRAMS / "keras_changes.py"
    image = hosts.image("tensorflow")
    done = hosts.fairlead(
        "run", "-B", script.parent, image, "--", "python3", script, json.dumps(lines), limit_s=200
    )
    assert done.returncode == 0, done.stderr
    came_of = dict(zip(lines, json.loads(done.stdout.splitlines()[-1]), strict=True))
    works = [line for cell in old for line in cell if not came_of[line]]
    fails = [f"{line}: {came_of[line]}" for cell in new for line in cell if came_of.get(line)]
    assert (works, fails) == ([], [])
