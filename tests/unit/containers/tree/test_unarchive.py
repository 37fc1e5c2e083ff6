"""Archives of sources: whatever they say, nothing outside their folder is written."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from fairlead_build.tree import unarchive
from fairlead_build.tree.unarchive import Hostile, untar, unzip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is unpacked into, with a file beside it that must stay as it is."""
    (tmp_path / "beside").write_text("untouched")
    target = tmp_path / "target"
    target.mkdir()
    monkeypatch.chdir(target)
    return target


def tar_of(*members: tuple[str, bytes, str]) -> io.BytesIO:
    """A gzipped tar of ``(name, type, link or content)``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o4777
            if kind == tarfile.REGTYPE:
                info.size = len(text)
            else:
                info.linkname = text
            archive.addfile(info, io.BytesIO(text.encode()))
    buffer.seek(0)
    return buffer


FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([("../beside", FILE, "x")], "outside"),
        ([("a/../../beside", FILE, "x")], "outside"),
        ([("/etc/passwd", FILE, "x")], "outside"),
        ([("a", LINK, "../.."), ("a/beside", FILE, "x")], "outside"),
        ([("a", LINK, "/tmp"), ("a/x", FILE, "x")], "outside"),
        ([("d", FOLDER, ""), ("a", LINK, "d"), ("a/x", FILE, "x")], "through the link a"),
        ([("a", HARD, "../beside")], "outside"),
        ([("null", tarfile.CHRTYPE, "")], "is not a file, folder or link"),
        ([("pipe", tarfile.FIFOTYPE, "")], "is not a file, folder or link"),
    ],
)
def test_untar_hostile_member_is_refused(
    folder: Path, members: list[tuple[str, bytes, str]], says: str
) -> None:
    with pytest.raises(Hostile, match=says):
        untar(tar_of(*members), 1 << 20)
    assert (folder.parent / "beside").read_text() == "untouched"
    assert sorted(p.name for p in folder.parent.iterdir()) == ["beside", "target"]


def test_untar_bomb_is_refused_before_it_is_written(folder: Path) -> None:
    with pytest.raises(Hostile, match="decompression bomb"):
        untar(tar_of(("big", FILE, "0" * 2_000_000)), 1_000_000)
    assert not list(folder.iterdir())


def test_untar_keeps_plain_members_and_no_special_bits(folder: Path) -> None:
    untar(tar_of(("p-1/a", FILE, "x"), ("p-1/b", LINK, "a"), ("p-1/d/c", HARD, "p-1/a")), 1 << 20)
    unarchive._lift_single_folder()
    assert (folder / "b").read_text() == (folder / "d" / "c").read_text() == "x"
    assert (folder / "a").stat().st_mode & 0o7777 == 0o777


def test_unzip_path_outside_is_refused(folder: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../beside", "x")
    with pytest.raises(Hostile, match="outside"):
        unzip(buffer, 1 << 20)
    assert (folder.parent / "beside").read_text() == "untouched"
