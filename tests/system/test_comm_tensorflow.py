"""fairlead.comm.tensorflow on two ranks in the image: by its operation, and by numpy_function.

One launch a way, as in ``test_comm_fronts.py``: a program makes the promises one after the other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts

import fairlead
from fairlead import native
from fairlead.base.paths import cache_dir

ROUNDING = 3e-6
# Where an image has what was compiled for it.
FOLDER = "/usr/local/lib/fairlead"
WAYS = {
    "operation": (),
    "numpy": ("--env", "FAIRLEAD_COMM_TENSORFLOW_OP={broken}"),
    "mpi4py": ("--env", "FAIRLEAD_COMM_BACKEND=mpi4py"),
}
FILE = "libfairlead_tensorflow.so"
Seen = dict[str, list[Any]]
# Of this machine's environment, what a person has who does not know fairlead.
PLAIN = {k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD_", "PYTHON"))}


def _engine(
    image: Path, *words: str | Path, before: tuple[str | Path, ...] = (), bind: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A plain engine, without fairlead: ``apptainer exec``."""
    binds = ("--bind", bind) if bind else ()
    argv = [*before, hosts.apptainer(), "--quiet", "exec", "--userns", *binds, image, *words]
    return subprocess.run(
        argv, capture_output=True, text=True, env=PLAIN, timeout=120, stdin=subprocess.DEVNULL
    )


@pytest.fixture(
    scope="module",
    params=[
        "operation",
        pytest.param("numpy", marks=pytest.mark.full),
        pytest.param("mpi4py", marks=pytest.mark.full),
    ],
)
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("front")
    image = hosts.image("tensorflow")
    shutil.copy(hosts.PROGRAMS / "fronts_tensorflow.py", folder)
    broken = folder / FILE
    broken.write_text("no library")
    way = [word.format(broken=broken) for word in WAYS[request.param]]
    done = hosts.fairlead(
        "run", "-n", "2", "-B", folder, *way, image, "--",
        "python3", folder / "fronts_tensorflow.py", folder, limit_s=300,
    )  # fmt: skip
    seen: Seen = {"way": [request.param] * 2}
    for line in done.stdout.splitlines():
        if line.startswith('{"case"'):
            found = json.loads(line)
            seen.setdefault(found["case"], [None, None])[found["rank"]] = found["seen"]
    # The last case ends one rank before the other.
    assert "fewer_steps_on_one_rank" in seen, done.stderr
    return seen


def both(seen: Seen, case: str) -> Any:
    """What both ranks saw, if they saw the same."""
    assert case in seen, f"the program ended before {case}"
    mine, other = (_unnumbered(one) for one in seen[case])
    assert mine == other
    return mine


def _unnumbered(value: Any) -> Any:
    """TensorFlow numbers its functions, and a rank may have made more of them."""
    if isinstance(value, str):
        return re.sub(r"(_call)_\d+", r"\1", value)
    if isinstance(value, list):
        return [_unnumbered(one) for one in value]
    return value


def test_ranks_equal_one_process_with_the_whole_batch(front: Seen) -> None:
    found = both(front, "one_process_with_the_whole_batch")
    assert set(found) == {"eager", "compiled"}
    for name, (alike, distance, losses, moved, idle_is_none) in found.items():
        assert alike and idle_is_none, name
        assert distance < ROUNDING < 0.01 < moved, name
        assert losses < ROUNDING, name


def test_what_carries_the_tensors_is_reported(front: Seen) -> None:
    said, own, shipped, absent, none = both(front, "what_carries_them")
    expected = {
        "operation": rf"operation /opt/fairlead/run/{FILE}",
        "numpy": rf"numpy_function: .*/{FILE} cannot be loaded: .*",
        "mpi4py": r"numpy_function: mpi4py .* carries the gradients, and takes arrays",
    }
    assert re.fullmatch(expected[front["way"][0]], said)
    assert own == f"{FOLDER}/{FILE}"
    assert re.fullmatch(rf"/opt/python/.*/fairlead/native/lib/\w+/{FILE}", shipped)
    assert absent == "FAIRLEAD_COMM_TENSORFLOW_OP=/x/op.so is not a file"
    assert none == "FAIRLEAD_COMM_TENSORFLOW_OP=none"


def test_structures_dtypes_and_none_come_back(front: Seen) -> None:
    eager, graph = both(front, "structures_dtypes_and_none")
    assert eager == graph
    assert eager == [
        ["bfloat16", "[0.5, 0.5, 0.5]"],
        ["complex128", "[0.5j, (1+0j)]"],
        ["float32", "[]"],
        ["float16", "[0.5, 0.5, 0.5]"],
        ["float32", "[[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]"],
        None,
        ["float64", "1.5"],
        ["float32", "[[0.5, 0.5], [1.0, 1.0], [0.0, 0.0]]"],
        ["float32", "[[0.0, 4.5], [1.5, 6.0], [3.0, 7.5]]"],
    ]


def test_collectives_of_a_graph_run_in_their_order(front: Seen) -> None:
    first, total, double, last = both(front, "order_in_a_graph")
    assert first == [[i + 0.5] * (i + 1) for i in range(8)]
    assert total == sum(5 * (10 * k + 0.5) for k in range(5)) + 2 * 4 * 0.5
    assert double == sum(k + 0.5 for k in (0, 2, 4))
    assert last == {"a": ["float64", 0.5], "b": ["float32", 1.0]}


def test_teams_and_compression(front: Seen) -> None:
    assert both(front, "team_of_its_own") == [[0.5] * 3, 0.5]
    assert both(front, "compressed") == [1 + 2**-10, 1 + 2**-10]


