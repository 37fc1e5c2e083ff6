"""Ping-pong, allreduce and broadcast on ranks of this machine: measured, checked, and ended in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.system import hosts

import fairlead
from fairlead.base.serde import to_json
from fairlead.perf.measure.ranks import messages as sweeps
from fairlead.perf.records.validation import Way, What

SIZES = (4, 4096, 1 << 20)


def swept(tmp_path: Path, ranks: int, env: dict[str, str] | None = None, **more: Any) -> Any:
    """The document of ranks that ran without a container."""
    out, config = tmp_path / "sweeps.json", tmp_path / "config.json"
    quick = {"sizes": SIZES, "repeats": 3, "sample_s": 0.002, "limit_s": 30}
    config.write_text(json.dumps(to_json(sweeps.Settings(out, **{**quick, **more}))))
    prefix = hosts.mpich()
    program = (sys.executable, "-m", "fairlead.perf.measure.ranks.messages", "--config", config)
    done = subprocess.run(
        [prefix / "bin/mpiexec", "-n", str(ranks), *program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(prefix / "lib"),
            "PYTHONPATH": str(Path(fairlead.__file__).parents[1]),
            **(env or {}),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


def test_every_operation_and_size_is_measured_and_right(tmp_path: Path) -> None:
    document = swept(tmp_path, 3, through=("mpi", "comm"), env={"FAIRLEAD_COMM_BACKEND": "mpi4py"})
    assert document["wrong"] == 0 and document["skipped"] == []
    found = {(row["operation"], row["through"], row["bytes"]) for row in document["rows"]}
    ways = [(name, way) for name in ("allreduce", "broadcast") for way in ("mpi", "comm")]
    assert found == {(*way, size) for way in (("pingpong", "mpi"), *ways) for size in SIZES}
    rows = sweeps.measurements(document, Way.NATIVE, "hydra")
    assert len({row.key for row in rows}) == len(rows) == 5 * len(SIZES)
    for row in rows:
        assert row.ranks == (2 if row.what is What.PINGPONG else 3) and row.nodes == 1
        assert len(row.samples) == 3 and all(0 < s < 10 for s in row.samples)
    # 256 times the bytes take longer, by whatever is between one and many.
    pings = {row.bytes: min(row.samples) for row in rows if row.what is What.PINGPONG}
    assert pings[1 << 20] > pings[4096]


def test_answer_that_comes_in_part_is_counted_and_its_rank_named(tmp_path: Path) -> None:
    library = hosts.preloaded("partial", tmp_path)
    document = swept(
        tmp_path, 2, {"LD_PRELOAD": str(library)}, sizes=(64, 8192), operations=("allreduce",)
    )
    small, large = document["rows"]
    assert small["wrong"] == 0 and large["wrong"] == document["wrong"] > 3
    named = document["wrong_answers"]
    assert named and len(named) <= document["wrong"]
    for one in named:
        assert (one["rank"], one["host"]) == (1, os.uname().nodename)
        assert (one["bytes"], one["position"], one["count"]) == (8192, 2047, 1)
        assert one["got"] != one["expected"]
    assert {one["repeat"] for one in named} >= {-3, -2, -1}
    assert [m.wrong for m in sweeps.measurements(document, Way.NATIVE)] == [0, large["wrong"]]


def test_sweep_that_has_no_time_ends_and_says_what_it_left_out(tmp_path: Path) -> None:
    begun = time.monotonic()
    document = swept(tmp_path, 2, repeats=10**6, limit_s=1)
    assert document["seconds"] < 10 and time.monotonic() - begun < 60
    done = {(row["operation"], row["bytes"]) for row in document["rows"]}
    left = {(row["operation"], row["bytes"]) for row in document["skipped"]}
    assert len(done) + len(left) == 3 * len(SIZES) and not done & left and done
