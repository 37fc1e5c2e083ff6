"""What others can replace: by every folder and link through which a path is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support import forked

from fairlead.base import exposure


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scratch folder of a user, whose cache and a link to it are made by a test."""
    monkeypatch.setattr(exposure, "private_group", lambda gid: False)
    (tmp_path / "home/.cache/fairlead").mkdir(parents=True)
    (tmp_path / "scratch/alice/cache/fairlead").mkdir(parents=True)
    return tmp_path


def found(folder: Path, top: Path) -> list[Path]:
    return [part for part, _ in exposure.exposed(folder, top)]


@pytest.mark.parametrize("target", ["{place}/scratch/alice/cache", "../scratch/alice/cache"])
def test_folder_behind_a_link_that_others_can_write_to_is_found(place: Path, target: str) -> None:
    (place / "home/.cache/fairlead").rmdir()
    (place / "home/.cache").rmdir()
    (place / "home/.cache").symlink_to(target.format(place=place))
    cache = place / "home/.cache/fairlead"
    assert found(cache / "native", cache) == []
    (place / "scratch/alice").chmod(0o777)
    assert found(cache / "native", cache) == [place / "scratch/alice"]
    (place / "scratch/alice").chmod(0o775)  # a project's folder, above the cache
    assert found(cache / "native", cache) == []
    (place / "scratch/alice/cache/fairlead").chmod(0o775)
    assert found(cache / "native", cache) == [place / "scratch/alice/cache/fairlead"]


def test_folder_that_lies_elsewhere_by_a_link_is_part_of_the_cache(place: Path) -> None:
    cache = place / "home/.cache/fairlead"
    (cache / "stage").symlink_to(place / "scratch/alice/cache")
    (place / "scratch/alice/cache").chmod(0o775)
    assert found(cache / "stage", cache) == [place / "scratch/alice/cache"]


def test_links_on_the_way_of_links_are_followed(place: Path) -> None:
    (place / "open").mkdir(mode=0o700)
    (place / "open").chmod(0o777)
    (place / "open/second").symlink_to(place / "scratch")
    (place / "first").symlink_to("open/second")
    cache = place / "first/alice/cache"
    assert found(cache, cache) == [place / "open"]
    (place / "open").chmod(0o1777)
    assert found(cache, cache) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_entry_of_a_sticky_folder_can_be_replaced_by_its_owner(place: Path, kind: str) -> None:
    (place / "tmp").mkdir()
    (place / "tmp").chmod(0o1777)
    entry = place / "tmp/entry"
    if kind == "folder":
        (entry / "cache").mkdir(parents=True)
    else:
        entry.symlink_to(place / "scratch/alice")
    assert found(entry / "cache", entry / "cache") == []
    os.chown(entry, 12345, 12345, follow_symlinks=False)
    [(part, why)] = exposure.exposed(entry / "cache", entry / "cache")
    assert part == entry and why == "it belongs to user 12345"


def test_links_in_a_circle_are_an_error_of_the_system(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        found(place / "a/cache", place / "a")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("made", ["", "cache", "cache/fairlead"])
def test_cache_of_another_user_is_lent_to_root(tmp_path: Path, made: str) -> None:
    place = tmp_path / "home"
    (place / made).mkdir(parents=True)
    cache = place / "cache" / "fairlead"
    assert exposure.lent_to_root(cache) == ""
    os.chown(place if not made else place / "cache", 4242, 4242)
    assert exposure.lent_to_root(cache) == "4242"
    os.chown(place, 65534, 65534)  # of another user namespace
    assert exposure.lent_to_root(cache) == ("4242" if made else "")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_verb_of_root_in_the_cache_of_another_user_warns_once(tmp_path: Path) -> None:
    os.chown(tmp_path, 4242, 4242)
    done = forked.fairlead(["images", "list"], {**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0 and done.stderr.count("warning[cache-owner]") == 1
    assert f"chown -R 4242 {tmp_path}/fairlead" in done.stderr
    done = forked.fairlead(["images", "--help"], {**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    assert "cache-owner" not in done.stderr
