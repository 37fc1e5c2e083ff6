"""Staging on one node: trees of any shape come back bit for bit, and what goes wrong is found."""

from __future__ import annotations

import doctest
import json
import os
import shlex
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import FairleadError
from fairlead.base.serde import from_json, to_json
from fairlead.transfer import copying, datawarp, digest, folder, free_space, node, tree
from fairlead.transfer.digest import LEAF
from fairlead.transfer.model import MOUNT, PREFIX, InItem, Links, NodeReport, OutItem

MODULE = (sys.executable, "-m", "fairlead.transfer")

Shape = dict[bytes, object]  # name: content, link target, hole or folder


def snapshot(top: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything of a tree that a copy must have too, read without fairlead."""
    found: dict[bytes, tuple[object, ...]] = {}

    def look(path: bytes, below: bytes) -> None:
        info = os.lstat(path)
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISLNK(info.st_mode):
            found[below] = ("link", os.readlink(path), info.st_mtime_ns)
        elif stat.S_ISDIR(info.st_mode):
            found[below] = ("folder", mode, info.st_mtime_ns)
            for name in os.listdir(path):
                look(path + b"/" + name, below + b"/" + name)
        else:
            found[below] = ("file", mode, info.st_mtime_ns, Path(os.fsdecode(path)).read_bytes())

    look(os.fsencode(top), b"")
    return found


names = st.binary(min_size=1, max_size=12).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in (b".", b"..")
)
contents = st.one_of(
    st.binary(max_size=200),
    st.tuples(st.integers(0, 300_000), st.binary(max_size=20)),  # a hole, and what is behind it
)
shapes = st.recursive(
    st.one_of(contents, st.just("link"), st.just("hard link")),
    lambda inner: st.dictionaries(names, inner, max_size=5),
    max_leaves=15,
)
modes = st.lists(st.sampled_from([0o400, 0o444, 0o600, 0o644, 0o750, 0o755]), min_size=1)


def build(top: Path, shape: object, mode: Iterator[int]) -> None:
    """Makes a tree; links lead to something that was made before them, or beside them."""
    files: list[bytes] = []

    def make(path: bytes, what: object) -> None:
        if isinstance(what, dict):
            os.mkdir(path)
            for name, inner in what.items():
                make(path + b"/" + name, inner)
            os.chmod(path, next(mode) | 0o500)
        elif what == "link":
            target = files[-1] if files else os.path.dirname(path) + b"/nothing"
            os.symlink(os.path.relpath(target, os.path.dirname(path)), path)
        elif what == "hard link" and files:
            os.link(files[0], path)
        else:
            with open(path, "wb") as stream:
                if isinstance(what, tuple):
                    stream.seek(what[0])
                    what = what[1]
                stream.write(what if isinstance(what, bytes) else b"")
                stream.truncate()
            os.chmod(path, next(mode))
            files.append(path)

    make(os.fsencode(top), shape)


@given(shape=st.dictionaries(names, shapes, max_size=6), mode=modes)
def test_tree_of_any_shape_survives_the_way_in_and_back(shape: Shape, mode: list[int]) -> None:
    with tempfile.TemporaryDirectory() as work:
        top = Path(work)
        cycle = (mode[n % len(mode)] for n in range(10**6))
        build(top / "source", shape, cycle)
        before = snapshot(top / "source")
        where = str(top / f"{PREFIX}1")
        begun = node.stage_in(where, [InItem(str(top / "source"), "data")])
        assert snapshot(Path(where, "data/data")) == before
        report = node.stage_out(where, [OutItem("data", str(top / "back"))])
        assert begun.lock is not None
        os.close(begun.lock)
        assert not report.findings and not os.path.lexists(where)
        assert snapshot(top / "back") == before == snapshot(top / "source")
        assert report.items[0].digest == begun.report.items[0].digest
        copying.remove(str(top / "source"))  # whose folders may be read-only, as their copies'
        copying.remove(str(top / "back"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "deep/er").mkdir(parents=True)
    (top / "small").write_bytes(b"small")
    (top / "deep/er/large").write_bytes(os.urandom(1 << 20) * 21)  # several leaves and pieces
    (top / "inner").symlink_to("deep/er/large")
    return top


def refused(code: int, check: str, call: Callable[[], object]) -> str:
    """All words of the one finding that ends ``call``."""
    with pytest.raises(FairleadError) as caught:
        call()
    assert caught.value.code == code
    (found,) = caught.value.findings
    assert found.check == check and found.where and found.why and found.remedy
    return " ".join(found.to_json().values())


def staged(tmp_path: Path, *items: InItem, name: str = "1", **more: object) -> node.Begun:
    return node.stage_in(str(tmp_path / f"{PREFIX}{name}"), items, node.InOptions(**more))  # type: ignore[arg-type]


def left(folder_: Path) -> list[str]:
    return [
        path.name for path in folder_.iterdir() if "fairlead" in path.name or path.name[0] == "."
    ]


def test_holes_stay_holes_and_hard_links_stay_one_file(tmp_path: Path) -> None:
    top = tmp_path / "source"
    top.mkdir()
    with (top / "hole").open("wb") as stream:
        stream.truncate(3 * LEAF + 5)
        stream.seek(LEAF + 77)
        stream.write(b"something")
    os.link(top / "hole", top / "again")
    begun = staged(tmp_path, InItem(str(top), "x"))
    (one,) = begun.report.items
    copy = Path(one.target)
    assert (copy / "hole").read_bytes() == (top / "hole").read_bytes()
    assert (copy / "hole").stat().st_blocks * 512 < LEAF
    assert (copy / "hole").stat().st_ino == (copy / "again").stat().st_ino
    assert one.bytes == 3 * LEAF + 5 and one.data < LEAF


def test_digest_is_of_content_names_and_permissions_not_of_times(tmp_path: Path) -> None:
    def of(top: Path) -> str:
        seen = tree.scan(str(top), Links.REFUSE)
        return digest.of_tree(seen, copying.digests(seen))

    one, two = tmp_path / "one", tmp_path / "two"
    for top in (one, two):
        top.mkdir()
        (top / "file").write_bytes(b"a" * (LEAF + 1))
    os.utime(two / "file", (5, 5))
    assert of(one) == of(two)
    (two / "file").chmod(0o600)
    assert of(one) != of(two)
    (two / "file").chmod((one / "file").stat().st_mode)
    assert of(one) == of(two)
    with (two / "file").open("r+b") as stream:
        stream.seek(LEAF)
        stream.write(b"b")
    assert of(one) != of(two)


@pytest.mark.parametrize("at", [0, 5 * LEAF + 17, (21 << 20) - 1])
def test_byte_that_flips_on_the_storage_is_found_and_placed(
    at: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = copying._written_out

    def flipped(target: str, files: list[str]) -> None:
        real(target, files)
        with open(f"{target}/deep/er/large", "r+b") as stream:
            stream.seek(at)
            byte = stream.read(1)[0]
            stream.seek(at)
            stream.write(bytes([byte ^ 1]))

    monkeypatch.setattr(copying, "_written_out", flipped)
    said = refused(
        123, "stage-checksum", lambda: staged(tmp_path, InItem(str(source), "x"))
    )  # fmt: skip
    begin = at // LEAF * LEAF
    assert f"deep/er/large, between byte {begin} and {begin + LEAF}" in said
    assert left(tmp_path) == []


@pytest.mark.parametrize("how", ["appended", "rewritten", "replaced", "added", "removed"])
def test_source_that_changes_while_it_is_copied_is_found(
    how: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = copying._written_out

    def meanwhile(target: str, files: list[str]) -> None:
        real(target, files)
        file = source / "small"
        if how == "appended":
            file.write_bytes(b"small and more")
        elif how == "rewritten":  # same size, same time of writing
            before = file.stat().st_mtime_ns
            file.write_bytes(b"SMALL")
            os.utime(file, ns=(before, before))
        elif how == "replaced":
            (source.parent / "new").write_bytes(b"small")
            (source.parent / "new").rename(file)
        elif how == "added":
            (source / "more").touch()
        else:
            file.unlink()

    monkeypatch.setattr(copying, "_written_out", meanwhile)
    said = refused(
        123, "stage-changed", lambda: staged(tmp_path, InItem(str(source), "x"))
    )  # fmt: skip
    assert ("more" if how == "added" else "small") in said
    assert left(tmp_path) == []


def test_source_that_shrinks_between_look_and_copy_is_found(source: Path, tmp_path: Path) -> None:
    seen = tree.scan(str(source), Links.REFUSE)
    os.truncate(source / "deep/er/large", 100)
    refused(123, "stage-changed", lambda: copying.copy(seen, str(tmp_path / "copy")))


def test_links_that_lead_out_are_refused_or_followed(source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").write_bytes(b"outside")
    (outside / "folder/inner").write_bytes(b"inner")
    (outside / "folder/own").symlink_to("inner")
    (outside / "folder/up").symlink_to("../file")
    (source / "absolute").symlink_to(outside / "file")
    (source / "relative").symlink_to("../outside/folder")
    (source / "into").symlink_to("relative/inner")
    (source / "within").symlink_to(source / "deep/er/large")
    said = refused(121, "stage-link", lambda: staged(tmp_path, InItem(str(source), "x")))
    assert "absolute -> " in said and "relative -> ../outside/folder" in said
    assert "2 links lead out" in said
    begun = staged(tmp_path, InItem(str(source), "x"), links=Links.FOLLOW)
    copy = Path(begun.report.items[0].target)
    assert (copy / "absolute").read_bytes() == b"outside" and not (copy / "absolute").is_symlink()
    assert not (copy / "relative").is_symlink()
    assert os.readlink(copy / "relative/own") == "inner"
    assert (copy / "relative/up").read_bytes() == b"outside"
    assert os.readlink(copy / "into") == "relative/inner"
    assert os.readlink(copy / "within") == "deep/er/large"
    for link in copy.rglob("*"):
        assert link.resolve().is_relative_to(copy)


def test_link_that_goes_round_is_refused_when_it_is_followed(source: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    (above / "inner").mkdir(parents=True)
    (above / "inner/round").symlink_to(above)
    (above / "loop").symlink_to("loop")  # leads nowhere, and within: so does its copy
    said = refused(
        121,
        "stage-link",
        lambda: staged(tmp_path, InItem(str(above / "inner"), "x"), links=Links.FOLLOW),
    )
    assert "a folder above itself" in said or "circle" in said
    begun = staged(tmp_path, InItem(str(above), "y"))
    assert os.readlink(Path(begun.report.items[0].target, "loop")) == "loop"


def test_special_files_are_refused_on_the_way_in_and_named_on_the_way_out(
    source: Path, tmp_path: Path
) -> None:
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(source / "socket"))
    said = refused(121, "stage-special", lambda: staged(tmp_path, InItem(str(source), "x")))
    assert "pipe: a pipe" in said and "socket: a socket" in said
    staged(tmp_path)
    os.rename(source, f"{begun_folder(tmp_path)}/data/res")
    report = node.stage_out(begun_folder(tmp_path), [OutItem("res", str(tmp_path / "back"))])
    (finding,) = report.findings
    assert finding.check == "stage-special" and "2 of res" in finding.what
    assert (tmp_path / "back/small").exists() and not (tmp_path / "back/pipe").exists()


def begun_folder(tmp_path: Path, name: str = "1") -> str:
    return str(tmp_path / f"{PREFIX}{name}")


def test_links_of_results_into_the_mount_lead_to_the_same_in_the_copy(tmp_path: Path) -> None:
    staged(tmp_path)
    made = Path(begun_folder(tmp_path), "data/res")
    (made / "step10").mkdir(parents=True)
    (made / "latest").symlink_to(f"{MOUNT}/res/step10")
    (made / "lost").symlink_to(f"{MOUNT}/other")
    report = node.stage_out(begun_folder(tmp_path), [OutItem("res", str(tmp_path / "back"))])
    assert os.readlink(tmp_path / "back/latest") == "step10"
    assert os.readlink(tmp_path / "back/lost") == f"{MOUNT}/other"
    (finding,) = report.findings
    assert finding.check == "stage-link" and finding.where == "lost"


def test_names_lie_within_others_folders(source: Path, tmp_path: Path) -> None:
    begun = staged(tmp_path, InItem(str(source), "a/b"), InItem(str(source / "small"), "a/c"))
    assert [one.name for one in begun.report.items] == ["a/b", "a/c"]
    assert Path(begun.report.items[1].target).read_bytes() == b"small"


def test_source_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    refused(2, "stage-source", lambda: staged(tmp_path, InItem(str(tmp_path / "no"), "x")))
    assert left(tmp_path) == []


def test_storage_that_is_not_there_is_named(source: Path, tmp_path: Path) -> None:
    where = str(tmp_path / "no" / f"{PREFIX}1")
    said = refused(121, "stage-place", lambda: node.stage_in(where, [InItem(str(source), "x")]))
    assert str(tmp_path / "no") in said and os.uname().nodename in said


def test_interrupted_stage_in_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def interrupt(what: str, count: int) -> None:
        if what == "copying":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        node.stage_in(
            str(tmp_path / f"{PREFIX}1"), [InItem(str(source), "x")], on_progress=interrupt
        )
    assert left(tmp_path) == []
    assert threading.active_count() == 1


# --- several runs on a node ------------------------------------------------------------------------


def test_two_runs_at_once_have_folders_of_their_own(source: Path, tmp_path: Path) -> None:
    one = staged(tmp_path, InItem(str(source), "x"), name="1", job="J=1", keep=True)
    two = staged(tmp_path, InItem(str(source), "x"), name="2", job="J=1")
    assert not two.report.items[0].reused  # the other run still has it
    assert one.report.items[0].target != two.report.items[0].target
    node.stage_out(begun_folder(tmp_path, "2"), [])
    assert snapshot(Path(one.report.items[0].target)) == snapshot(source)


def test_folder_of_a_killed_run_is_cleared_by_the_next_and_no_other(
    source: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, time\nfrom fairlead.transfer import node\nfrom fairlead.transfer.model import InItem\n"
        "node.stage_in(sys.argv[1], [InItem(sys.argv[2], 'x')])\nprint('ready', flush=True)\ntime.sleep(99)"
    )
    words = (sys.executable, "-c", code, begun_folder(tmp_path, "dead"), str(source))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline() == "ready\n"
        folder.clear_stale(str(tmp_path))  # it lives
        assert left(tmp_path) == [f"{PREFIX}dead"]
        other.kill()
    step = staged(tmp_path, InItem(str(source), "x"), name="step", hold=False)
    assert step.lock is None
    lives = staged(tmp_path, InItem(str(source), "x"), name="next")
    assert sorted(left(tmp_path)) == [f"{PREFIX}next", f"{PREFIX}step"]
    assert lives.lock is not None


def test_results_of_a_killed_run_are_kept_and_fetched_by_the_command_shown(
    source: Path, tmp_path: Path
) -> None:
    code = """
import os, sys, time
from fairlead.transfer import node
from fairlead.transfer.model import InItem, OutItem
outs = (OutItem("res", sys.argv[3]), OutItem("none", sys.argv[3] + "2"))
node.stage_in(sys.argv[1], [InItem(sys.argv[2], "x")], node.InOptions(outs=outs))
os.mkdir(f"{sys.argv[1]}/data/res")
open(f"{sys.argv[1]}/data/res/weights", "wb").write(b"result")
print("ready", flush=True)
time.sleep(99)
"""
    dead, target = begun_folder(tmp_path, "dead"), tmp_path / "back"
    words = (sys.executable, "-c", code, dead, str(source), str(target))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline() == "ready\n"
        other.kill()
    (finding,) = staged(tmp_path, InItem(str(source), "x"), name="next").report.findings
    assert (finding.check, finding.where) == ("stage-out", dead) and "res" in finding.what
    assert not Path(dead, "data/x").exists()  # what was staged in comes back from its source
    assert not staged(tmp_path, name="third").report.findings
    subprocess.run(shlex.split(finding.remedy.partition(": ")[2]), check=True)
    assert (target / "weights").read_bytes() == b"result"
    assert not Path(dead).exists()


def test_copy_of_results_that_was_killed_is_cleared_by_the_next_run_and_nothing_else(
    source: Path, tmp_path: Path
) -> None:
    code = """
import os, sys, time
from fairlead.transfer import node
from fairlead.transfer.model import OutItem
begun = node.stage_in(sys.argv[1], [])
os.mkdir(f"{sys.argv[1]}/data/res")
open(f"{sys.argv[1]}/data/res/weights", "wb").write(b"result")
def stop(what, count):
    if what == "copying":
        print("ready", flush=True)
        time.sleep(99)
node.stage_out(sys.argv[1], [OutItem("res", sys.argv[2])], on_progress=stop)
"""
    back = tmp_path / "back"
    back.mkdir()
    (back / ".mine.0123abcd.partial").write_text("of somebody else")
    words = (sys.executable, "-c", code, begun_folder(tmp_path, "dead"), str(back / "res"))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline() == "ready\n"
        folder.clear_stale(str(tmp_path))  # it lives
        assert len(list(back.iterdir())) == 2
        other.kill()
    staged(tmp_path, InItem(str(source), "x"), name="next")
    assert [path.name for path in back.iterdir()] == [".mine.0123abcd.partial"]


def test_what_the_job_has_is_used_again_when_it_is_still_right(
    source: Path, tmp_path: Path
) -> None:
    item = InItem(str(source), "x")

    def run(name: str, *, job: str = "J=1", keep: bool = True) -> bool:
        begun = staged(tmp_path, item, name=name, job=job, keep=keep)
        (one,) = begun.report.items
        assert snapshot(Path(one.target)) == snapshot(source)
        node.stage_out(begun_folder(tmp_path, name), [])
        assert begun.lock is not None
        os.close(begun.lock)
        return one.reused

    assert run("1") is False
    assert run("2") is True
    assert left(tmp_path) == [f"{PREFIX}2"]
    assert run("3", job="J=2") is False  # another job's
    assert run("4") is True
    large = Path(begun_folder(tmp_path, "4"), "data/x/deep/er/large")
    before = large.stat()
    with large.open("r+b") as stream:
        stream.write(b"other")
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))  # nothing but content tells
    assert run("5") is False
    (source / "small").write_bytes(b"changed")
    assert run("6") is False
    assert run("7", keep=False) is True
    assert left(tmp_path) == [f"{PREFIX}3"]


# --- the way back ----------------------------------------------------------------------------------


def result(tmp_path: Path, name: str = "res", content: bytes = b"result") -> node.Begun:
    begun = staged(tmp_path, name=name)
    place = Path(begun_folder(tmp_path, name), "data", name)
    place.mkdir()
    (place / "weights").write_bytes(content)
    return begun


def test_target_that_came_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    result(tmp_path)
    (tmp_path / "back").write_bytes(b"mine")
    report = node.stage_out(begun_folder(tmp_path, "res"), [OutItem("res", str(tmp_path / "back"))])
    (finding,) = report.findings
    assert finding.check == "stage-out" and not report.kept
    assert (tmp_path / "back").read_bytes() == b"mine"
    assert Path(finding.where, "weights").read_bytes() == b"result"
    assert left(tmp_path) == []


def test_what_cannot_be_copied_back_is_kept_and_fetched_by_the_command_shown(
    tmp_path: Path,
) -> None:
    begun = result(tmp_path)
    (Path(begun_folder(tmp_path, "res")) / "data/other").write_bytes(b"other result")
    (tmp_path / "file").touch()
    lost, other = tmp_path / "file/below", tmp_path / "file/too"
    items = [OutItem("res", str(lost)), OutItem("other", str(other))]
    report = node.stage_out(begun_folder(tmp_path, "res"), items)
    assert begun.lock is not None
    os.close(begun.lock)
    assert report.error == 123 and set(report.kept) == {"res", "other"}
    assert from_json(NodeReport, json.loads(json.dumps(to_json(report)))) == report
    folder.clear_stale(str(tmp_path))  # no later run removes it
    assert left(tmp_path) == [f"{PREFIX}res"]
    (tmp_path / "file").unlink()
    for finding, target in zip(report.findings, (lost, other), strict=True):
        assert finding.check == "stage-out"
        assert not target.exists()
        command = finding.remedy.partition(": ")[2]
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (lost / "weights").read_bytes() == b"result"
    assert other.read_bytes() == b"other result"
    assert left(tmp_path) == []


def test_interrupted_stage_out_keeps_all_that_is_not_back(tmp_path: Path) -> None:
    result(tmp_path)

    def interrupt(what: str, count: int) -> None:
        if what == "copying":
            raise KeyboardInterrupt

    back = tmp_path / "back"
    with pytest.raises(node.Interrupted) as caught:
        node.stage_out(
            begun_folder(tmp_path, "res"), [OutItem("res", str(back))], on_progress=interrupt
        )  # fmt: skip
    assert list(caught.value.report.kept) == ["res"]
    assert not back.exists() and left(tmp_path) == [f"{PREFIX}res"]
    assert Path(caught.value.report.kept["res"], "weights").read_bytes() == b"result"


def test_result_that_is_not_there_is_missing_and_the_rest_goes_back(tmp_path: Path) -> None:
    result(tmp_path)
    items = [OutItem("no", str(tmp_path / "no")), OutItem("res", str(tmp_path / "a/b/back"))]
    report = node.stage_out(begun_folder(tmp_path, "res"), items)
    assert report.missing == ("no",) and not report.kept
    assert (tmp_path / "a/b/back/weights").read_bytes() == b"result"


# --- as a step -------------------------------------------------------------------------------------


def test_of_many_processes_of_a_step_one_works(source: Path, tmp_path: Path) -> None:
    where, reports = begun_folder(tmp_path), tmp_path / "reports"
    reports.mkdir()

    def together(*words: str) -> list[dict[str, object]]:
        for path in reports.iterdir():
            path.unlink()
        line = [*MODULE, words[0], where, "--step", "--report", str(reports), *words[1:]]
        running = [subprocess.Popen(line) for _ in range(4)]
        assert [process.wait() for process in running] == [0] * 4
        return [json.loads(path.read_text()) for path in reports.iterdir()]

    came = together("in", "--item", str(source), "x")
    assert sorted(report["acted"] for report in came) == [False, False, False, True]  # type: ignore[type-var]
    before = snapshot(source)
    assert snapshot(Path(where, "data/x")) == before
    back = together("out", "--each", "--item", "x", str(tmp_path / "back"))
    # A process that comes when all is over finds no folder, and says so too.
    assert sum(bool(report["acted"]) for report in back) == 1
    assert snapshot(tmp_path / "back" / os.uname().nodename) == before
    assert left(tmp_path) == []


# --- free space ------------------------------------------------------------------------------------------


def in_small_storage(tmp_path: Path, options: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with ``small``, a file system in memory that only it sees."""
    small = tmp_path / "small"
    small.mkdir()
    spaces = ["unshare", "--mount"]
    if os.geteuid():
        spaces += ["--user", "--map-root-user"]
    mount = f'mount -t tmpfs -o {options} tmpfs "$1" && exec "$2" -c "$3" "$1"'
    words = [*spaces, "sh", "-c", mount, "sh", str(small), sys.executable, code]
    return subprocess.run(words, capture_output=True, text=True, check=False)


STAGE = """
import os, sys
from fairlead.base.errors import FairleadError
from fairlead.transfer import free_space, node
from fairlead.transfer.model import InItem
{before}
try:
    node.stage_in(sys.argv[1] + "/fairlead-stage.1", [InItem({source!r}, "x")])
except FairleadError as exc:
    print(int(exc.code), exc.findings[0].check, exc.findings[0].why, os.listdir(sys.argv[1]))
"""


def test_storage_that_is_too_small_is_reported_before_anything_is_copied(
    source: Path, tmp_path: Path
) -> None:
    code = STAGE.format(before="", source=str(source))
    done = in_small_storage(tmp_path, "size=10m", code)
    assert done.stdout.startswith("121 stage-room 22.0 MB are needed"), done.stdout + done.stderr
    assert "are missing" in done.stdout and done.stdout.endswith("[]\n")


def test_storage_with_too_few_inodes_is_reported(source: Path, tmp_path: Path) -> None:
    for number in range(50):
        (source / str(number)).touch()
    code = STAGE.format(before="", source=str(source))
    done = in_small_storage(tmp_path, "size=100m,nr_inodes=20", code)
    assert "121 stage-room 56 inodes are needed" in done.stdout, done.stdout + done.stderr


def test_storage_that_fills_up_meanwhile_is_reported_and_cleared(
    source: Path, tmp_path: Path
) -> None:
    code = STAGE.format(before="free_space.check = lambda *words: None", source=str(source))
    done = in_small_storage(tmp_path, "size=10m", code)
    assert done.stdout.startswith("121 stage-room No space left on device"), (
        done.stdout + done.stderr
    )
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("version", [1, 2])
def test_memory_of_the_jobs_cgroup_counts_where_data_lies_in_memory(
    version: int, source: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    names = ("memory.max", "memory.current", "inactive_file")
    line, top = "0::/job/step", "sys/fs/cgroup"
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        line, top = "4:cpu,memory:/job/step", "sys/fs/cgroup/memory"
    group = root / top / "job"
    (root / "proc/self").mkdir(parents=True)
    group.mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line + "\n")
    (root / "proc/self/mountinfo").write_text(
        f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path} rw - tmpfs x rw\n"
    )
    (root / "proc/meminfo").write_text("MemAvailable:   90000 kB\n")
    seen = [tree.scan(str(source), Links.REFUSE)]

    def limit(amount: int) -> None:
        (group / names[0]).write_text(f"{amount}\n")
        (group / names[1]).write_text(f"{30 << 20}\n")
        (group / "memory.stat").write_text(f"anon 5\n{names[2]} {10 << 20}\n")

    limit(60 << 20)
    free_space.check(str(tmp_path), seen, root)
    limit(40 << 20)
    said = refused(121, "stage-room", lambda: free_space.check(str(tmp_path), seen, root))
    assert "the job's cgroup /job has 21.0 MB left" in said
    limit(60 << 20)
    (root / "proc/meminfo").write_text("MemAvailable:   9000 kB\n")
    assert "this node has 9.2 MB available" in refused(
        121, "stage-room", lambda: free_space.check(str(tmp_path), seen, root)
    )
    (root / "proc/self/mountinfo").write_text("1 0 0:1 / / rw - ext4 x rw\n")
    free_space.check(str(tmp_path), seen, root)


