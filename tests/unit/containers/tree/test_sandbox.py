"""What changed in a tree: everything that was touched, nothing that was not, in a normal form."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

from fairlead_build.tree.sandbox import snapshot, write_changes


def a_tree(root: Path) -> Path:
    for name in ("etc/kept", "etc/edited", "etc/gone", "usr/lib/x", "tmp/old", "var/log/old"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("old")
    os.link(root / "etc" / "edited", root / "etc" / "twin")
    (root / "lib").symlink_to("usr/lib")
    return root


def changes(root: Path, work: object) -> tuple[dict[str, object], tarfile.TarFile]:
    before = snapshot(root)
    work()  # type: ignore[operator]
    out = io.BytesIO()
    write_changes(root, before, 1_700_000_000, out)
    line, _, tar = out.getvalue().partition(b"\n")
    return json.loads(line), tarfile.open(fileobj=io.BytesIO(tar + bytes(1024)))


def test_changes_of_nothing_are_empty(tmp_path: Path) -> None:
    head, archive = changes(a_tree(tmp_path), lambda: None)
    assert head == {"replaced": [], "bytes": 0, "files": 0} and not archive.getnames()


def test_changes_name_edited_removed_and_new_files(tmp_path: Path) -> None:
    root = a_tree(tmp_path)

    def work() -> None:
        edited = root / "etc" / "edited"
        times = edited.stat()
        edited.write_text("new")
        os.utime(edited, ns=(times.st_atime_ns, times.st_mtime_ns))  # size and time as before
        (root / "etc" / "gone").unlink()
        (root / "opt" / "deep").mkdir(parents=True)
        (root / "opt" / "deep" / "tool").write_text("tool")
        (root / "opt" / "deep" / "tool").chmod(0o6755)
        os.link(root / "opt" / "deep" / "tool", root / "opt" / "deep" / "zwin")
        (root / "tmp" / "scratch").write_text("scratch")
        (root / "var" / "log" / "new").write_text("log")

    head, archive = changes(root, work)
    # The twin is the same file under another name.
    assert head["replaced"] == ["etc/edited", "etc/gone", "etc/twin"]
    members = {m.name: m for m in archive}
    assert sorted(members) == [
        "./etc/edited", "./etc/twin", "./opt", "./opt/deep", "./opt/deep/tool", "./opt/deep/zwin",
    ]  # fmt: skip
    tool = members["./opt/deep/tool"]
    assert (tool.mode, tool.uid, tool.uname, tool.mtime) == (0o755, 0, "root", 1_700_000_000)
    assert members["./opt/deep/zwin"].linkname == "./opt/deep/tool"


def test_changes_of_a_folders_mode_replace_the_folder_alone(tmp_path: Path) -> None:
    root = a_tree(tmp_path)
    head, archive = changes(root, lambda: (root / "etc").chmod(0o700))
    assert head["replaced"] == ["etc"]
    assert archive.getnames() == ["./etc"]
