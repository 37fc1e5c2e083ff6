"""What a node answers before its ranks start: the real script, on files and folders of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recorded import planned

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.engines.model import Takes
from fairlead.image.open import Image
from fairlead.launch import node_check, nodes
from fairlead.launch.node_check import NodeCheck, Opened
from fairlead.swap.model import Plan

Ask = Callable[[Opened | None], str]


def plan_of(path: Path, takes: Takes = Takes.FILE) -> Plan:
    plan = planned()
    engine = replace(plan.engine, takes=takes)
    return replace(plan, image=str(path), opened=str(path), engine=engine)


def image_of(path: Path, digest: str, kind: str = "squashfs") -> Image:
    return Image(str(path), str(path), kind, 0, digest, True, planned().facts)


@pytest.fixture
def squashfs(tmp_path: Path) -> Path:
    path = tmp_path / "an image's.squashfs"
    path.write_bytes(os.urandom(300_000))
    return path


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Has a node answer; what was asked before is forgotten, but for what it keeps itself."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "runtime").mkdir()

    def go(opened: Opened | None) -> str:
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        node_check.write(folder, opened)
        done = subprocess.run(["/bin/sh", folder / "node.sh", folder], capture_output=True, text=True, check=False)  # fmt: skip
        answer = (folder / f"node.{nodes.key()}").read_text().strip()
        assert done.stderr == ""
        assert (done.returncode == 0) is answer.startswith("ok ")
        return answer

    return go


def sha256(path: Path) -> str:
    return subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout[:64]  # fmt: skip


def file_of(path: Path) -> Opened:
    found = node_check.opened(plan_of(path), image_of(path, sha256(path)))
    assert found
    return found


def test_same_file_of_the_same_kernel_is_not_read(squashfs: Path, ask: Ask) -> None:
    assert ask(replace(file_of(squashfs), expected="never compared")).startswith("ok ")


def test_copy_with_the_same_bytes_passes_and_its_digest_is_kept(
    squashfs: Path, ask: Ask, tmp_path: Path
) -> None:
    there = replace(file_of(squashfs), same="another machine's")
    assert ask(there).startswith("ok ")
    [kept] = (tmp_path / "runtime").glob("fairlead-digests-*/*")
    kept.write_text("it is read\n")
    assert ask(replace(there, expected="it is read")).startswith("ok ")


def test_kept_digest_counts_for_the_unchanged_file_only(
    squashfs: Path, ask: Ask, tmp_path: Path
) -> None:
    there = replace(file_of(squashfs), same="")
    assert ask(there).startswith("ok ")
    before = squashfs.stat()
    with squashfs.open("r+b") as file:
        file.seek(1000)
        file.write(b"other")
    os.utime(squashfs, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ask(there).startswith("differs ")


def test_kept_digests_that_others_could_write_are_left_alone(
    squashfs: Path, ask: Ask, tmp_path: Path
) -> None:
    folder = tmp_path / "runtime" / f"fairlead-digests-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert ask(replace(file_of(squashfs), same="")).startswith("ok ")
    assert not list(folder.iterdir())


@pytest.mark.parametrize("at", [0, 150_000, 299_999])
def test_file_with_one_other_byte_differs(at: int, squashfs: Path, ask: Ask) -> None:
    there = file_of(squashfs)
    data = bytearray(squashfs.read_bytes())
    data[at] ^= 1
    squashfs.write_bytes(data)
    assert ask(there).startswith("differs ")


@pytest.mark.parametrize("at", [10, 5000, 99_990])
def test_byte_outside_of_the_file_system_differs_too(at: int, squashfs: Path, ask: Ask) -> None:
    data = bytearray(squashfs.read_bytes()[:100_000])
    squashfs.write_bytes(data)
    inner = squashfs.with_name("inner")
    inner.write_bytes(data[4096:90_000])
    rest = squashfs.with_name("rest")
    rest.write_bytes(data[:4096] + data[90_000:])
    there = Opened(
        str(squashfs), "file", "", f"{sha256(inner)} {sha256(rest)}", 4096, 90_000 - 4096
    )
    assert ask(there).startswith("ok ")
    data[at] ^= 1
    squashfs.write_bytes(data)
    assert ask(there).startswith("differs ")


@pytest.mark.parametrize("state", ["gone", "unreadable"])
def test_image_that_is_not_to_be_read_is_reported(
    state: str, squashfs: Path, ask: Ask, tmp_path: Path
) -> None:
    there = file_of(squashfs)
    squashfs.unlink()
    if state == "unreadable":
        squashfs.symlink_to(squashfs.name)  # a loop, so that root fails as well
    assert ask(there) == "unread there is no such file there"
    with pytest.raises(FairleadError) as found:
        NodeCheck(tmp_path / "run", there).look()
    assert found.value.code is ExitCode.PROOF_FAILED
    assert str(squashfs) in found.value.findings[0].where


def tree(folder: Path) -> Path:
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "usr/bin/python3").write_text("a program")
    (folder / "usr/bin/with space\nand line").write_text("odd")
    (folder / "bin").symlink_to("usr/bin")
    return folder


CHANGES: dict[str, Callable[[Path], object]] = {
    "size": lambda root: (root / "usr/bin/python3").write_text("another program"),
    "new": lambda root: (root / "usr/bin/new").touch(),
    "gone": lambda root: (root / "usr/bin/python3").unlink(),
    "mode": lambda root: (root / "usr/bin/python3").chmod(0o4755),
    "link": lambda root: ((root / "bin").unlink(), (root / "bin").symlink_to("/tmp")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_folder_with_other_files_differs(change: str, ask: Ask, tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    found = node_check.opened(plan_of(root), image_of(root, "", "sandbox"))
    assert found and ask(replace(found, same="")).startswith("ok ")
    CHANGES[change](root)
    assert ask(replace(found, same="")).startswith("differs ")


def test_folder_for_one_host_passes_there_without_being_listed_and_nowhere_else(
    ask: Ask, tmp_path: Path
) -> None:
    root = tree(tmp_path / "root")
    found = node_check.opened(plan_of(root), image_of(root, "", "sandbox"), alone=True)
    assert found and not found.expected and ask(found).startswith("ok ")
    assert ask(replace(found, same="")).startswith("unread ")


def test_folder_of_a_signed_image_is_compared_by_content(ask: Ask, tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    verified = object()
    signed = node_check.opened(plan_of(root), image_of(root, "", "sandbox"), verified)  # type: ignore[arg-type]
    plain = node_check.opened(plan_of(root), image_of(root, "", "sandbox"))
    assert signed and plain
    program = root / "usr/bin/python3"
    before = program.stat()
    program.write_text("A program")
    os.utime(program, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ask(replace(plain, same="")).startswith("ok ")
    assert ask(replace(signed, same="")).startswith("differs ")


def test_engine_that_opens_by_name_has_nothing_to_compare(squashfs: Path) -> None:
    assert node_check.opened(plan_of(squashfs, Takes.NAME), image_of(squashfs, "")) is None


def test_node_that_differs_is_named_with_both_digests(
    squashfs: Path, ask: Ask, tmp_path: Path
) -> None:
    there = replace(file_of(squashfs), same="")
    squashfs.write_bytes(b"other")
    assert ask(there).startswith("differs ")
    with pytest.raises(FairleadError) as found:
        NodeCheck(tmp_path / "run", there).look()
    [finding] = found.value.findings
    assert (finding.check, found.value.code) == ("image-on-nodes", ExitCode.PROOF_FAILED)
    assert os.uname().nodename in finding.what
    assert there.expected[:16] in finding.why


def test_little_shared_memory_is_named_with_its_host(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_check, "LEAST_SHM_KIB", 1 << 50)
    assert ask(None).startswith("shm ")
    with pytest.raises(FairleadError) as found:
        NodeCheck(tmp_path / "run", None).look()
    assert found.value.code is ExitCode.LAUNCH_FAILED
    assert found.value.findings[0].where == f"{os.uname().nodename}: /dev/shm"


def test_ranks_of_a_node_wait_for_one_answer(squashfs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    node_check.write(folder, file_of(squashfs))
    asked = [subprocess.Popen(["/bin/sh", folder / "node.sh", folder]) for _ in range(8)]
    assert [process.wait() for process in asked] == [0] * 8
    assert len(list(folder.glob("node.*.*"))) == 1
    assert node_check.verified_hosts(folder) == {os.uname().nodename}


@pytest.mark.parametrize("shell", ["dash", "bash --posix", "busybox sh"])
def test_script_is_one_of_every_shell(shell: str, squashfs: Path, tmp_path: Path) -> None:
    words = shell.split()
    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not installed")
    folder = tmp_path / "run"
    folder.mkdir()
    node_check.write(folder, replace(file_of(squashfs), same=""))
    assert subprocess.run([*words, folder / "node.sh", folder], check=False).returncode == 0
