"""Images that are made so that reading them never ends: each limit is named, wherever they are read, and however they are
wrapped."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.compiled import CALLS, MAIN, MPICH, PLAIN, compiled

from fairlead.base.errors import FairleadError
from fairlead.base.regular import open_regular
from fairlead.elf import reader
from fairlead.elf.loader import system_folders
from fairlead.image import budget, mount, scan
from fairlead.image.folder import state_of
from fairlead.image.mount import look, look_into
from fairlead.image.open import open_image
from fairlead.image.tree_digest import scan_folder

FEW_S = 20  # a look that stands still is ended, and fails


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "tree"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/lib").mkdir()
    yield root
    subprocess.run(["rm", "-rf", "--", root], check=True)  # shutil cannot remove deep ones


def nested(root: Path, count: int, name: str = "d") -> None:
    above = os.open(root, os.O_RDONLY)
    for _ in range(count):
        os.mkdir(name, dir_fd=above)
        below = os.open(name, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)


def packed(root: Path) -> Path:
    """The tree as a squashfs."""
    target = root.parent / "image.squashfs"
    made = subprocess.Popen(["tar", "-C", root, "--sparse", "-c", "."], stdout=subprocess.PIPE)
    subprocess.run(["tar2sqfs", "-q", "-f", "-c", "gzip", target], stdin=made.stdout, check=True)
    assert made.wait() == 0
    return target


def refused(action: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(FairleadError) as caught:
        action()
    (finding,) = caught.value.findings
    assert finding.check == "image-limit" and finding.remedy
    return finding.where, finding.why


WAYS: dict[str, Callable[[Path], Any]] = {
    "facts": look_into,
    "digest": scan_folder,
    "state": state_of,
    "image": lambda root: open_image(str(root)),
    "squashfs": lambda root: look(packed(root), 0),
}
EACH_WAY = pytest.mark.parametrize("way", WAYS)


@EACH_WAY
@pytest.mark.parametrize("count", [250, pytest.param(3000, marks=pytest.mark.full)])
def test_nested_folders_end_at_the_limit_of_depth(tree: Path, way: str, count: int) -> None:
    nested(tree, count)
    where, why = refused(lambda: WAYS[way](tree))
    assert why == "limit of depth: more than 200 folders lie in one another"
    assert (
        "/d/d/" in where and len(where) < 500 and ("image.squashfs" in where) == (way == "squashfs")
    )


@pytest.mark.parametrize("way", ["facts", "digest", "state", "image"])
def test_long_names_end_at_the_limit_of_names(tree: Path, way: str) -> None:
    nested(tree, 20, "n" * 250)
    assert "limit of names: the path" in refused(lambda: WAYS[way](tree))[1]


@EACH_WAY
def test_many_entries_end_at_the_limit_of_entries(
    tree: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "squashfs":
        pytest.skip("a process of its own: the limit is the real one")
    monkeypatch.setattr(budget, "MOST_ENTRIES", 100)
    for number in range(101):
        (tree / f"file{number}").touch()
    assert (
        refused(lambda: WAYS[way](tree))[1]
        == "limit of entries: it has more than 100 files and folders"
    )


@pytest.mark.parametrize("way", ["facts", "digest", "image", "squashfs"])
def test_slow_look_ends_at_the_limit_of_time(
    tree: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_IMAGE_LIMIT_S", "0.00001")
    (tree / "file").write_bytes(b"x")
    with pytest.raises(FairleadError) as caught:
        WAYS[way](tree)
    (finding,) = caught.value.findings
    assert finding.why == "limit of time: looking into it took longer than 1e-05 s"
    assert "FAIRLEAD_IMAGE_LIMIT_S" in finding.remedy


def test_read_that_does_not_return_ends_at_the_limit_of_time(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = packed(tree)
    stuck = tmp_path / "bin/squashfuse_ll"
    stuck.parent.mkdir()
    stuck.write_text("#!/bin/sh\nexec sleep 1000\n")
    stuck.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stuck.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAIRLEAD_IMAGE_LIMIT_S", "0.5")
    monkeypatch.setattr(mount, "_LONGEST_START_S", 0.5)
    assert "limit of time" in refused(lambda: look(image, 0))[1]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_limit_that_is_not_a_number_of_seconds_is_refused(
    tree: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_IMAGE_LIMIT_S", text)
    assert refused(lambda: look_into(tree))[0] == f"FAIRLEAD_IMAGE_LIMIT_S={text}"


# --- hard links ---------------------------------------------------------------------------------------


def linked(root: Path, file: Path, count: int) -> None:
    for number in range(count):
        os.link(file, root / f"usr/lib/libx{number}.so.1")


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read as ELF files."""
    seen: list[Path] = []
    opened = reader._opened
    monkeypatch.setattr(reader, "_opened", lambda path: seen.append(path) or opened(path))
    reader._read.cache_clear()
    reader._symbols_of.cache_clear()
    return seen


