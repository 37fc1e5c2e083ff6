"""One squashfs laid over another: what comes of it is what both hold, to every reader."""

from __future__ import annotations

import io
import random
import struct
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.image.tree_digest import Entry, Tree, scan_folder
from fairlead_build.squashfs.overlay import NotLaid, lay
from fairlead_build.squashfs.squash import Compression, squashing
from fairlead_build.squashfs.tree_stream import read_tree, squashfs_entries

EPOCH = 1_700_000_000
ZSTD, GZIP = Compression("zstd", 3, EPOCH), Compression("gzip", 1, EPOCH)
MIXED = random.Random(7).randbytes(3 << 20)
# Blocks have 128 KiB: none, a fragment, whole blocks, blocks and a fragment, holes.
BODIES = (
    b"",
    b"small",
    MIXED[: 128 << 10],
    MIXED[: (300 << 10) + 7],
    b"a" * 500_000,
    bytes(1 << 20) + b"end",
)

FILE = st.tuples(st.sampled_from([0o644, 0o755, 0o600]), st.sampled_from(BODIES), st.integers(0, 9))
LINK = st.sampled_from(["../there", "/usr/bin/x", "."])
FOLDER = st.none()
NAME = st.sampled_from(["a", "b", "bin", "d" * 200, "é", "z"])
PATHS = st.lists(NAME, min_size=1, max_size=4).map("/".join)
TREES = st.dictionaries(PATHS, st.one_of(FILE, LINK, FOLDER), max_size=12)


def squashfs(
    path: Path, tree: dict[str, object], how: Compression, links: dict[str, str] | None = None
) -> Path:
    """A squashfs of files (mode, content, salt), links (target) and folders (None)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, what in sorted(tree.items()):
            info = tarfile.TarInfo(f"./{name}")
            info.mtime = EPOCH
            body = b""
            if what is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o750
            elif isinstance(what, str):
                info.type, info.linkname = tarfile.SYMTYPE, what
            else:
                assert isinstance(what, tuple)
                info.mode, body = what[0], what[1] + b"." * what[2]
                info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(f"./{name}")
            info.type, info.linkname = tarfile.LNKTYPE, f"./{target}"
            archive.addfile(info)
    with squashing(path, how, "fairlead build") as sink:
        sink.write(buffer.getvalue())
    return path


def possible(tree: dict[str, object]) -> dict[str, object]:
    """Without what lies below something that is not a folder."""
    solid = {name for name, what in tree.items() if what is not None}
    return {
        name: what
        for name, what in tree.items()
        if not any(str(above) in solid for above in Path(name).parents)
    }


def held(path: Path) -> dict[str, Entry]:
    return read_tree(squashfs_entries(path))


def expected(above: Tree, below: Tree) -> dict[str, Entry]:
    """``above`` wins but for the attributes of folders that both have."""
    found = dict(below)
    for name, entry in above.items():
        there = below.get(name)
        if there is not None and (there.kind == "folder") != (entry.kind == "folder"):
            found = {k: v for k, v in found.items() if not k.startswith(f"{name}/")}
        if there is None or not there.kind == entry.kind == "folder":
            found[name] = entry
    return found


@contextmanager
def mounted(path: Path) -> Iterator[Path]:
    """By another program than the one that wrote it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(["squashfuse_ll", "-f", "-o", "ro", path, folder]) as process,
    ):
        try:
            deadline = time.monotonic() + 20
            while not Path(folder).is_mount():
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
            yield Path(folder)
        finally:
            process.terminate()
            process.wait()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(above=TREES.map(possible), below=TREES.map(possible), how=st.sampled_from([ZSTD, GZIP]))
def test_any_two_trees_laid_over_each_other_are_both(
    tmp_path_factory: pytest.TempPathFactory,
    above: dict[str, object],
    below: dict[str, object],
    how: Compression,
) -> None:
    folder = tmp_path_factory.mktemp("laid")
    upper = squashfs(folder / "upper", above, how)
    lower = squashfs(folder / "lower", below, how)
    first, second = lay(upper, lower, folder / "1"), lay(upper, lower, folder / "2")
    assert held(folder / "1") == expected(held(upper), held(lower))
    assert first == second and (folder / "1").stat().st_size % 4096 == 0


