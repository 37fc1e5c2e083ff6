"""Real Spark in the image `analytics`, by two executors and by Spark Connect, against ranks in the image `bridge`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import hosts

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Iterator[Path]:
    state = tmp_path_factory.mktemp("state")
    env = {"XDG_STATE_HOME": str(state)}
    words = ("bridge", "serve", "-n", "2", "--background", "--name", "spark", hosts.image("bridge"))
    done = hosts.fairlead(*words, env=env, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    yield state / "fairlead/bridge/spark"
    hosts.fairlead("bridge", "stop", "spark", env=env)


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "connect"])
def test_spark_sends_computes_and_fetches(session: Path, master: str) -> None:
    program = hosts.PROGRAMS / "bridge_spark.py"
    words = (
        "run",
        "-n",
        "1",
        "--mpi",
        "container",
        "--bind",
        session,
        "--bind",
        program.parent,
        hosts.image("analytics"),
    )
    env = {"SPARK_LOCAL_IP": "127.0.0.1"} if "SPARK_LOCAL_IP" not in os.environ else {}
    done = hosts.fairlead(*words, "--", "python3", program, master, session, env=env, limit_s=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    assert done.returncode == 0 and lines, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads(lines[0].removeprefix("found "))
    assert found["send"] and found["index"] and found["many"] and found["kmeans"]
    assert found["rows"] == [3000, [1500, 1500]]
    assert found["retried"] == [True, True]  # a task failed after it had sent something
    assert found["to_spark"] == [["row"], True]
    assert found["columns"] == ["float64", True]
    assert found["empty"] == [0, 2]
    assert "holds NaN" in found["nan"] and "holds a null" in found["null"]
    assert (
        "holds string, which is no number" in found["text"]
        and "row 1 has 1 numbers" in found["ragged"]
    )
    assert found["vectors"] == [[1, 2, 3], [0, 5, 0]]
    assert max(found["svd"], found["transform"]) < 1e-8 and found["pca"] < 1e-8
    assert found["rowmatrix"] == [3000, 40, 3000, [40, 3]]
    assert found["alchemist"] == [2, 3000, [5, 1], [40, 5]]
