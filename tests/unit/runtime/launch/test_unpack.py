"""What is unpacked in the cache stays while it is used, and no longer."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recorded import planned

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.engines.model import Engine, Takes
from fairlead.launch import unpack
from fairlead.swap.staging import KEPT_S

CH_RUN = Engine(
    "charliecloud", "/usr/bin/ch-run", True, (), (), takes=Takes.FOLDER, makes_places=False
)


def aged(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def folder(unpacked: Path, name: str, seconds: float) -> Path:
    """An image as a folder, with its record."""
    root = unpacked / name
    (root / "usr").mkdir(parents=True)
    record = unpacked / f"{name}.json"
    record.write_text(json.dumps(unpack._identity(root)))
    aged(record, seconds)
    return root


def squashfs(unpacked: Path, name: str, seconds: float) -> Path:
    """The squashfs of a SIF, as engines get it that open no SIF."""
    path = unpacked / f"{name}.squashfs"
    path.write_bytes(b"hsqs")
    aged(path, seconds)
    return path


def launch(cache: Path, opened: Path) -> None:
    """What every launch does with the image that it opens."""
    plan = replace(planned(), engine=CH_RUN, opened=str(opened))
    unpack.ensure(plan, cache, environ={})


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    (tmp_path / "unpacked").mkdir()
    return tmp_path / "unpacked"


def test_launch_removes_squashfs_files_and_folders_that_nothing_has_opened_for_long(
    unpacked: Path,
) -> None:
    used = folder(unpacked, "used", KEPT_S + 60)
    gone = [folder(unpacked, "a", KEPT_S + 60), squashfs(unpacked, "b", KEPT_S + 60)]
    stay = [folder(unpacked, "c", KEPT_S - 60), squashfs(unpacked, "d", KEPT_S - 60)]
    launch(unpacked.parent, used)
    assert [path.exists() for path in (*gone, *stay, used)] == [False] * 2 + [True] * 3
    assert not (unpacked / "a.json").exists() and (unpacked / "used.json").exists()


def test_launches_look_once_a_day(unpacked: Path) -> None:
    used = folder(unpacked, "used", 0)
    launch(unpacked.parent, used)
    old = squashfs(unpacked, "b", KEPT_S + 60)
    launch(unpacked.parent, used)
    assert old.exists()
    aged(unpacked / ".swept", 25 * 3600)
    launch(unpacked.parent, used)
    assert not old.exists()


def test_unpacked_image_that_others_could_have_laid_out_is_refused(unpacked: Path) -> None:
    used = folder(unpacked, "used", 0)
    unpacked.chmod(0o777)
    with pytest.raises(FairleadError) as caught:
        launch(unpacked.parent, used)
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED
    assert [finding.check for finding in caught.value.findings] == ["cache-exposed"]
