"""Data sets of many small objects, with a real store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.support.object_stores import swift
from tests.system import hosts
from tests.system.hosts import fairlead

pytestmark = pytest.mark.full  # some minutes
_COUNT = 10_000


def digest(top: Path) -> str:
    """Of names and contents."""
    files = sorted(path for path in top.rglob("*") if path.is_file())
    assert len(files) == _COUNT
    text = "".join(f"{path.relative_to(top)} {path.read_text()}\n" for path in files)
    return hashlib.sha256(text.encode()).hexdigest()


def test_ten_thousand_objects_are_synced_both_ways_and_staged(tmp_path: Path) -> None:
    top = tmp_path / "set"
    for n in range(_COUNT):
        folder = top / f"{n % 100:02}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{n}").write_text(f"content {n}")
    wanted = digest(top)
    with swift() as store:
        store.make_bucket("lab")
        environ = store.environ() | {"XDG_STATE_HOME": str(tmp_path / "state")}

        def run(*words: str | Path) -> str:
            done = fairlead(*words, env=environ, limit_s=3000)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert f"copy to destination: {_COUNT};" in run("data", "sync", top, "s3://lab/set")
        assert f"the same: {_COUNT}" in run("data", "sync", top, "s3://lab/set")
        assert f"copy to destination: {_COUNT};" in run(
            "data", "sync", "s3://lab/set", tmp_path / "back"
        )
        assert digest(tmp_path / "back") == wanted
        (top / "00/0").write_text("changed")
        (top / "01/1").unlink()
        assert "copy to destination: 1, remove at destination: 1; " in run(
            "data", "sync", "--delete", top, "s3://lab/set"
        )
        (tmp_path / "stage").mkdir()
        code = "find $FAIRLEAD_STAGE/set -type f | wc -l; cat $FAIRLEAD_STAGE/set/00/0"
        staged = run(
            "run", "--stage-to", tmp_path / "stage", "--stage-in", "s3://lab/set", hosts.image(),
            "--", "sh", "-c", code,
        )  # fmt: skip
        assert staged.split() == [str(_COUNT - 1), "changed"]