def test_copy_is_not_slowed_to_a_poll_a_file(tmp_path: Path) -> None:
    """Many small copies in a row: none waits for a timer."""
    top = tmp_path / "source"
    top.mkdir()
    for number in range(30):
        (top / str(number)).write_bytes(b"x")
    output: list[str] = []
    copying.copy(
        tree.scan(str(top), Links.REFUSE),
        str(tmp_path / "copy"),
        lambda what, n: output.append(what),
    )
    assert len(output) <= 4, "the caller was woken by its timer"


def test_examples_in_docstrings_are_right() -> None:
    for module in (datawarp, digest):
        result_ = doctest.testmod(module)
        assert result_.attempted and not result_.failed


def test_time_of_a_folder_is_that_of_its_source(source: Path, tmp_path: Path) -> None:
    os.utime(source / "deep", (10**9, 10**9))
    begun = staged(tmp_path, InItem(str(source), "x"))
    assert Path(begun.report.items[0].target, "deep").stat().st_mtime == 10**9
    assert time.time() > 10**9


def test_step_of_another_run_of_the_job_takes_nothing_from_one_that_lives(
    source: Path, tmp_path: Path
) -> None:
    item = InItem(str(source), "x")
    more = {"job": "J=1", "keep": True, "hold": False}
    one = staged(tmp_path, item, name="1", **more)
    two = staged(tmp_path, item, name="2", **more)
    assert not two.report.items[0].reused
    assert snapshot(Path(one.report.items[0].target)) == snapshot(source)
    node.stage_out(begun_folder(tmp_path, "1"), [])
    assert staged(tmp_path, item, name="3", **more).report.items[0].reused