def test_what_was_laid_is_read_by_another_program(tmp_path: Path) -> None:
    """Long lists of names, many inodes, hard links far from each other, holes, large files."""
    below: dict[str, object] = {
        f"many/{n:05}-{'x' * 40}": (0o644, b"", n % 10) for n in range(3000)
    }
    below |= {f"f{n}/sub/deep/file": (0o755, MIXED[: n * 9973], 0) for n in range(40)}
    below |= {"holes": (0o644, bytes(2 << 20) + MIXED + bytes(4 << 20), 0), "empty": None}
    links = {"zz/far": "many/00000-" + "x" * 40, "a-link": "f7/sub/deep/file"}
    above: dict[str, object] = {f"many/new-{n}": (0o644, MIXED[:n], 0) for n in range(50)}
    above |= {"fresh/one": (0o600, MIXED, 1), "f3": "somewhere", "holes": (0o644, b"none", 0)}
    upper = squashfs(tmp_path / "upper", above, ZSTD, {"fresh/two": "fresh/one"})
    lower = squashfs(tmp_path / "lower", below, ZSTD, links)
    lay(upper, lower, tmp_path / "laid")
    with mounted(tmp_path / "laid") as root:
        found = scan_folder(root)
        assert (root / "zz/far").stat().st_nlink == (root / "fresh/two").stat().st_nlink == 2
        assert (root / "zz/far").stat().st_ino == (root / links["zz/far"]).stat().st_ino
        assert (root / "many").stat().st_nlink == 2 and root.stat().st_nlink == 2 + 43
        numbers = {p.lstat().st_ino for p in root.rglob("*")}
        assert len(numbers) == len(list(root.rglob("*"))) - 3, "of each hard link one"
    assert found == expected(held(upper), held(lower)) == held(tmp_path / "laid")


def test_laying_over_a_laid_one_adds_to_it(tmp_path: Path) -> None:
    one = squashfs(tmp_path / "one", {"a": (0o644, MIXED, 1)}, ZSTD)
    two = squashfs(tmp_path / "two", {"b": (0o644, b"two", 1)}, ZSTD)
    three = squashfs(tmp_path / "three", {"c/d": (0o644, b"three", 1)}, ZSTD)
    lay(two, one, tmp_path / "1")
    lay(three, tmp_path / "1", tmp_path / "2")
    assert held(tmp_path / "2") == held(one) | held(two) | held(three)


def test_compressors_that_differ_are_refused(tmp_path: Path) -> None:
    one = squashfs(tmp_path / "one", {"a": (0o644, b"1", 1)}, ZSTD)
    two = squashfs(tmp_path / "two", {"b": (0o644, b"2", 1)}, GZIP)
    with pytest.raises(NotLaid, match="compressors"):
        lay(one, two, tmp_path / "out")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), how=st.sampled_from([ZSTD, GZIP]))
def test_damage_is_reported_and_nothing_else_happens(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, how: Compression
) -> None:
    """A changed or missing byte is ``NotLaid``, or in the content of a file, which has a digest."""
    folder = tmp_path_factory.mktemp("damaged")
    tree: dict[str, object] = {"a/b": (0o644, b"x" * 5000, 0), "l": "a/b", "e": None}
    upper = squashfs(folder / "upper", {"new": (0o644, b"", 0)}, how)
    body = bytearray(squashfs(folder / "lower", tree, how).read_bytes())
    (used,) = struct.unpack_from("<Q", body, 40)
    at = data.draw(st.integers(0, used - 1))
    if data.draw(st.booleans()):
        body[at] ^= data.draw(st.integers(1, 255))
    else:
        del body[at:]
    (folder / "bad").write_bytes(body)
    with suppress(NotLaid):
        lay(upper, folder / "bad", folder / "out")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    one = squashfs(tmp_path / "one", {"a": (0o644, b"1", 1)}, ZSTD)
    (tmp_path / "text").write_text("no squashfs" * 20)
    with pytest.raises(NotLaid, match="is not a squashfs"):
        lay(one, tmp_path / "text", tmp_path / "out")