def test_delayed_gradients_equal_their_recurrence(front: Seen) -> None:
    counts, alike, distance = both(front, "delayed_equals_its_recurrence")
    assert counts == [1, 1, 0, 1, 1, 1, 1, 1, 1]
    assert alike and distance < ROUNDING


def test_ranks_that_differ_are_named_with_the_variable(front: Seen) -> None:
    eager, graph, again = both(front, "other_shape_on_one_rank")
    named = r"rank 1.*(tensor|array) 1 \(bias\)"
    assert eager[0] == again[0] == "comm-signature" and re.search(named, eager[1])
    assert graph[0] == "UnknownError" and re.search(named, graph[1])
    assert "next:  make every rank call the same function with the same arrays" in graph[1]
    eager, graph = both(front, "none_on_one_rank")
    assert eager[0] == "comm-signature"
    # The reference says there what each of them has.
    reference = front["way"][0] == "mpi4py"
    why = "rank 0 has" if reference else "a collective needs the same arrays of every rank"
    assert why in graph[1]
    assert "next:  make every rank call the same function with the same arrays" in graph[1]


def test_what_cannot_be_averaged_is_refused(front: Seen) -> None:
    found = both(front, "refused")
    assert {name: one[0] for name, one in found.items()} == {
        "tape": "comm-not-broadcast", "integers": "comm-dtype", "text": "comm-dtype",
        "traced": "comm-traced", "root": "comm-root", "compiled": "comm-jit",
        "session": "comm-session",
    }  # fmt: skip
    assert "`hidden`" in found["tape"][1] or "`words`" in found["tape"][1]
    assert found["integers"][1] == "tensor 1 (n) cannot be averaged"
    assert found["text"][1] == "`text` is not a numeric variable"


def test_state_is_compared(front: Seen) -> None:
    before, after = both(front, "state")
    assert before == ["state-differs", "the ranks hold different state now"]
    assert after == ["state-differs", "the ranks hold different state after a change"]


def test_fewer_steps_on_one_rank_are_named(front: Seen) -> None:
    mine, other = front["fewer_steps_on_one_rank"]
    assert other is None
    assert "the ranks run different numbers of steps" in mine[1]


def test_core_and_operation_serve_a_plain_engine_and_end_by_ctrl_c(tmp_path: Path) -> None:
    """Under ``mpiexec`` and ``apptainer exec``, on the image's own MPI, while rank 1 keeps rank 0 waiting."""
    program = tmp_path / "tensorflow_interrupted.py"
    shutil.copy(hosts.PROGRAMS / program.name, program)
    mpiexec = (hosts.mpich() / "bin" / "mpiexec", "-n", "2")
    done = _engine(hosts.image("tensorflow"), "python3", program, before=mpiexec, bind=tmp_path)
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    seen = json.loads(line)
    assert seen["backend"] == "native (mpich)" and seen["library"].startswith(f"{FOLDER}/")
    assert seen["carrier"].startswith(f"operation {FOLDER}/")
    assert seen["eager"][0] == "KeyboardInterrupt" and seen["eager"][1] < 10
    assert seen["graph"][0] == "CancelledError" and seen["graph"][1] < 10
    assert "mpi4py carries" not in done.stderr


OTHERS = """
import tensorflow as tf
from fairlead import comm
from fairlead.comm import tensorflow as front
from fairlead.comm.frameworks.tensorflow_op import checked
ranks = comm.init()
@tf.function
def means(*tensors):
    return front.aggregate(list(tensors))
one, half = means(tf.constant([1.0 + ranks.rank, 2.0]), tf.cast(tf.fill((3,), ranks.rank), tf.bfloat16))
assert one.numpy().tolist() == [1.5, 2.0] and half.dtype == tf.bfloat16
assert half.numpy().astype(float).tolist() == [0.5] * 3
try:
    checked()(code=tf.constant(9), text=tf.constant("as asked"), tensors=[tf.ones(2)])
except tf.errors.FailedPreconditionError as exc:
    assert "as asked" in exc.message
passed, text = checked()(code=tf.constant(0), text=tf.constant(""), tensors=[tf.ones(2), tf.constant("s")])
assert text.numpy() == b"s" and passed.shape == (2,)
print(tf.__version__, front.carrier())
comm.finalize()
"""


@pytest.mark.full
@pytest.mark.parametrize("version", ["2.12.1", "2.16.2"])
def test_one_file_of_the_operation_serves_other_releases(version: str, tmp_path: Path) -> None:
    """TensorFlow as PyPI has it, in an environment of its own."""
    made = hosts.KEPT / f"tensorflow-{version}"
    if not (made / "done").exists():
        for words in (
            ("python3", "-m", "venv", made),
            (made / "bin/pip", "install", "-q", f"tensorflow-cpu=={version}", "mpi4py"),
        ):
            subprocess.run([str(w) for w in words], check=True, capture_output=True, timeout=560)
        (made / "done").touch()
    program = tmp_path / "others.py"
    program.write_text(OTHERS)
    native.ensure(native.CORE, cache_dir())
    operation = native.ensure(native.TENSORFLOW, cache_dir())
    mpich = hosts.mpich()
    env = {
        **PLAIN,
        "LD_LIBRARY_PATH": str(mpich / "lib"),
        "PYTHONPATH": str(Path(fairlead.__file__).parents[1]),
    }
    done = subprocess.run(
        [mpich / "bin/mpiexec", "-n", "2", made / "bin/python", program], env=env, capture_output=True, text=True,
        timeout=200, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stdout.count(f"{version} operation {operation}") == 2, done.stdout + done.stderr
