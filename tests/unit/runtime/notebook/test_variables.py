"""Variables that outlive their process."""

from __future__ import annotations

import json
import math
import stat
import threading
from pathlib import Path
from typing import Any

from fairlead.notebook import variables
from fairlead.notebook.settings import NAMES, write_private


def test_what_can_be_pickled_comes_back_and_the_rest_is_named(tmp_path: Path) -> None:
    names = {"x": [1, 2], "m": math, "lock": threading.Lock(), "_private": 1, "In": [], "given": 0}
    variables.save(tmp_path, "rank-0", names, hidden={"given"})
    reason = json.loads((tmp_path / "rank-0.json").read_text())
    assert reason["kept"] == ["m", "x"] and list(reason["lost"]) == ["lock"]
    back: dict[str, object] = {}
    assert variables.restore(tmp_path / "rank-0.pickle", back) == ""
    assert back == {"x": [1, 2], "m": math}
    assert stat.S_IMODE((tmp_path / "rank-0.pickle").stat().st_mode) == 0o600


def test_only_what_was_named_is_saved(tmp_path: Path) -> None:
    variables.save_named(tmp_path, "kernel", {"x": 1})
    assert json.loads((tmp_path / "saved/kernel.json").read_text())["kept"] == []
    write_private(
        tmp_path / NAMES,
        json.dumps({"names": ["x", "absent"], "folder": str(tmp_path / "to")}),
    )
    variables.save_named(tmp_path, "kernel", {"x": 1, "y": 2})
    back: dict[str, object] = {}
    variables.restore(tmp_path / "to/kernel.pickle", back)
    assert back == {"x": 1}


def test_nothing_to_restore_is_no_error(tmp_path: Path) -> None:
    assert variables.restore(tmp_path / "absent.pickle", {}) == ""


def test_variables_that_share_an_object_share_it_when_they_come_back(tmp_path: Path) -> None:
    """An optimizer with copies of its model's parameters would train nothing."""
    weights, alone = [1.0, 2.0], [1.0, 2.0]
    names = {
        "model": {"weights": weights}, "alone": alone, "lock": [threading.Lock(), weights],
        "optimizer": {"of": [weights]}, "again": alone,
    }  # fmt: skip
    variables.save(tmp_path, "rank-0", names)
    assert list(json.loads((tmp_path / "rank-0.json").read_text())["lost"]) == ["lock"]
    back: dict[str, Any] = {}
    assert variables.restore(tmp_path / "rank-0.pickle", back) == ""
    assert back["model"]["weights"] is back["optimizer"]["of"][0]
    assert back["alone"] is back["again"] is not back["model"]["weights"]


def test_object_of_several_variables_is_pickled_once(tmp_path: Path) -> None:
    """As large as a model may be, of which an optimizer and a list of checkpoints have the parameters."""
    cell = """
pickled = []
class Weights:
    def __init__(self): self.values = bytearray(1 << 20)
    def __getstate__(self): pickled.append(1); return self.__dict__
weights = Weights()
model, optimizer, kept = [weights], {"of": weights}, (weights, [weights.values])
"""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(cell, names)
    variables.save(tmp_path, "rank-0", names)
    assert names["pickled"] == [1]
    assert (tmp_path / "rank-0.pickle").stat().st_size < 1.5 * (1 << 20)
    back: dict[str, Any] = {}
    assert variables.restore(tmp_path / "rank-0.pickle", back) == ""
    first = back["model"][0]
    assert first is back["weights"] is back["optimizer"]["of"] is back["kept"][0]
    assert first.values is back["kept"][1][0]


def test_functions_of_cells_go_on_to_use_the_variables(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    cell = """
rate, seen = 1, []
def step():
    seen.append(rate)
    return [rate for _ in range(1)]
class Model:
    def step(self): return (lambda: rate)()
model = Model()
"""
    exec(cell, names)
    names["step"]()
    variables.save(tmp_path, "rank-0", names)
    back: dict[str, Any] = {"__name__": "__main__"}
    assert variables.restore(tmp_path / "rank-0.pickle", back) == ""
    back["rate"] = 2
    assert back["step"]() == [2] and back["model"].step() == 2
    assert back["seen"] == [1, 2] and isinstance(back["model"], back["Model"])
    assert names["rate"] == 1 and names["seen"] == [1]


def test_one_that_cannot_be_loaded_costs_those_that_share_with_it_and_no_other(
    tmp_path: Path,
) -> None:
    cell = """
class Gone:
    def __init__(self): self.of = shared
    def __reduce__(self): return broken, (1,), self.__dict__
def broken(value): raise OSError("its file is gone")
shared, other = [1], [2]
gone = Gone()
"""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(cell, names)
    variables.save(tmp_path, "rank-0", names)
    back: dict[str, Any] = {}
    reason = variables.restore(tmp_path / "rank-0.pickle", back)
    assert "gone" in reason and "its file is gone" in reason
    assert back["other"] == [2] and "gone" not in back


def test_one_that_shares_with_one_that_is_not_restored_is_named(tmp_path: Path) -> None:
    cell = """
class Broken:
    def __init__(self): self.of = [1]
    def __reduce__(self): return fails, (), self.__dict__
def fails(): raise OSError("its file is gone")
first = Broken()
second, third = [first.of], [3]
"""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(cell, names)
    variables.save(tmp_path, "rank-0", names)
    back: dict[str, Any] = {}
    reason = variables.restore(tmp_path / "rank-0.pickle", back)
    assert "second (UnpicklingError: it shares an object with first" in reason
    assert back["third"] == [3] and "second" not in back
