"""What a machine says of itself, and what its capture says of it where neither MPI nor engine is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts

from fairlead.base.errors import ExitCode


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This machine, with the MPIs of the tests."""
    path = tmp_path_factory.mktemp("captured") / "here.json"
    options = [word for p in (hosts.intel(), hosts.openmpi()) for word in ("--mpi", p)]
    done = hosts.fairlead("site", "capture", "-o", path, *options, "--json")
    assert done.returncode == 0, done.stderr
    assert hosts.answer(done)["bytes"] == path.stat().st_size < 4 << 20
    return path


def said(*words: str | Path, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    done = hosts.fairlead("preflight", *words, "--json", env=env)
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout)
    answer.pop("seconds", None)
    return done.returncode, answer


@pytest.mark.parametrize("mpi", ["mpich", "intel", "openmpi"])
def test_capture_answers_as_the_machine_does_where_nothing_of_it_is(
    captured: Path, tmp_path: Path, mpi: str
) -> None:
    image = hosts.image()
    prefix = {"mpich": hosts.mpich, "intel": hosts.intel, "openmpi": hosts.openmpi}[mpi]()
    bare = {"PATH": "/usr/bin:/bin", "XDG_DATA_HOME": str(tmp_path), "FAIRLEAD_MPI": ""}
    code, here = said(
        image, "--mpi", prefix, env=hosts.AS_ROOT
    )  # of a capture's user nothing is known
    offline_code, there = said(image, "--mpi", prefix, "--site", captured, env=bare)
    assert code == offline_code == (ExitCode.PREFLIGHT_REFUSED if mpi == "openmpi" else 0)
    assert there["site"]["reason"].startswith("captured on ")
    there["site"], here["site"] = "", ""
    assert there == here


def test_capture_holds_no_program_and_nothing_of_the_environment(captured: Path) -> None:
    text = captured.read_text()
    assert "\\u0000" not in text and "u007fELF" not in text and "\x7fELF" not in text
    output = json.loads(text)
    assert set(output) == {
        "schema", "version", "node", "taken", "fairlead", "site", "reason", "engine", "mpis", "facts", "here",
        "nccl",
    }  # fmt: skip


def test_nothing_is_launched_from_a_capture(captured: Path) -> None:
    for words in (
        ("run", "-n", "2", hosts.image(), "--", "true"),
        ("run", "--dry-run", hosts.image(), "--", "true"),
    ):
        done = hosts.fairlead(words[0], "--site", captured, *words[1:])
        assert done.returncode == ExitCode.USAGE and "error[site-capture]" in done.stderr
        assert "fairlead preflight IMAGE --site" in done.stderr


def test_capture_is_not_written_under_a_name_that_would_not_be_known(tmp_path: Path) -> None:
    done = hosts.fairlead("site", "capture", "-o", tmp_path / "here.toml")
    assert done.returncode == ExitCode.USAGE and "ends in .json" in done.stderr
    done = hosts.fairlead("site", "capture", "-o", tmp_path / "none" / "sub" / "here.json")
    assert done.returncode == 0, done.stderr  # its folder is made
