"""Variables that outlive their process."""

from __future__ import annotations

import json
import math
import stat
import threading
from pathlib import Path

from fairlead.notebook import variables
from fairlead.notebook.settings import write_private


def test_what_can_be_pickled_comes_back_and_the_rest_is_named(tmp_path: Path) -> None:
    names = {"x": [1, 2], "m": math, "lock": threading.Lock(), "_private": 1, "In": [], "given": 0}
    variables.save(tmp_path, "rank-0", names, hidden={"given"})
    told = json.loads((tmp_path / "rank-0.json").read_text())
    assert told["kept"] == ["m", "x"] and list(told["lost"]) == ["lock"]
    back: dict[str, object] = {}
    assert variables.restore(tmp_path / "rank-0.pickle", back) == ""
    assert back == {"x": [1, 2], "m": math}
    assert stat.S_IMODE((tmp_path / "rank-0.pickle").stat().st_mode) == 0o600


def test_only_what_was_named_is_saved(tmp_path: Path) -> None:
    variables.save_named(tmp_path, "kernel", {"x": 1})
    assert json.loads((tmp_path / "saved/kernel.json").read_text())["kept"] == []
    write_private(
        tmp_path / variables.NAMES,
        json.dumps({"names": ["x", "absent"], "folder": str(tmp_path / "to")}),
    )
    variables.save_named(tmp_path, "kernel", {"x": 1, "y": 2})
    back: dict[str, object] = {}
    variables.restore(tmp_path / "to/kernel.pickle", back)
    assert back == {"x": 1}


def test_nothing_to_restore_is_no_error(tmp_path: Path) -> None:
    assert variables.restore(tmp_path / "absent.pickle", {}) == ""
