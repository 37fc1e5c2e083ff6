"""Whose disk is slow: the judgement over hosts, and one real file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from fairlead.base.serde import from_json, to_json
from fairlead.perf.measure import disks
from fairlead.perf.measure.disks import DiskTimes, find_disk
from fairlead.perf.measure.straggler_search import Answer, Kind


def host(number: int, write: float = 0.1, read: float = 0.05, folder: str = "/local") -> DiskTimes:
    """A host whose files take that long, and now and then longer."""
    seconds = {
        kind: tuple(s * times for times in (1.0, 1.3, 2.5 if number % 3 else 1.1))
        for kind, s in (("write", write), ("read", read))
    }
    return DiskTimes(folder, f"node{number}", number, seconds)


def broken(number: int, folder: str = "/local") -> DiskTimes:
    return DiskTimes(folder, f"node{number}", number, failed="No space left on device")


WELL = [host(number) for number in range(6)]


def test_hosts_alike_are_not_slow() -> None:
    outcome = find_disk(WELL)
    assert outcome.answer is Answer.NONE and "no disk of 6 hosts" in outcome.reason


@pytest.mark.parametrize(
    ("slow", "seen"), [(host(6, write=2.0), "writing"), (host(6, read=1.0), "reading")]
)
def test_slow_disk_is_named_with_its_numbers(slow: DiskTimes, seen: str) -> None:
    outcome = find_disk([*WELL, slow])
    (culprit,) = outcome.culprits
    assert (culprit.kind, culprit.names, culprit.ranks) == (Kind.DISK, ("node6",), (6,))
    assert f"{seen} a file in /local took" in culprit.evidence and culprit.times_slower > 10
    assert (
        "node6" in culprit.remedy
        and from_json(DiskTimes, json.loads(json.dumps(to_json(slow)))) == slow
    )


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(host(6, read=0.05 * 3.9), id="below the threshold"),
        pytest.param(DiskTimes("/local", "node6", 6, {"write": (0.1, 4.0, 4.0), "read": (0.05,) * 3}), id="quick once"),
    ],
)  # fmt: skip
def test_disk_that_is_slow_at_times_or_a_little_is_not_named(odd: DiskTimes) -> None:
    assert find_disk([*WELL, odd]).culprits == ()


def test_milliseconds_of_a_page_cache_are_no_slow_disk() -> None:
    quick = [host(number, 0.001, 0.0005) for number in range(4)]
    assert find_disk([*quick, host(4, 0.02, 0.01)]).culprits == ()


def test_each_folder_is_compared_with_itself() -> None:
    """A shared file system is slower than a disk, and that is no node's fault."""
    shared = [host(number, 3.0, 2.0, "/lustre") for number in range(6)]
    assert find_disk([*WELL, *shared]).answer is Answer.NONE
    outcome = find_disk([*WELL, *shared, host(6, 40.0, 2.0, "/lustre")])
    assert [c.names for c in outcome.culprits] == [("node6",)]
    assert "/lustre" in outcome.culprits[0].evidence


def test_host_that_cannot_write_is_known_where_others_can() -> None:
    assert disks.unwritable([*WELL, broken(6)]) == [broken(6)]
    assert disks.unwritable([broken(0), broken(1)]) == []
    outcome = find_disk([*WELL, broken(6)])
    assert outcome.answer is Answer.UNKNOWN
    assert "node6 cannot write /local: No space left on device" in outcome.reason
    assert find_disk([broken(0), broken(1)]).answer is Answer.UNKNOWN
    assert find_disk(WELL[:1]).answer is Answer.UNKNOWN


def test_file_is_timed_and_removed(tmp_path: Path) -> None:
    seconds = disks.timed(tmp_path, 3 << 20)
    assert set(seconds) == {"write", "read"} and min(seconds.values()) > 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No such file"):
        disks.timed(tmp_path / "gone", 1 << 20)


def test_all_files_together_stay_below_four_gigabytes() -> None:
    assert disks.size_for(2) == 8 << 20 and disks.size_for(1024) == 4 << 20
    assert disks.size_for(8192) == 1 << 20


def test_folder_is_of_the_job_on_that_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBFS", "/jobs/17")
    assert disks.folder_of("$JOBFS/data") == Path("/jobs/17/data")
    assert disks.folder_of("") == Path(tempfile.gettempdir())