def test_step_imports_the_standard_library_only() -> None:
    """On each of ten thousand nodes it is started anew, from a file system that all share."""
    code = (
        "import sys, fairlead.transfer.__main__\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(node.__file__).parents[2])},
    )
    assert done.stdout.split() == ["__main__", "fairlead"], done.stdout + done.stderr


def test_interrupt_while_a_thread_starts_leaves_none_that_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool does not wait for that thread, whose file would come back after the copy was removed."""
    began, wrote = threading.Event(), []

    class Pool(ThreadPoolExecutor):
        def submit(self, work: Any) -> Any:  # type: ignore[override]
            threading.Thread(target=work).start()
            assert began.wait(60)
            raise KeyboardInterrupt

    def slow(*place: Any) -> None:
        began.set()
        time.sleep(0.2)
        wrote.append(place)

    monkeypatch.setattr(copying, "ThreadPoolExecutor", Pool)
    (tmp_path / "file").write_bytes(bytes(3 * LEAF))
    work = copying._Work(tree.scan(str(tmp_path), Links.KEEP), str(tmp_path / "copy"))
    with pytest.raises(KeyboardInterrupt):
        work.run(slow, lambda count: None)
    assert len(wrote) == 1  # what was under way, and it has ended
    time.sleep(0.5)
    assert len(wrote) == 1
