"""``fairlead bench collectives``: what is shown, and what is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.json_schema import mistakes, validates
from tools import json_schemas

from fairlead.base.serde import from_json, to_json
from fairlead.cli import bench
from fairlead.perf import bench as collectives
from fairlead.perf.bench import CollectivesBench, Machine
from fairlead.perf.records import documents

MACHINE = Machine("laptop", ("node",), 2, 0.5, {"MPI": "MPICH 5.0.2"})


def document() -> dict[str, Any]:
    """Of sweeps on two ranks."""

    def row(operation: str, through: str, seconds: float, wrong: int = 0) -> dict[str, Any]:
        return {
            "operation": operation, "through": through, "bytes": 4096, "ranks": [0, 1], "calls": 5,
            "seconds": [seconds * (1 + n / 100) for n in range(6)], "wrong": wrong,
        }  # fmt: skip

    rows = [row("allreduce", "comm", 1e-4, 3), row("pingpong", "mpi", 1e-6), row("allreduce", "mpi", 2e-4)]  # fmt: skip
    late = {"operation": "broadcast", "through": "comm", "bytes": 4096, "ranks": [0, 1]}
    return {"rows": rows, "skipped": [late], "wrong": 3, "hosts": ["node"] * 2, "crowded": False}


def messages() -> CollectivesBench:
    sweeps = document()
    return CollectivesBench(
        "2026-01-02T03:04:05+00:00", 3.0, "fairlead bench collectives", MACHINE, "mpi-base", 2, "native", False,
        collectives.rows(sweeps), collectives.skipped(sweeps), sweeps["wrong"],
    )  # fmt: skip


def test_rows_of_collectives_stand_next_to_plain_mpi() -> None:
    rows = messages().rows
    assert [(r.operation, r.through) for r in rows] == [
        ("pingpong", "mpi"), ("allreduce", "mpi"), ("allreduce", "comm"),
    ]  # fmt: skip
    own = rows[2]
    assert own.times == pytest.approx(0.5, rel=0.05) and own.times_low and own.times_high
    assert rows[0].times is None and rows[1].times is None
    text = bench.collectives_text(messages())
    assert "3 WRONG" in text and "no time for broadcast of 4096 B through comm" in text


@validates
def test_document_follows_its_published_schema() -> None:
    schema = json.loads(json_schemas.text("bench-collectives.schema.json"))
    written = json.loads(documents.text(messages(), collectives.SCHEMA, collectives.SCHEMA_VERSION))
    assert not mistakes(schema, written)
    values = {k: v for k, v in written.items() if k in to_json(messages())}
    assert from_json(CollectivesBench, values) == messages()
    written["knots"] = 1
    assert mistakes(schema, written)


def test_sizes_that_are_none_are_refused() -> None:
    done = CliRunner().invoke(bench.bench, ["collectives", "--sizes", "4,2"])
    assert done.exit_code != 0 and "not a list of sizes" in done.output
