"""The lock of the tools: sound, whole for both architectures, in the wheel, and binding."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from fairlead.base.progress import Silent
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.inherit import bundled_names
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import load_lock
from fairlead_build.tools import tool_tree
from fairlead_build.tree.wheel import own_wheel, runtime_requirements


def test_tool_lock_rendered_is_the_file_itself() -> None:
    text = tool_tree.LOCK.read_text()
    assert tool_tree.render(tool_tree.tool_lock()) == text
    assert "://" not in text


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_tool_lock_has_every_package_once_for_each_architecture(arch: str) -> None:
    assert sorted(d.name for d in tool_tree.debs(arch)) == sorted(tool_tree.tool_lock().packages)


def test_tool_lock_comes_with_our_wheel(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.make()
    with zipfile.ZipFile(io.BytesIO(own_wheel(cache))) as archive:
        assert archive.read("fairlead_build/tools/tools.lock.toml") == tool_tree.LOCK.read_bytes()


def test_tool_identity_moves_with_any_library(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tool_tree.debs("amd64")
    moved = [
        d.model_copy(update={"sha256": "0" * 64}) if d.name == "zlib1g" else d for d in packages
    ]
    known = {tool_tree.identity("arm64"), whole := tool_tree.identity("amd64")}
    monkeypatch.setattr(tool_tree, "debs", lambda arch: packages[::-1])
    assert tool_tree.identity("amd64") == whole
    monkeypatch.setattr(tool_tree, "debs", lambda arch: moved)
    assert len({*known, tool_tree.identity("amd64")}) == 3


@pytest.mark.parametrize("name", [n for n in bundled_names() if load_recipe(n).lock_path.is_file()])
def test_lock_bundled_names_the_tools_of_this_fairlead(name: str) -> None:
    loaded = load_recipe(name)
    lock, _ = load_lock(loaded, runtime_requirements())
    assert tool_tree.mismatch(lock, name, loaded.lock_path) is None


def test_lock_of_other_tools_names_what_differs_and_the_command() -> None:
    loaded = load_recipe("mpi-base")
    lock, _ = load_lock(loaded, runtime_requirements())
    tools = {**lock.tools, "tree": "0" * 64, "pigz": "2.4-1"}
    finding = tool_tree.mismatch(
        lock.model_copy(update={"tools": tools}), "mpi-base", loaded.lock_path
    )
    assert finding is not None
    assert "pigz is 2.6-1, the lock says 2.4-1" in finding.why and "zstd" not in finding.why
    assert finding.remedy.startswith("fairlead recipe lock --tools mpi-base ")
    # A library alone: there is no version of it in the lock.
    finding = tool_tree.mismatch(
        lock.model_copy(update={"tools": {**lock.tools, "tree": "0" * 64}}),
        "mpi-base",
        loaded.lock_path,
    )
    assert finding is not None and "a library" in finding.why


def test_tool_packages_members_lie_where_the_tree_has_them(tmp_path: Path) -> None:
    for name in ("lib", "real"):
        (tmp_path / name).mkdir()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, link in (
            ("./usr/bin/pigz", ""),
            ("./usr/bin/unwanted", ""),
            ("./lib/x86_64-linux-gnu/libz.so.1.2", ""),
            ("./usr/lib/x86_64-linux-gnu/libz.so.1", "libz.so.1.2"),
            ("./usr/lib/x86_64-linux-gnu/libout.so.1", "/etc/passwd"),
            ("./usr/lib/x86_64-linux-gnu/gconv/UTF-7.so", ""),
        ):
            info = tarfile.TarInfo(path)
            info.type, info.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
            archive.addfile(info, io.BytesIO())
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as archive:
        for member in archive:
            tool_tree._lay(archive, member, tmp_path, "amd64")
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("*/*"))
    assert found == ["lib/libz.so.1", "lib/libz.so.1.2", "real/pigz"]


def test_tools_that_another_process_unpacked_meanwhile_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    cache.make()
    final = cache.tools(tool_tree.identity())

    def unpack(packages: object, cache: Cache, target: Path, arch: str) -> None:
        target.mkdir()
        (final / "bin").mkdir(parents=True)  # the other one ends first

    monkeypatch.setattr(tool_tree, "unpack", unpack)
    monkeypatch.setattr(tool_tree, "_whole", lambda tree: (tree / "bin").is_dir())
    before: list[int] = []
    monkeypatch.setattr(Path, "rename", lambda *a: before.append(1))
    tool_tree._make(final, (), cache, Silent())
    assert not before
