"""Two images compared: folders here, since they need no tool."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.progress import Silent
from fairlead.image.open import open_image
from fairlead.image.tree_digest import Entry
from fairlead_build.cli.diff import diff
from fairlead_build.diff import FileChange, compare, compare_trees


@pytest.fixture
def images(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with the same small root file system."""
    first = tmp_path / "first"
    for name in ("bin", "etc", "var/lib/dpkg", ".fairlead"):
        (first / name).mkdir(parents=True)
    (first / "bin/sh").write_text("#!")
    (first / "etc/os-release").write_text('PRETTY_NAME="Debian 12"\nID=debian\n')
    status = "Package: {}\nStatus: install ok installed\nVersion: {}\n\n"
    (first / "var/lib/dpkg/status").write_text(
        status.format("bash", "5.2") + status.format("sed", "4")
    )
    record = {"recipe": "mine", "env": {"A": "1"}, "labels": {"l": "x"}, "lock_sha256": "aa"}
    (first / ".fairlead/image.json").write_text(json.dumps(record))
    second = tmp_path / "second"
    shutil.copytree(first, second, symlinks=True)
    return first, second


def test_diff_of_equal_trees_says_so(images: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(diff, [*map(str, images)], standalone_mode=False)
    assert done.return_value == ExitCode.DONE
    assert "same tree" in done.stdout and "same bits" not in done.stdout


def test_diff_names_packages_environment_labels_and_files(images: tuple[Path, Path]) -> None:
    _, second = images
    status = second / "var/lib/dpkg/status"
    status.write_text(status.read_text().replace("5.2", "5.3").replace("sed", "tar"))
    record = json.loads((second / ".fairlead/image.json").read_text())
    record |= {"env": {"A": "2"}, "labels": {}, "lock_sha256": "bb"}
    (second / ".fairlead/image.json").write_text(json.dumps(record))
    (second / "bin/sh").chmod(0o755)
    old, new = (open_image(str(path)) for path in images)
    found = compare(old, new, Silent())
    assert not found.same_tree
    assert {(c.name, c.old, c.new) for c in found.packages} == {
        ("Debian: bash", "5.2", "5.3"),
        ("Debian: sed", "4", ""),
        ("Debian: tar", "", "4"),
    }
    assert [(c.name, c.old, c.new) for c in found.environment] == [("A", "1", "2")]
    assert [(c.name, c.old, c.new) for c in found.labels] == [("l", "x", "")]
    assert [(c.name, c.old, c.new) for c in found.system] == [("lock", "aa", "bb")]
    assert {f.path for f in found.files} == {
        ".fairlead/image.json",
        "bin/sh",
        "var/lib/dpkg/status",
    }


def test_diff_ends_with_1_and_shows_the_first_files(images: tuple[Path, Path]) -> None:
    for number in range(30):
        (images[1] / f"etc/{number:02}").write_text("new")
    words = [str(path) for path in images]
    done = CliRunner().invoke(diff, words, standalone_mode=False)
    assert done.return_value == ExitCode.FAILED
    assert "30 added, 0 removed, 0 changed; +90 B" in done.stdout
    assert "/etc/19" in done.stdout and "/etc/20" not in done.stdout
    assert "and 10 more: --files shows all" in done.stdout
    assert "/etc/29" in CliRunner().invoke(diff, [*words, "--files"], standalone_mode=False).stdout
    output = json.loads(CliRunner().invoke(diff, [*words, "--json"], standalone_mode=False).stdout)
    assert output["schema"] == "fairlead/diff" and not output["same_tree"]
    assert output["files"]["added"] == 30 and len(output["files"]["paths"]) == 20


def test_diff_of_what_is_no_image_ends_with_2(images: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        CliRunner().invoke(
            diff, [str(images[0]), str(tmp_path / "none.sif")], standalone_mode=False,
            catch_exceptions=False,
        )  # fmt: skip
    assert caught.value.code == ExitCode.USAGE


def test_files_that_differ_are_reported_in_words() -> None:
    a, b = "aa" * 32, "bb" * 32
    old = {
        "content": Entry("file", 0o644, "10", a),
        "mode": Entry("file", 0o644, "10", a),
        "both": Entry("file", 0o644, "10", a),
        "kind": Entry("file", 0o644, "10", a),
        "link": Entry("link", 0, "x"),
        "gone": Entry("file", 0o644, "10", a),
        "same": Entry("folder", 0o755),
        "null": Entry("char", 0o666, "1:3"),
    }
    new = {
        "content": Entry("file", 0o644, "15", b),
        "mode": Entry("file", 0o4755, "10", a),
        "both": Entry("file", 0o600, "10", b),
        "kind": Entry("link", 0, "y"),
        "link": Entry("link", 0, "z"),
        "new": Entry("folder", 0o755),
        "same": Entry("folder", 0o755),
        "null": Entry("char", 0o666, "1:5"),
    }
    assert compare_trees(old, new) == (
        FileChange("changed", "both", "content, mode 644 -> 600", 0),
        FileChange("changed", "content", "content", 5),
        FileChange("removed", "gone", "file", -10),
        FileChange("changed", "kind", "file -> link to y", -10),
        FileChange("changed", "link", "link to x -> z", 0),
        FileChange("changed", "mode", "mode 644 -> 4755", 0),
        FileChange("added", "new", "folder", 0),
        FileChange("changed", "null", "device 1:3 -> 1:5", 0),
    )
    assert compare_trees(old, old) == ()
