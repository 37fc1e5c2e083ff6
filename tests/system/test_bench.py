"""``fairlead bench`` for real: messages in an image."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.json_schema import mistakes
from tests.system import hosts


def test_messages_are_measured_in_an_image_and_every_answer_is_right(tmp_path: Path) -> None:
    words = ("-n", "2", "--sizes", "4,65536", "--repeats", "5", "-o", tmp_path)
    done = hosts.fairlead("bench", "collectives", hosts.image(), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "bench-collectives.json").read_text())
    schema = hosts.ROOT / "docs/reference/bench-collectives.schema.json"
    assert mistakes(json.loads(schema.read_text()), document) == []
    assert document["wrong"] == 0 and document["skipped"] == []
    points = {(r["operation"], r["through"], r["bytes"]) for r in document["rows"]}
    ways = [("pingpong", "mpi"), *((o, w) for o in ("allreduce", "broadcast") for w in ("mpi", "comm"))]  # fmt: skip
    assert points == {(*way, size) for way in ways for size in (4, 65536)}
    assert all(len(row["seconds"]) == 5 for row in document["rows"])
    assert [row["times"] is None for row in document["rows"]] == [
        row["through"] == "mpi" for row in document["rows"]
    ]
    assert len(re.findall(r"^(?:pingpong|allreduce|broadcast), .* right$", done.stdout, re.M)) == 6