LINKS = pytest.mark.parametrize("count", [700, pytest.param(30_000, marks=pytest.mark.full)])


@LINKS
@pytest.mark.parametrize("kind", ["library", "damaged", "program"])
def test_hard_links_are_read_once(
    tree: Path, kind: str, count: int, read_files: list[Path]
) -> None:
    if kind == "library":
        file = compiled(tree / "usr/lib/libplain.so", "int f(void) { return 1; }")
    elif kind == "damaged":
        file = tree / "usr/lib/libbad.so"
        file.write_bytes(b"\x7fELF" + bytes(200))
    else:
        mpi = compiled(tree / "usr/lib/libmpi.so.12", MPICH)
        file = compiled(tree / "usr/bin/app", CALLS + MAIN, str(mpi))
    linked(tree, file, count)
    facts = look_into(tree).facts
    assert len(read_files) <= 4  # facts and symbols of program and MPI
    assert facts.files == {"library": count + 1, "damaged": 0, "program": count + 2}[kind]
    assert len(facts.consumers) == (count + 1 if kind == "program" else 0)


@LINKS
def test_hard_links_to_an_mpi_end_at_the_limit_of_mpis(tree: Path, count: int) -> None:
    linked(tree, compiled(tree / "usr/lib/libmpi.so.12", MPICH), count)
    why = "limit of MPI libraries: it has more than 500, hard links included"
    assert refused(lambda: look_into(tree))[1] == why
    if count < 1000:  # tar2sqfs takes minutes for 30,000
        assert refused(lambda: WAYS["squashfs"](tree))[1] == why


# --- sizes --------------------------------------------------------------------------------------------


def test_sparse_files_of_6_gib_cost_nothing(tree: Path) -> None:
    library = compiled(tree / "usr/lib/libplain.so", "int f(void) { return 1; }")
    os.truncate(library, 6 << 30)
    for name, magic in (("libnone.so", b"\x7fELF"), ("script", b"#!/bin/sh\n")):
        file = tree / "usr/lib" / name
        file.write_bytes(magic)
        os.truncate(file, 6 << 30)
        file.chmod(0o755)
    seen = look_into(tree)
    assert (seen.facts.files, list(seen.facts.programs)) == (1, ["/usr/lib/script"])


