"""A machine as a file: what comes back is what went in, and anything else is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import recorded

from fairlead import __version__
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.detect import capture
from fairlead.detect.capture import Capture
from fairlead.detect.model import SiteFacts, StorageFact, SystemFact, Unknown

FACTS = SiteFacts(
    node="login1",
    uid=1000,
    system=SystemFact("Debian", "6.1", "x86_64", "2.36", "", "/etc/os-release"),
    storage=(StorageFact("memory", "/dev/shm", "tmpfs", 1, "/dev/shm"),),
    unknown=(Unknown("version of slurm", "`sinfo --version`: no end after 1.5 s"),),
)


def taken(**changes: object) -> Capture:
    output = {
        "node": "login1",
        "taken": "2026-01-31T12:00:00Z",
        "fairlead": __version__,
        "site": recorded.SITE,
        "reason": "detected",
        "engine": recorded.USER_ENGINE,
        "mpis": tuple(recorded.host(name) for name in recorded.HOSTS),
        "facts": FACTS,
    }
    return Capture(**{**output, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", [recorded.USER_ENGINE, recorded.ROOT_ENGINE, None])
def test_what_comes_back_is_what_went_in(tmp_path: Path, engine: object) -> None:
    path = tmp_path / "login1.json"
    capture.write(taken(engine=engine), path)
    assert capture.read(path) == taken(engine=engine)
    again = path.read_bytes()
    capture.write(capture.read(path), path)
    assert path.read_bytes() == again


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[1]", "did not write it"),
        ("{}", "did not write it"),
        (
            '{"schema": "fairlead/site-capture", "version": 1}',
            "its version is 1, this fairlead reads 2",
        ),
        ('{"schema": "fairlead/site-capture", "version": 3}', "its version is 3"),
        ('{"schema": "fairlead/site-capture", "version": 2}', "not a Capture"),
        ("[" * 100_000, "more than 64 values within each other"),
    ],
)
def test_file_of_another_kind_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(FairleadError, match="not a capture of a machine") as caught:
        capture.read(path)
    assert caught.value.code is ExitCode.USAGE and why in caught.value.findings[0].why


def test_file_that_is_not_there_or_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(FairleadError, match="not a capture of a machine"):
            capture.read(path)


@given(data=st.data())
def test_capture_with_something_else_in_it_is_refused_or_read(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Any value in the place of any other: an error of ours, never a traceback."""
    path = tmp_path / "c.json"
    capture.write(taken(mpis=(recorded.host(),)), path)
    document = json.loads(path.read_text())
    place = document
    for _ in range(data.draw(st.integers(1, 5))):
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        last, at = place, key
        if not isinstance(place[key], dict | list):
            break
        place = place[key]
    last[at] = data.draw(st.sampled_from([None, 7, "x", [], {}, [1, [2]], {"a": 1}, -1.5, True]))
    path.write_text(json.dumps(document))
    try:
        capture.read(path)
    except FairleadError as exc:
        assert exc.findings[0].check in ("site-capture",)


def test_mpi_is_chosen_among_those_that_were_captured() -> None:
    given = taken()
    assert (
        capture.mpi_below(given, Path(given.mpis[-1].prefix + "/"))[0].prefix
        == given.mpis[-1].prefix
    )
    with pytest.raises(
        FairleadError, match="the capture has no MPI with prefix /opt/none"
    ) as caught:
        capture.mpi_below(given, Path("/opt/none"))
    assert "--mpi /opt/none" in caught.value.findings[0].remedy


def test_machine_without_an_engine_refuses_every_plan() -> None:
    with pytest.raises(FairleadError, match="no container engine on login1") as caught:
        capture.engine_of(taken(engine=None))
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED
