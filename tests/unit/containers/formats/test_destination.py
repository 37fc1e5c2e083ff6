"""An image that cannot get its name is refused before it is made."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairlead.base.errors import FairleadError
from fairlead_build import build as builds
from fairlead_build.cache.store import Cache
from fairlead_build.formats.images import check_target


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("/proc/image.sif", "nothing in /dev or /proc"),
        ("/dev/full", "nothing in /dev or /proc"),
        ("FILE/image.sif", "Not a directory"),
        ("FILE/more/image.sif", "Not a directory"),
        ("FULL/image.sif", "No space left"),
    ],
)
def test_build_whose_output_cannot_be_written_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, words: str
) -> None:
    (tmp_path / "FILE").touch()
    usage = shutil.disk_usage

    def full(folder: object) -> object:
        return SimpleNamespace(free=0) if "FULL" in str(folder) else usage(str(folder))

    (tmp_path / "FULL").mkdir()
    monkeypatch.setattr(shutil, "disk_usage", full)
    monkeypatch.setattr(builds, "own_wheel", lambda cache: b"")
    monkeypatch.setattr(builds, "_make", lambda job: pytest.fail("it was built"))
    with pytest.raises(FairleadError) as caught:
        builds.build("mpi-base", cache=Cache(tmp_path / "cache"), output=tmp_path / output)
    (finding,) = caught.value.findings
    assert finding.check == "output-unwritable" and words in finding.why
    assert "-o" in finding.remedy


def test_target_in_folders_that_can_be_made_is_allowed_and_leaves_nothing(tmp_path: Path) -> None:
    check_target(tmp_path / "a" / "b" / "image.sif", 1)
    assert not list(tmp_path.iterdir())