def test_sparse_file_beyond_all_images_ends_at_the_limit_of_size(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MOST_BYTES", 3 << 30)
    with (tree / "holes").open("wb") as stream:
        stream.truncate(6 << 30)
    where, why = refused(lambda: look_into(tree, whole=True))
    assert where.endswith(", /holes") and why.startswith("limit of size: ")


@pytest.mark.parametrize(
    "name",
    [".fairlead/image.json", "etc/os-release", "var/lib/dpkg/status", "p.dist-info/METADATA"],
)
def test_long_lists_end_at_the_limit_of_size(tree: Path, name: str) -> None:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    with (tree / name).open("wb") as stream:
        stream.truncate(6 << 30)
    where, why = refused(lambda: look_into(tree))
    assert where.endswith(f", /{name}") and why.startswith("limit of size: ")


def section(file: Path, name: bytes, **fields: int) -> None:
    """Changes fields of a section's header in an ELF file."""
    raw = bytearray(file.read_bytes())
    table, size, count, names = (
        struct.unpack_from(form, raw, at)[0]
        for form, at in (("<Q", 40), ("<H", 58), ("<H", 60), ("<H", 62))
    )
    texts = struct.unpack_from("<Q", raw, table + size * names + 24)[0]
    places = {"kind": ("<I", 4), "offset": ("<Q", 24), "size": ("<Q", 32), "info": ("<I", 44)}
    for number in range(count):
        begin = texts + struct.unpack_from("<I", raw, table + size * number)[0]
        if raw[begin : raw.index(b"\0", begin)] == name:
            for field, value in fields.items():
                form, at = places[field]
                struct.pack_into(form, raw, table + size * number + at, value)
            file.write_bytes(raw)
            return
    raise AssertionError(name)


# A library of it has symbol versions, both needed and its own.
SYSTEM = "int puts(const char *); int f(void) { return puts(0); }"


@pytest.mark.parametrize(
    "fields",
    [{"size": 6 << 30, "offset": 0}, {"size": 6 << 30, "kind": 8}],
    ids=["sparse", "nobits"],
)
@pytest.mark.parametrize("name", [b".dynstr", b".dynsym", b".gnu.version_d", b".gnu.version_r"])
def test_elf_file_with_a_huge_table_is_refused_or_costs_nothing(
    tree: Path, name: bytes, fields: dict[str, int]
) -> None:
    versions = tree.parent / "versions"
    versions.write_text("GLIBC_2.99 { global: call; };")
    script = f"-Wl,--version-script={versions}"
    file = compiled(tree / "usr/lib/libx.so", CALLS + SYSTEM, script)
    section(file, name, **fields)
    os.truncate(file, 7 << 30)
    try:
        assert look_into(tree).facts.files in (0, 1)
    except FairleadError as exc:
        assert (
            exc.findings[0].check == "image-limit" and "/usr/lib/libx.so" in exc.findings[0].where
        )


def test_elf_file_with_endless_notes_ends_at_the_limit_of_size(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_MOST_READS", 5000)
    file = compiled(tree / "usr/bin/app", PLAIN, "-Wl,--build-id")
    section(file, b".note.gnu.build-id", offset=1 << 30, size=5 << 30)
    os.truncate(file, 6 << 30)
    assert refused(lambda: look_into(tree))[1].endswith("entries than real files")


# --- kinds --------------------------------------------------------------------------------------------

SPECIAL = ("etc/os-release", "etc/ld.so.conf", "var/lib/dpkg/status", "usr/lib/libmpi.so.12",
           "usr/bin/python3.11", "p.dist-info/METADATA", ".fairlead/image.json", "bin/sh")  # fmt: skip


def put_special(root: Path) -> None:
    for name in SPECIAL:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path, 0o777)
    if os.geteuid() == 0:
        os.mknod(root / "usr/lib/libmpi.so.40", stat.S_IFCHR | 0o777, os.makedev(1, 5))  # zeros
        os.mknod(root / "usr/lib/libc.so.6", stat.S_IFBLK | 0o777, os.makedev(240, 0))
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(root)  # a socket's path has at most 108 bytes
        server.bind("libsocket.so")
        os.chdir(here)


@pytest.mark.parametrize("way", ["facts", "image", "squashfs"])
def test_pipes_devices_and_sockets_are_not_opened(tree: Path, way: str) -> None:
    put_special(tree)
    found = WAYS[way](tree)
    assert found.facts.files == 0


def test_digest_of_a_tree_with_pipes_opens_none(tree: Path) -> None:
    put_special(tree)
    found = scan_folder(tree)
    assert {found[name].kind for name in SPECIAL} == {"pipe"}


def test_file_that_becomes_a_pipe_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at it and the opening."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    regular = Path(__file__).stat()
    monkeypatch.setattr(Path, "stat", lambda *a, **k: regular)
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=r"regular|symbolic"):
            open_regular(tmp_path / name)
    with pytest.raises(OSError, match="regular"):
        open_regular(tmp_path / "link", follow=True)


