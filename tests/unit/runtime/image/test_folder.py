"""Folders: their facts come from the cache while nothing in them changes, and only then."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.image import folder
from fairlead.image.folder import state_of
from fairlead.image.open import Image, open_image

STATUS = "Package: {name}\nStatus: install ok installed\nVersion: 1.0\nArchitecture: amd64\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(folder, "_SETTLED_S", 0.0)  # the clock of this file system has nanoseconds
    root = tmp_path / "root"
    for name in ("usr/bin", "etc", "var/lib/dpkg", "proc/1"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/true", root / "usr/bin/tool")
    (root / "usr/bin/link").symlink_to("tool")
    (root / "etc/os-release").write_text('PRETTY_NAME="One"\n')
    (root / "var/lib/dpkg/status").write_text(STATUS.format(name="first"))
    return root


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}


def _marked(root: Path, environ: dict[str, str]) -> Callable[[], bool]:
    """Marks what the cache holds; the answer is whether a later look takes it from there."""
    open_image(str(root), environ)
    (file,) = Path(environ["XDG_CACHE_HOME"]).glob("fairlead/facts/folder-*.json")
    data = json.loads(file.read_text())
    data["value"]["facts"]["os"] = "from the cache"
    file.write_text(json.dumps(data))
    return lambda: open_image(str(root), environ).facts.os == "from the cache"


def test_open_folder_that_did_not_change_comes_from_the_cache(
    root: Path, environ: dict[str, str]
) -> None:
    first = open_image(str(root), environ)
    from_cache = _marked(root, environ)
    assert first.facts.os == "One"
    assert from_cache()
    (root / "proc/1/stat").write_text("of the kernel")
    assert from_cache()


def _content(root: Path) -> None:
    file = root / "etc/os-release"
    before = file.stat()
    with file.open("r+") as stream:  # same inode, same size
        stream.write('PRETTY_NAME="Two"')
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "content under the same size and mtime": _content,
    "mode": lambda root: (root / "usr/bin/tool").chmod(0o4755),
    "a new file": lambda root: (root / "etc/new").touch(),
    "a file less": lambda root: (root / "usr/bin/tool").unlink(),
    "another name": lambda root: (root / "usr/bin/tool").rename(root / "usr/bin/other"),
    "another target": lambda root: (
        (root / "usr/bin/link").unlink(),
        (root / "usr/bin/link").symlink_to("true"),
    ),
    "a folder": lambda root: (root / "opt/deep/er").mkdir(parents=True),
    "the folder itself": lambda root: (
        root.rename(root.with_name("old")),
        shutil.copytree(root.with_name("old"), root, symlinks=True),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_open_folder_that_changed_looks_again(
    change: str, root: Path, environ: dict[str, str]
) -> None:
    from_cache = _marked(root, environ)
    CHANGES[change](root)
    assert not from_cache()


def test_open_folder_whose_files_are_too_young_keeps_nothing(
    root: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_SETTLED_S", 3600.0)
    open_image(str(root), environ)
    assert not list(Path(environ["XDG_CACHE_HOME"]).rglob("folder-*"))


def test_open_folder_that_changes_during_the_look_keeps_nothing(
    root: Path, environ: dict[str, str]
) -> None:
    facts = Path(environ["XDG_CACHE_HOME"])

    def look() -> str:
        (root / "etc/late").touch()
        return "half of it"

    assert folder.kept(str, root, facts, "1", look) == "half of it"
    assert folder.kept(str, root, facts, "1", lambda: "all of it") == "all of it"


def test_open_folder_with_a_damaged_or_older_cache_looks_again(
    root: Path, environ: dict[str, str]
) -> None:
    open_image(str(root), environ)
    (file,) = Path(environ["XDG_CACHE_HOME"]).glob("fairlead/facts/folder-*.json")
    for text in ("", "[]", '{"key": 1}', json.dumps({"key": state_of(root, "6").key, "value": {}})):
        file.write_text(text)
        assert open_image(str(root), environ).facts.os == "One"
    assert state_of(root, "5").key != state_of(root, "6").key


def test_open_folder_lists_the_packages_that_are_installed_not_those_of_its_record(
    root: Path, environ: dict[str, str]
) -> None:
    record = {"packages": {"deb": {"old": "1"}, "wheel": {}}}
    (root / ".fairlead").mkdir()
    (root / ".fairlead/image.json").write_text(json.dumps(record))
    info = root / "usr/lib/python3/site-packages/ipykernel-6.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: ipykernel\nVersion: 6.0\n")

    def packages() -> object:
        image: Image = open_image(str(root), environ)
        return image.packages

    expected = {"deb": {"first": "1.0"}, "wheel": {"ipykernel": "6.0"}}
    assert packages() == expected
    assert packages() == expected  # from the cache
