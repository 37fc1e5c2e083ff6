"""What is unpacked in the cache stays while it is used, and no longer."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.recorded import planned

from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.base.progress import Silent
from fairlead.engines import charliecloud
from fairlead.engines.model import Engine, Takes
from fairlead.image.open import Image
from fairlead.launch import unpack
from fairlead.swap.model import RUN_MOUNT, WITNESS, Bind
from fairlead.swap.staging import KEPT_S


class Sif(NamedTuple):
    """As much of a SIF as is needed to find its squashfs."""

    bytes: int

    @property
    def squashfs(self) -> Sif:
        return self

    @property
    def size(self) -> int:
        return self.bytes


CH_RUN = Engine(
    "charliecloud", "/usr/bin/ch-run", True, (), (), takes=Takes.FOLDER, makes_places=False
)


def aged(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def folder(unpacked: Path, name: str, seconds: float) -> Path:
    """An image as a folder, with its record."""
    root = unpacked / name
    (root / "usr").mkdir(parents=True)
    unpack._write_record(root, unpack._state(root), ())
    aged(unpacked / f"{name}.json", seconds)
    return root


def squashfs(unpacked: Path, name: str, seconds: float) -> Path:
    """The squashfs of a SIF, as engines get it that open no SIF."""
    path = unpacked / f"{name}.squashfs"
    path.write_bytes(b"hsqs")
    aged(path, seconds)
    return path


def launch(cache: Path, opened: Path) -> None:
    """What every launch does with the image that it opens."""
    plan = replace(planned(), engine=CH_RUN, opened=str(opened))
    unpack.ensure(plan, cache, environ={})


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    (tmp_path / "unpacked").mkdir()
    return tmp_path / "unpacked"


def test_launch_removes_squashfs_files_and_folders_that_nothing_has_opened_for_long(
    unpacked: Path,
) -> None:
    used = folder(unpacked, "used", KEPT_S + 60)
    gone = [folder(unpacked, "a", KEPT_S + 60), squashfs(unpacked, "b", KEPT_S + 60)]
    stay = [folder(unpacked, "c", KEPT_S - 60), squashfs(unpacked, "d", KEPT_S - 60)]
    launch(unpacked.parent, used)
    assert [path.exists() for path in (*gone, *stay, used)] == [False] * 2 + [True] * 3
    assert not (unpacked / "a.json").exists() and (unpacked / "used.json").exists()


def test_launches_look_once_a_day(unpacked: Path) -> None:
    used = folder(unpacked, "used", 0)
    launch(unpacked.parent, used)
    old = squashfs(unpacked, "b", KEPT_S + 60)
    launch(unpacked.parent, used)
    assert old.exists()
    aged(unpacked / ".swept", 25 * 3600)
    launch(unpacked.parent, used)
    assert not old.exists()


def flip(file: Path) -> None:
    """One other byte; the file's size and times are as they were, but for the one that nobody can set."""
    before = file.stat()
    with file.open("r+b") as stream:
        first = stream.read(1)
        stream.seek(0)
        stream.write(bytes([first[0] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def swapped(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.chmod(file.stat().st_mode & 0o7777)
    other.replace(file)


CHANGES: dict[str, Callable[[Path], object]] = {
    "byte": lambda root: flip(root / "usr/bin/python3"),
    "replaced": lambda root: swapped(root / "usr/bin/python3"),
    "mode": lambda root: (root / "usr/bin/python3").chmod(0o4755),
    "mode of a folder": lambda root: (root / "usr/bin").chmod(0o777),
    "gone": lambda root: (root / "usr/bin/python3").unlink(),
    "new deep inside": lambda root: (root / "usr/bin/new").touch(),
    "new folder": lambda root: (root / "usr/lib").mkdir(),
    "link": lambda root: ((root / "bin").unlink(), (root / "bin").symlink_to("/tmp")),
    "file in a place": lambda root: (root / "opt/data/libmpi.so.12").touch(),
    "place that is a link": lambda root: ((root / "opt/data").rmdir(), (root / "opt/data").symlink_to("/tmp")),
    "file of a place has content": lambda root: (root / "opt/table").write_text("x"),
}  # fmt: skip


@pytest.fixture
def tree(unpacked: Path) -> Path:
    """An image as a folder, with the places of two binds."""
    root = unpacked / "tree"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/python3").write_text("a program")
    (root / "bin").symlink_to("usr/bin")
    unpack._write_record(root, unpack._state(root), ())
    source = unpacked.parent / "source"
    source.mkdir()
    plan = replace(planned(), engine=CH_RUN, opened=str(root))
    binds = (Bind(str(source), "/opt/data"), Bind(__file__, "/opt/table"))
    unpack.ensure(plan, unpacked.parent, binds=binds, environ={})
    return root


def test_folder_with_places_of_binds_is_whole_and_stays_it_in_the_next_launch(tree: Path) -> None:
    assert (tree / "opt/data").is_dir() and (tree / "opt/table").is_file()
    assert unpack.is_whole(tree)
    inode = tree.stat().st_ino
    launch(tree.parents[1], tree)
    assert tree.stat().st_ino == inode and unpack.is_whole(tree)


def test_place_of_the_witness_is_a_file_also_before_it_is_compiled(tree: Path) -> None:
    plan = replace(planned(), engine=CH_RUN, opened=str(tree))
    binds = (Bind(str(tree / "not-yet.so"), WITNESS), Bind(str(tree / "not-yet"), "/opt/staged"))
    unpack.ensure(plan, tree.parents[1], binds=binds, environ={})
    assert (tree / WITNESS[1:]).is_file() and (tree / "opt/staged").is_dir()


def test_places_that_an_engine_binds_over_by_itself_are_made_where_an_image_lacks_them(
    tree: Path,
) -> None:
    engine = replace(CH_RUN, own_binds=charliecloud.ENGINE.own_binds)
    plan = replace(planned(), engine=engine, opened=str(tree))
    unpack.ensure(plan, tree.parents[1], environ={})
    assert (tree / "etc/group").is_file() and (tree / "proc").is_dir() and unpack.is_whole(tree)


def test_folder_of_the_users_own_without_places_is_refused_before_the_launch(tree: Path) -> None:
    """The command that the remedy names makes all of them."""
    plan = replace(
        planned(),
        image=str(tree),
        opened=str(tree),
        engine=replace(CH_RUN, own_binds=("/proc/", "/etc/group")),
    )
    (finding,) = unpack.without_places(plan)
    assert (finding.check, finding.severity) == ("bind-place", Severity.ERROR)
    subprocess.run(["sh", "-c", finding.remedy.partition(";")[0]], check=True)
    assert unpack.without_places(plan) == ()
    unpack.ensure(plan, tree.parents[1], binds=(Bind("/", RUN_MOUNT),), environ={})
    assert not unpack.without_places(replace(plan, opened=f"{tree}.other"))
    assert not unpack.without_places(replace(plan, engine=replace(CH_RUN, makes_places=True)))


@pytest.mark.parametrize("change", CHANGES)
def test_folder_that_was_changed_is_not_whole(change: str, tree: Path) -> None:
    CHANGES[change](tree)
    assert not unpack.is_whole(tree)
    assert "was written to or replaced" in unpack.changed(
        replace(planned(), engine=CH_RUN, opened=str(tree))
    )


def test_squashfs_that_was_changed_is_extracted_again(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"hsqs" + os.urandom(5000)
    image, bare = unpacked / "app.sif", unpacked / f"{hashlib.sha256(content).hexdigest()}.squashfs"
    read: list[int] = []

    def extract(image: Path, item: object, out: object) -> None:
        read.append(1)
        out.write(content)  # type: ignore[attr-defined]

    monkeypatch.setattr(unpack, "read_sif", lambda path: Sif(len(content)))
    monkeypatch.setattr(unpack, "copy_object", extract)
    take_out = lambda: unpack._take_out(image, bare, unpacked.parent, Silent())  # noqa: E731
    take_out()
    take_out()
    assert len(read) == 1
    flip(bare)
    take_out()
    assert len(read) == 2 and bare.read_bytes() == content
    content = content[::-1]  # the image is another by now
    flip(bare)
    with pytest.raises(FairleadError, match="changed while its squashfs was extracted") as caught:
        take_out()
    assert caught.value.code is ExitCode.LAUNCH_FAILED and not bare.exists()


@pytest.mark.parametrize(
    ("takes", "form", "folder", "suffix"),
    [
        (Takes.FILE, "sif", False, None),
        (Takes.FILE, "sif", True, ""),
        (Takes.FILE, "squashfs", True, ""),
        (Takes.SQUASHFS, "sif", False, ".squashfs"),
        (Takes.SQUASHFS, "squashfs", False, None),
        (Takes.SQUASHFS, "squashfs", True, ""),
        (Takes.FOLDER, "sif", False, ""),
        (Takes.FILE, "sandbox", True, None),
        (Takes.NAME, "squashfs", True, None),
    ],
)
def test_engine_opens_a_folder_where_it_must_or_where_that_is_wanted_and_can_be(
    takes: Takes, form: str, folder: bool, suffix: str | None
) -> None:
    image = Image("app", "/images/app", form, 1, "abc", True, planned().facts)
    found = unpack.opened(image, replace(CH_RUN, takes=takes), Path("/cache"), folder=folder)
    assert found == ("/images/app" if suffix is None else f"/cache/unpacked/abc{suffix}")


APPTAINER = Engine("apptainer", "/usr/bin/apptainer", False, (), ())
NFS = "1 0 0:1 / / rw - ext4 disk rw\n2 1 0:2 / /cache rw - nfs4 server:/home rw\n"


@pytest.mark.parametrize(
    ("engine", "nodes", "mounts", "found"),
    [
        (APPTAINER, 1, NFS.partition("\n")[0], []),
        (APPTAINER, 1, NFS, ["warning: the unpacked image is on a network file system"]),
        (APPTAINER, 2, NFS, ["warning: every node will read the unpacked image from a network file system"]),
        (APPTAINER, 0, NFS, ["warning: every node will read the unpacked image from a network file system"]),
        (replace(APPTAINER, takes=Takes.NAME, kind="shifter"), 1, NFS, ["error: shifter cannot open a folder"]),
        (replace(APPTAINER, forbids_folders="allow container dir = no"), 1, "", ["error: the engine's configuration forbids images that are folders"]),
    ],
)  # fmt: skip
def test_folder_that_is_a_bad_idea_is_objected_to(
    engine: Engine, nodes: int, mounts: str, found: list[str]
) -> None:
    plan = replace(planned(), engine=engine, opened="/cache/fairlead/unpacked/abc")
    said = unpack.objections(plan, "--unpack", nodes, mounts)
    assert [f"{f.severity}: {f.what}" for f in said] == found


def test_what_is_unpacked_is_listed_with_its_image_and_when_it_was_used(unpacked: Path) -> None:
    root, bare = folder(unpacked, "abc", 60), squashfs(unpacked, "def", 120)
    unpack._write_record(root, "state", (), image="/images/app.sif", bytes=7)
    (unpacked / ".abc.1.partial").mkdir()
    one, two = unpack.unpacked(unpacked.parent)
    assert (one.path, one.digest, one.image, one.bytes) == (root, "abc", "/images/app.sif", 7)
    assert (two.path, two.digest, two.image, two.bytes) == (bare, "def", "", 4)
    assert two.used < one.used


def test_unpacked_image_that_others_could_have_laid_out_is_refused(unpacked: Path) -> None:
    used = folder(unpacked, "used", 0)
    unpacked.chmod(0o777)
    with pytest.raises(FairleadError) as caught:
        launch(unpacked.parent, used)
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED
    assert [finding.check for finding in caught.value.findings] == ["cache-exposed"]
