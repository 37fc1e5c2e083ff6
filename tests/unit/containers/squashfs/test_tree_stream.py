"""One digest over a tree, however it comes: a folder, a tar through a pipe, an OCI layout."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.image.tree_digest import Entry, scan_folder, tree_sha256
from fairlead_build.squashfs import tree_stream
from fairlead_build.squashfs.tree_stream import (
    Member,
    Recorder,
    image_tree,
    read_tree,
    tar_members,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small root file system with everything that an ordinary user can make."""
    root = tmp_path / "root"
    for name in ("bin", "dev", "etc/deep", "proc"):
        (root / name).mkdir(parents=True)
    (root / "bin" / "sh").write_bytes(b"\x7fELF" + bytes(3 << 20))
    (root / "bin" / "sh").chmod(0o4755)
    os.link(root / "bin" / "sh", root / "bin" / "zsh")
    (root / "etc" / "deep" / "empty").touch()
    (root / "etc" / "deep" / ("long-" * 40)).write_text("x" * 512)
    (root / "etc" / os.fsdecode(b"caf\xe9")).write_text("not UTF-8")
    (root / "etc" / "link").symlink_to(".//deep/../deep/empty")
    (root / "etc" / "pipe").touch()
    (root / "etc" / "pipe").unlink()
    os.mkfifo(root / "etc" / "pipe")
    (root / "dev" / "junk").write_text("of the machine")
    return root


def packed(folder: Path, **info: int) -> bytes:
    """``folder`` as a tar, with other times and owners than the files have."""

    def other(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid = 1, 1234, 4321
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, ".", filter=other)
    return buffer.getvalue()


class Pipe(io.RawIOBase):
    """Bytes in portions of an awkward size, as a pipe gives them."""

    def __init__(self, data: bytes, portion: int):
        self._data, self._portion = io.BytesIO(data), portion

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, self._portion))


def stream(
    data: bytes, portion: int = 1 << 16, seen: list[bytes] | None = None
) -> Iterator[Member]:
    return tar_members(Pipe(data, portion), seen.append if seen is not None else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("portion", [1, 511, 4096, 1 << 20])
def test_tree_digest_of_folder_and_tar_are_the_same(folder: Path, portion: int) -> None:
    if portion == 1:
        (folder / "bin" / "sh").write_bytes(b"short")  # a byte at a time, this is long enough
    tree = read_tree(stream(packed(folder), portion))
    assert tree == scan_folder(folder)
    assert tree["bin/zsh"] == tree["bin/sh"]
    assert tree["etc/link"] == Entry("link", 0, ".//deep/../deep/empty")
    assert tree["etc/pipe"].kind == "pipe" and "dev/junk" not in tree and "dev" in tree


def test_tar_stream_shows_every_byte_in_order(folder: Path) -> None:
    seen: list[bytes] = []
    data = packed(folder) + bytes(9 << 10)  # tools pad what they write
    assert len(read_tree(stream(data, 700, seen))) == 12
    assert b"".join(seen) == data


def test_tar_stream_content_not_read_is_passed_over(folder: Path) -> None:
    names = [info.name for info, _ in stream(packed(folder), 1000)]
    assert names[0] == "." and "etc/deep/empty" in names and len(names) == 14


def test_tar_stream_cut_inside_a_file_is_an_error(folder: Path) -> None:
    data = packed(folder)
    with pytest.raises(tarfile.TarError):
        read_tree(stream(data[: len(data) // 2]))


def test_tree_hard_link_to_nothing_is_an_error() -> None:
    info = tarfile.TarInfo("lost")
    info.type, info.linkname = tarfile.LNKTYPE, "../etc/shadow"
    with pytest.raises(FairleadError, match="hard link lost is dangling"):
        read_tree([(info, None)])


@pytest.mark.parametrize("change", ["content", "mode", "name", "target", "kind", "nothing"])
def test_tree_digest_changes_with_what_it_covers_only(folder: Path, change: str) -> None:
    before = tree_sha256(image_tree(folder))
    file = folder / "etc" / "deep" / "empty"
    match change:
        case "content":
            file.write_text("x")
        case "mode":
            file.chmod(0o600)
        case "name":
            file.rename(file.with_name("renamed"))
        case "target":
            (folder / "etc" / "link").unlink()
            (folder / "etc" / "link").symlink_to("deep/empty")
        case "kind":
            file.unlink()
            file.mkdir()
        case "nothing":
            os.utime(file, (1, 1))
            (folder / "proc" / "1").mkdir()
            folder.chmod(0o700)
    assert (tree_sha256(image_tree(folder)) == before) is (change == "nothing")


class _Taken:
    """A sink that counts."""

    taken = 0

    def write(self, data: bytes) -> None:
        self.taken += len(data)


@pytest.mark.parametrize("portion", [1, 511, 1 << 20])
def test_recorded_stream_has_the_tree_of_its_tar(folder: Path, portion: int) -> None:
    data, sink = packed(folder), _Taken()
    with Recorder(sink) as recorder:
        for at in range(0, len(data), max(portion, len(data) // 5000)):
            recorder.write(data[at : at + max(portion, len(data) // 5000)])
            recorder.write(b"")  # is not the end
    assert sink.taken == len(data)
    assert recorder.tree == read_tree(tar_members(io.BytesIO(data)))


@pytest.mark.parametrize("wrong", [tarfile.ReadError, ZeroDivisionError])
def test_stream_that_cannot_be_read_is_passed_on_and_named_at_the_end(
    wrong: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader gives up at once; the writer has far more to write than may wait."""
    if wrong is not tarfile.ReadError:  # as it is
        monkeypatch.setattr(tree_stream, "read_tree", lambda members: 1 // 0)
    sink = _Taken()
    with pytest.raises(wrong), Recorder(sink) as recorder:
        for _ in range(200):
            recorder.write(b"x" * 4096)
    assert sink.taken == 200 * 4096


@pytest.mark.parametrize("at", [0, 1, 511, 512, 513, 5000, 1 << 20, -512])
def test_stream_that_ends_early_ends_its_reader_too(folder: Path, at: int) -> None:
    """What writes it may fail before its first byte, in a header, in a file or between two."""
    data, failed = packed(folder)[:at], threading.Event()

    def fail_after() -> None:
        with suppress(ZeroDivisionError), Recorder(_Taken()) as recorder:
            recorder.write(data)
            raise ZeroDivisionError
        failed.set()

    threading.Thread(target=fail_after, daemon=True).start()
    assert failed.wait(10), "its reader waits for more"


@pytest.mark.parametrize("text", ["0", "[]", '{"annotations": 1}', '{"layers": [1]}'])
def test_layout_whose_manifest_is_no_object_is_damaged(text: str, tmp_path: Path) -> None:
    digest = "a" * 64
    (tmp_path / "blobs/sha256").mkdir(parents=True)
    (tmp_path / "blobs/sha256" / digest).write_text(text)
    index = {"manifests": [{"digest": f"sha256:{digest}"}]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(FairleadError) as caught:
        list(tree_stream.entries(tmp_path))
    assert caught.value.findings[0].check == "oci-layout"
