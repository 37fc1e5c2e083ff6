"""The locked tools: their bytes are theirs alone, whatever else this machine has."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.system import hosts

from fairlead_build.build import build
from fairlead_build.cache.store import Cache
from fairlead_build.squashfs.squash import Compression, squashing, unsquash_argv
from fairlead_build.tools import tool_tree

HOW = Compression("zstd", 3, 1_700_000_000)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """A cache of its own that has the tools' packages, unpacked or not."""
    build("mpi-base", dry_run=True)
    tool_tree.unpacked(Cache.default())
    own = Cache(tmp_path / "cache")
    own.make()
    for deb in tool_tree.debs():
        hosts.same_file(Cache.default().blob(deb.sha256), own.blob(deb.sha256))
    return own


def a_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in range(40):
            info = tarfile.TarInfo(f"./folder/file{number}")
            body = os.urandom(999) + b"x" * 300_000
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def squashed(data: bytes, target: Path, cache: Cache) -> bytes:
    with squashing(target, HOW, "fairlead build", cache) as sink:
        sink.write(data)
    return target.read_bytes()


def test_tool_tree_runs_without_this_machines_libraries(cache: Cache) -> None:
    tree = tool_tree.unpacked(cache)
    loader = next((tree / "lib").glob("ld-linux-*"))
    for program in ("tar2sqfs", "sqfs2tar", "pigz", "zstd", "apt-get"):
        argv = [loader, "--library-path", tree / "lib", "--list", tree / "real" / program]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        libraries = [line.split("=>")[1].split()[0] for line in said.splitlines() if "=>" in line]
        assert libraries and all(Path(p).is_relative_to(tree) for p in libraries), said


def test_squashfs_bytes_ignore_other_tools_on_the_path(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PATH leads to programs of the same names that do nothing, or do something else."""
    data = a_tar()
    before = squashed(data, tmp_path / "one.squashfs", cache)
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    for name in ("tar2sqfs", "sqfs2tar", "zstd", "pigz", "ld-linux-x86-64.so.2"):
        (fakes / name).write_text("#!/bin/sh\nexit 0\n")
        (fakes / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{fakes}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fakes))
    assert squashed(data, tmp_path / "two.squashfs", cache) == before
    listed = subprocess.run(
        unsquash_argv(tmp_path / "two.squashfs", cache), capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(listed)) as archive:
        assert len([m for m in archive if m.isreg()]) == 40


def test_tool_tree_damaged_is_remade(cache: Cache) -> None:
    tree = tool_tree.unpacked(cache)
    victim = tree / "real" / "tar2sqfs"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + b"?")
    tool_tree._SEEN.clear()  # as in a new process
    assert tool_tree.unpacked(cache) == tree
    assert victim.read_bytes() == whole
    assert not list((cache.root / "work").iterdir())


def test_tool_tree_works_from_a_folder_with_a_strange_name(cache: Cache, tmp_path: Path) -> None:
    strange = Cache(tmp_path / "it's a $(cache) \"\n")
    strange.make()
    for deb in tool_tree.debs():
        hosts.same_file(cache.blob(deb.sha256), strange.blob(deb.sha256))
    argv = [*tool_tree.command("apt-get", strange), "--version"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"apt {tool_tree.versions()['apt']} ")
