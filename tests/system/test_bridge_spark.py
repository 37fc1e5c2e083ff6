"""Real Spark in the image `analytics`, on a standalone cluster of two workers and by Spark Connect, against ranks in the
image `bridge`."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.system import hosts

from fairlead.bridge import connect

pytestmark = pytest.mark.full
INDEXED = 6000 * (100 + 1) * 8  # bytes of the matrix of bridge_spark_faults.py, with its index


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Iterator[Path]:
    state = tmp_path_factory.mktemp("state")
    env = {"XDG_STATE_HOME": str(state)}
    words = ("bridge", "serve", "-n", "2", "--background", "--name", "spark", "--keep", "1")
    done = hosts.fairlead(*words, hosts.image("bridge"), env=env, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    yield state / "fairlead/bridge/spark"
    hosts.fairlead("bridge", "stop", "spark", env=env)


def _ran(
    name: str, case: str, session: Path, *more: Path
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """A program in the image, and what it has found."""
    program = hosts.PROGRAMS / name
    binds = [
        word
        for path in (session, program.parent, *(m.parent for m in more))
        for word in ("--bind", path)
    ]
    words = ("run", "-n", "1", "--mpi", "container", *binds, hosts.image("analytics"), "--")
    env = {"SPARK_LOCAL_IP": "127.0.0.1"}
    done = hosts.fairlead(*words, "python3", program, case, session, *more, env=env, limit_s=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    return done, json.loads(lines[0].removeprefix("found ")) if lines else {}


@pytest.mark.parametrize("mode", ["standalone", "connect"])
def test_spark_sends_computes_and_fetches(session: Path, mode: str) -> None:
    done, found = _ran("bridge_spark.py", mode, session)
    assert done.returncode == 0 and found, done.stdout[-4000:] + done.stderr[-4000:]
    assert found["send"] and found["index"] and found["many"] and found["kmeans"]
    rows = [re.search(r": ([\d,]+) rows, ", text) for text in found["progress"]]
    assert any(match and 0 < int(match[1].replace(",", "")) < 3000 for match in rows), found[
        "progress"
    ]
    assert found["one"] and found["few"] and found["dealt"] and found["none"] == [0, 2]
    assert found["rows"] == [3000, [1500, 1500]]
    assert found["retried"] == [True, True]  # a task failed after it had sent something
    assert found["to_spark"] == [["row"], True]
    assert found["columns"] == ["float64", True]
    assert found["empty"] == [0, 2]
    assert found["nan"] == "row 1 of partition 0 holds NaN"
    assert found["nan_label"] == "row with k = b holds NaN"
    assert found["nan_far"] == "row 845 of partition 1 holds NaN"
    assert found["null"] == "row with k = 8 holds a null"
    assert found["null_label"] == "row 0 of partition 0 holds a null"
    assert "holds string, which is not numeric" in found["text"]
    assert found["ragged"] == "row 1 of partition 0 has 1 numbers, and the matrix 2 columns"
    assert found["vectors"] == [[1, 2, 3], [0, 5, 0]]
    assert found["sparse"] == [True, [3, 100_000], True]
    assert max(found["svd"], found["transform"]) < 1e-8 and found["pca"] < 1e-8
    assert found["rowmatrix"] == [3000, 40, 3000, [40, 3]]
    assert found["alchemist"] == [2, 3000, [5, 1], [40, 5]]


@pytest.mark.parametrize("case", ["speculation", "executor"])
def test_tasks_that_run_twice_leave_each_row_once(session: Path, case: str) -> None:
    done, found = _ran("bridge_spark_faults.py", case, session)
    assert done.returncode == 0 and found, done.stdout[-4000:] + done.stderr[-4000:]
    assert found == {
        "attempts": [True, True], "exact": True, "once": True, "rows": [6000, 6000], "used": INDEXED,
    }  # fmt: skip


def test_a_driver_that_vanishes_while_its_tasks_send_leaves_nothing(
    session: Path, tmp_path: Path
) -> None:
    done, found = _ran("bridge_spark_faults.py", "vanish", session, tmp_path / "sending")
    assert done.returncode != 0 and not found and (tmp_path / "sending").exists(), done.stdout
    with connect(session) as mpi:
        deadline = time.monotonic() + 60
        while any(rank["used"] for rank in mpi.status()["ranks"]):
            assert time.monotonic() < deadline, mpi.status()
            time.sleep(0.1)
        assert not mpi.matrices()
        array = np.arange(20.0).reshape(10, 2)
        assert (mpi.send(array).to_numpy() == array).all()
