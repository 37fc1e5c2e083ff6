"""``fairlead images``: what there is in a cache as the builder leaves it, and what removing it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.base.errors import FairleadError
from fairlead.cli.main import main
from fairlead.image import stored

DAY = 86400


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``one`` and ``one:variant`` built, of ``one`` also the image before; a pulled one; all used 40 days ago."""
    root = tmp_path / "fairlead"
    for name in ("images/by-name", "images/pulled/by-reference", "trees", "unpacked", "locks"):
        (root / name).mkdir(parents=True)
    for key in ("new", "old", "variant", "pulled/p"):
        (root / f"images/{key}.sif").write_bytes(b"x" * 1000)
    (root / "images/new.sif.sig").write_bytes(b"x")
    (root / "images/new.sandbox/sub").mkdir(parents=True)
    (root / "images/new.sandbox/sub/file").write_bytes(b"x" * 500)
    (root / "images/new.sandbox/sub").chmod(0o555)
    for tree in ("t1", "t2"):
        (root / f"trees/{tree}.squashfs").write_bytes(b"x" * 100)
        (root / f"trees/{tree}.json").write_bytes(b"{}")
    entry = {
        "key": "new",
        "tree": "t1",
        "squashfs_sha256": "d1",
        "before": {"key": "old", "tree": "t2"},
    }
    (root / "images/by-name/one.json").write_text(json.dumps(entry))
    entry = {"key": "variant", "tree": "t2", "squashfs_sha256": "d2", "before": None}
    (root / "images/by-name/one:variant.json").write_text(json.dumps(entry))
    pulled = {"reference": "docker://x/y:1", "path": "/elsewhere/p.sif"}
    (root / "images/pulled/by-reference/r.json").write_text(json.dumps(pulled))
    (root / "unpacked/d1.squashfs").write_bytes(b"x" * 10)
    for path in root.rglob("*"):
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return root


def run(*words: str) -> tuple[int, dict]:
    done = CliRunner().invoke(main, ["images", *words, "--json"])
    if isinstance(done.exception, FairleadError):
        return done.exception.code, {"findings": done.exception.findings}
    return done.exit_code, json.loads(done.stdout)


def left(cache: Path) -> set[str]:
    return {
        str(p.relative_to(cache))
        for p in cache.rglob("*")
        if p.is_file() and p.parent.name != "locks"
    }


def test_list_has_every_image_once_with_all_that_it_takes(cache: Path) -> None:
    code, shown = run("list")
    assert code == 0
    rows = {(tuple(i["names"]), i["kind"]): i["bytes"] for i in shown["images"]}
    assert rows == {
        (("one",), "built"): 1000 + 1 + 500 + 102,
        (("one:variant",), "built"): 1000,  # its tree is that of the image before `one` too
        ((), "previous"): 1000,
        (("docker://x/y:1",), "pulled"): 1000,
    }
    (laid_out,) = shown["unpacked"]
    assert (laid_out["digest"], laid_out["bytes"]) == ("d1", 10)
    assert shown["bytes"] == sum(rows.values()) + 10
    text = CliRunner().invoke(main, ["images", "list"]).output
    assert next(line.split()[-1] for line in text.splitlines() if "unpacked" in line) == "one"
    assert "one:variant" in text and "docker://x/y:1" in text


def test_remove_takes_every_format_and_no_more(cache: Path) -> None:
    before = left(cache)
    assert run("remove", "one", "--dry-run")[1]["dry_run"] and left(cache) == before
    assert run("remove", "one")[0] == 0
    gone = before - left(cache)
    assert gone == {
        "images/by-name/one.json", "images/new.sif", "images/new.sif.sig", "images/new.sandbox/sub/file",
        "trees/t1.json", "trees/t1.squashfs", "unpacked/d1.squashfs",
    }  # fmt: skip
    code, refused = run("remove", "one")
    assert code == 2 and "no image `one`" in refused["findings"][0].what


def test_prune_keeps_the_newest_of_each_recipe_and_what_was_used(cache: Path) -> None:
    before = left(cache)
    os.utime(cache / "images/pulled/p.sif")
    assert run("prune")[0] == 0
    assert before - left(cache) == {"images/old.sif", "unpacked/d1.squashfs"}
    assert run("prune", "--unused", "0")[0] == 0
    assert {"images/new.sif", "images/variant.sif"} <= left(cache)
    assert not list((cache / "images/pulled").glob("*.sif"))
    assert not list((cache / "images/pulled/by-reference").iterdir())


@pytest.fixture
def reader(cache: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has an image open, as a mount has."""
    with (cache / "images/old.sif").open("rb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], stdin=stream
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_image_that_a_process_uses_stays(cache: Path, reader: subprocess.Popen[bytes]) -> None:
    path = cache / "images/old.sif"
    assert stored.users([path]) == (reader.pid,)
    code, refused = run("remove", str(path))
    assert code == 1 and str(reader.pid) in refused["findings"][0].why
    assert run("remove", str(path), "--dry-run") == (code, refused)
    assert run("prune")[0] == 0 and path.exists()
    reader.kill()
    reader.wait()
    assert run("prune")[0] == 0 and not path.exists()


def test_command_that_shows_the_users_of_an_image_works(
    cache: Path, reader: subprocess.Popen[bytes]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        stdin=(cache / "images/old.sif").open("rb"),
    ) as second:
        _, refused = run("remove", "old.sif")
        second.kill()
    command = refused["findings"][0].remedy.split("`")[1]
    assert subprocess.run(command.split(), stdout=subprocess.DEVNULL).returncode == 0


def test_user_whose_other_files_come_and_go_is_seen(cache: Path) -> None:
    """A descriptor that closes between the folder's listing and its reading."""
    path = cache / "images/old.sif"
    churn = "import os\nwhile True:\n fd = os.open('/dev/null', 0)\n os.close(fd)"
    with path.open("rb") as stream:
        process = subprocess.Popen([sys.executable, "-c", churn], stdin=stream)
    try:
        assert all(stored.users([path]) == (process.pid,) for _ in range(100))
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("text", ["--bind={}:/x", "Apptainer runtime parent: {.name}"])
def test_image_that_a_command_line_names_stays(cache: Path, text: str) -> None:
    """An engine that has opened it for its own process or as root, and those that wait for it."""
    # Its name alone is looked for: other tests remove an old.sif of theirs meanwhile.
    path = (cache / "images/old.sif").rename(cache / "images/named.sif")
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", text.format(path)]
    )
    try:
        while not stored.users([path]):
            time.sleep(0.01)
        assert run("remove", "named.sif")[0] == 1
    finally:
        process.kill()
        process.wait()
    assert run("remove", "named.sif")[0] == 0


def test_records_that_are_none_hide_nothing(cache: Path) -> None:
    (cache / "images/by-name/one.json").write_text("[")
    (cache / "images/by-name/two.json").write_text('{"key": 3, "before": []}')
    kinds = [i.kind for i in stored.stored(cache)]
    assert sorted(kinds) == ["built", "previous", "previous", "pulled"]