# --- the loader's configuration -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    ["include /etc/ld.so.conf", "include ld.so.conf.d/*.conf", "include **/**/**/**/**/*", "include",
     "include ../../../../etc/passwd", "include /../..", "/" + "x" * 300],
)  # fmt: skip
def test_loader_configuration_that_includes_itself_is_read_once(tree: Path, line: str) -> None:
    (tree / "etc/ld.so.conf.d").mkdir(parents=True)
    (tree / "opt/lib").mkdir(parents=True)
    (tree / "etc/ld.so.conf").write_text(f"{line}\n/opt/lib\n")
    (tree / "etc/ld.so.conf.d/a.conf").write_text("include /etc/ld.so.conf.d/*.conf\n/usr/lib\n")
    (tree / "etc/ld.so.conf.d/b.conf").symlink_to("/etc/ld.so.conf")
    assert tree / "opt/lib" in system_folders(tree)
    assert all(tree in folder.parents for folder in system_folders(tree))


def test_loader_configuration_is_looked_for_inside_the_tree(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("/opt/lib\n")
    (tree / "opt/lib").mkdir(parents=True)
    (tree / "etc").mkdir()
    (tree / "etc/ld.so.conf").symlink_to(tmp_path / "outside")
    assert tree / "opt/lib" not in system_folders(tree)


# --- damaged squashfs ---------------------------------------------------------------------------------

TABLES = {"inode": 64, "directory": 72, "id": 48, "fragment": 80, "export": 88, "xattr": 56}


def damage(image: Path, how: str) -> None:
    raw = bytearray(image.read_bytes())
    if how == "zeros behind the superblock":
        raw[96:] = bytes(len(raw) - 96)
    elif how == "truncated":
        del raw[len(raw) // 3 :]
    elif how == "root inode":
        raw[32:40] = b"\xff\x1f\0\0\0\0\0\0"
    elif how == "compressor":
        raw[20:22] = b"\x09\0"
    elif how == "version":
        raw[28:30] = b"\x09\0"
    elif how == "noise":
        inodes = struct.unpack_from("<Q", raw, TABLES["inode"])[0]
        raw[inodes + 2 : inodes + 200] = bytes(number * 7 % 256 for number in range(198))
    else:
        raw[TABLES[how] : TABLES[how] + 8] = struct.pack("<Q", len(raw) - 3)
    image.write_bytes(raw)


@pytest.mark.parametrize(
    "how",
    ["zeros behind the superblock", "truncated", "root inode", "compressor", "version", "noise", "inode",
     "directory", "id"],
)  # fmt: skip
def test_damaged_squashfs_gets_its_reason(
    tree: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (tree / f"file{number}").write_bytes(os.urandom(100) * number)
    image = packed(tree)
    damage(image, how)
    monkeypatch.setenv("FAIRLEAD_IMAGE_LIMIT_S", str(FEW_S))
    with pytest.raises(FairleadError) as caught:
        look(image, 0)
    (finding,) = caught.value.findings
    assert finding.check == "image-mount" and "did not mount" not in finding.why and finding.why


def test_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a squashfs with damaged folders."""
    (tree / "usr/lib/deep").mkdir()
    listed = os.scandir

    def broken(path: str) -> object:
        if str(path).endswith("deep"):
            raise OSError(5, "Input/output error", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", broken)
    with pytest.raises(OSError, match="Input/output error"):
        scan.scan_tree(tree)
    with pytest.raises(FairleadError) as caught:
        open_image(str(tree))
    assert "Input/output error" in caught.value.findings[0].why


def test_tools_of_these_tests_are_here() -> None:
    assert shutil.which("tar2sqfs") and shutil.which("squashfuse_ll")
