"""The report of ``fairlead run``: from the records of a launch, however it ended."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.recorded import image, planned, proved

from fairlead.base import comm_waits
from fairlead.base.comm_waits import TeamWaits
from fairlead.base.errors import FairleadError, fail
from fairlead.cli.run_report import RunReport
from fairlead.image.open import Image
from fairlead.launch.launch import CommandLine
from fairlead.session.model import Prepared
from fairlead.swap.model import Plan

COMMAND = ("python3", "train.py")
LINE = CommandLine(("mpiexec", "-n", "2", *COMMAND), {})
WAITS = (TeamWaits("without a team", 9, 4_000_000, (0.5, 0.01)),)


def prepared(plan: Plan) -> Prepared:
    found = Image("x", "/images/x.sif", "sif", 1, "ab", False, image())
    return Prepared(found, plan, (), "named", cast("Any", None))


@pytest.fixture
def plan() -> Plan:
    return planned()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run's, as ranks leave it: 0 ends after 2 s, 1 by SIGKILL after 3."""
    made = tmp_path / "run"
    made.mkdir()
    for name, text, at in (("begun", "", 100), ("exit.0", "0\n", 102), ("exit.1", "137\n", 103)):
        (made / name).write_text(text)
        os.utime(made / name, (at, at))
    return made


def written(output: Path) -> dict[str, Any]:
    assert (output / "report.html").read_text().startswith("<!doctype html>")
    value: dict[str, Any] = json.loads((output / "report.json").read_text())
    return value


def test_report_has_each_ranks_end_host_time_and_log(
    plan: Plan, folder: Path, tmp_path: Path
) -> None:
    plan = replace(plan, request=replace(plan.request, output_dir="/logs", ranks=3))
    comm_waits.write(folder, WAITS)
    (folder / "exit.2").touch()
    report = RunReport(tmp_path / "a/b", prepared(plan), COMMAND, ("fairlead run x",))
    report.started(LINE, folder)
    report.proved(proved(plan))
    report.write(137, [])
    run = written(tmp_path / "a/b")["run"]
    rows = [(e["rank"], e["code"], e["how"], e["seconds"], e["log"]) for e in run["ends"]]
    assert rows == [
        ("0", 0, "exit code 0", 2.0, "/logs/rank.0.log"),
        ("1", 137, "killed by SIGKILL", 3.0, "/logs/rank.1.log"),
        ("2", None, "was ended with the others", None, "/logs/rank.2.log"),
    ]
    assert run["ends"][0]["host"] == proved(plan).ranks[0].host
    assert run["command"] == "python3 train.py" and run["line"] == "mpiexec -n 2 python3 train.py"
    assert run["waits"][0]["wait_s"] == [0.5, 0.01]


def test_failure_writes_the_report_and_goes_on(plan: Plan, folder: Path, tmp_path: Path) -> None:
    report = RunReport(tmp_path, prepared(plan), COMMAND, ())
    with pytest.raises(FairleadError) as caught, report.of_failures():
        report.started(LINE, folder)
        raise fail("launch", signal_name="exit code 7")
    document = written(tmp_path)
    assert document["run"]["exit_code"] == caught.value.code
    assert document["verdict"]["word"] == "error" and document["run"]["ends"]
    assert document["proof"] == [] and document["findings"][0]["check"] == "launch"


def test_interruption_writes_the_report_and_goes_on(plan: Plan, tmp_path: Path) -> None:
    report = RunReport(tmp_path, prepared(plan), COMMAND, ())
    with pytest.raises(KeyboardInterrupt), report.of_failures():
        raise KeyboardInterrupt
    document = written(tmp_path)
    assert document["run"]["exit_code"] == 130 and document["run"]["line"] == ""
    assert document["findings"][0]["check"] == "run-interrupted"


def test_folder_that_cannot_be_made_is_refused_before_any_work(plan: Plan) -> None:
    with pytest.raises(FairleadError) as caught:
        RunReport(Path("/dev/null/x"), prepared(plan), COMMAND, ())
    assert caught.value.findings[0].check == "output-unwritable"


def test_waits_come_back(tmp_path: Path) -> None:
    comm_waits.write(tmp_path, WAITS)
    assert comm_waits.read(tmp_path) == WAITS


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text('[{"team": 1}]'),
        lambda path: path.write_text("null"),
        lambda path: path.write_text('[{"team": "a", "calls": 1, "bytes": 1, "wait_s": [1e999]}]'),
        lambda path: path.write_bytes(b"\xff\xfe"),
        _fifo,
        _link,
        Path.mkdir,
        lambda path: None,
    ],
)
def test_waits_that_a_rank_has_made_up_count_as_none(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "waits.json")
    assert comm_waits.read(tmp_path) == ()
