"""Digests of files and folders."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.record.data import digest_of, tree_digest


def test_file_has_the_digest_that_sha256sum_prints(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10_000_000)
    (tmp_path / "link").symlink_to("a")
    for name in ("a", "link", str(tmp_path / "a")):
        found = digest_of(name, tmp_path)
        assert (found.name, found.kind, found.bytes, found.files) == (name, "file", 10_000_000, 1)
        assert found.sha256 == hashlib.sha256(b"x" * 10_000_000).hexdigest()
    assert digest_of("b", tmp_path).kind == "absent"


def test_folder_has_the_digest_that_the_documentation_describes(tmp_path: Path) -> None:
    tree = tmp_path / "data"
    (tree / "dev/empty").mkdir(parents=True)
    (tree / "dev/a b\n").write_text("1")
    (tree / "z").symlink_to("nowhere")
    one = hashlib.sha256(b"1").hexdigest().encode()
    lines = [b"d dev", b"d dev/empty", b"f " + one + b" dev/a b\n", b"l nowhere z"]
    expected = hashlib.sha256(b"".join(line + b"\0" for line in sorted(lines))).hexdigest()
    assert tree_digest(tree) == expected == digest_of("data", tmp_path).sha256
    assert (digest_of("data", tmp_path).files, digest_of("data", tmp_path).bytes) == (1, 1)


@pytest.mark.parametrize("change", ["content", "name", "link", "folder", "kind"])
def test_folder_that_differs_has_another_digest(tmp_path: Path, change: str) -> None:
    tree = tmp_path / "data"
    tree.mkdir()
    (tree / "a").write_text("1")
    (tree / "l").symlink_to("a")
    before = tree_digest(tree)
    os.utime(tree / "a", (0, 0))
    (tree / "a").chmod(0o700)
    assert tree_digest(tree) == before
    if change == "content":
        (tree / "a").write_text("2")
    elif change == "name":
        (tree / "a").rename(tree / "b")
    elif change == "link":
        (tree / "l").unlink()
        (tree / "l").symlink_to("b")
    elif change == "folder":
        (tree / "new").mkdir()
    else:
        (tree / "l").unlink()
        (tree / "l").write_text("1")
    assert tree_digest(tree) != before


def test_what_is_neither_file_nor_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FairleadError, match="digest of pipe") as caught:
        digest_of("pipe", tmp_path)
    assert caught.value.findings[0].why == "it is neither a file nor a folder"
