"""Folders of sessions: a name is replaced, and leads nowhere else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fairlead.base import session_folders
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.bridge.serve import Server, Wanted


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "", "a/b", "../data", "a b", "a\n", "/"])
def test_name_that_leads_elsewhere_is_none(name: str, tmp_path: Path) -> None:
    assert not session_folders.is_name(name)
    with pytest.raises(ValueError):
        session_folders.renewed(tmp_path, name)
    assert tmp_path.is_dir()


def test_session_called_like_a_folder_of_data_leaves_it_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "results.csv").write_text("1\n")
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for name in (str(data), "../../../data"):
        with pytest.raises(FairleadError) as caught, Server(Wanted(name=name), "image", environ):
            pass
        assert caught.value.code is ExitCode.USAGE and "not a name" in caught.value.findings[0].what
    assert (data / "results.csv").read_text() == "1\n"


def test_folder_is_new_and_private_and_old_ones_go(tmp_path: Path) -> None:
    folder = session_folders.renewed(tmp_path, "analysis-1")
    (folder / "ended.txt").write_text("stopped")
    assert not any(session_folders.renewed(tmp_path, "analysis-1").iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    for name, days in (("recent", 6), ("old", 8)):
        ended = session_folders.renewed(tmp_path, name) / "ended.txt"
        ended.touch()
        os.utime(ended, (time.time() - days * 86400,) * 2)
    session_folders.forget_old(tmp_path, "ended.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["analysis-1", "recent"]
