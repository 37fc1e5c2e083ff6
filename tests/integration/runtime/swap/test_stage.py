"""The staged folder: whole or not there, whatever happens to the process that makes it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recorded import planned

from fairlead import native
from fairlead.base import seals
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.elf.facts import AbiFamily
from fairlead.swap import staging as stage
from fairlead.swap.model import Plan, StagedFile, Staging


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan whose files exist."""
    host = tmp_path / "host"
    (host / "etc").mkdir(parents=True)
    (host / "etc/table.dat").write_text("table")
    for name in ("libmpi.so.12", "libfabric.so.1"):
        (host / name).write_bytes(name.encode() * 1000)
    staging = Staging(
        "mpi-1",
        (
            StagedFile(f"{host}/libmpi.so.12", "lib/libmpi.so.12"),
            StagedFile(f"{host}/libfabric.so.1", "lib/deep/libfabric.so.1"),
        ),
        (("lib/libmpi.so", "libmpi.so.12"),),
        ((f"{host}/etc", "opt/etc"),),
    )
    return replace(planned(), staging=staging, witness="")


def names(folder: Path) -> list[str]:
    """What is there for use; what was right once stays for jobs that have it mounted."""
    return [p.name for p in folder.iterdir() if not p.name.endswith(".old")]


def whole(folder: Path, plan: Plan) -> bool:
    assert plan.staging
    return (
        stage.is_whole(folder, plan.staging)
        and (folder / "lib/libmpi.so").read_bytes() == b"libmpi.so.12" * 1000
        and (folder / "lib/deep/libfabric.so.1").is_file()
        and (folder / "opt/etc/table.dat").read_text() == "table"
    )


def test_ensure_makes_what_the_plan_says_once(plan: Plan, tmp_path: Path) -> None:
    folder = stage.ensure(plan, tmp_path)
    assert folder == tmp_path / "stage/mpi-1" and whole(folder, plan)
    assert (folder / "lib/libmpi.so").readlink() == Path("libmpi.so.12")
    inode = (folder / "lib/libmpi.so.12").stat().st_ino
    assert stage.ensure(plan, tmp_path) == folder
    assert (folder / "lib/libmpi.so.12").stat().st_ino == inode
    assert names(tmp_path / "stage") == ["mpi-1"]


def test_ensure_without_staging_makes_nothing(tmp_path: Path) -> None:
    assert stage.ensure(replace(planned(), staging=None, witness=""), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_ensure_makes_the_witness_that_the_plan_binds(tmp_path: Path) -> None:
    known = replace(planned(), staging=None)
    unknown = replace(known, host=None, family=AbiFamily.UNKNOWN)
    for plan in (known, unknown):
        witness = native.path_of(native.witness(calls=plan.unknown_mpi), tmp_path)
        stage.ensure(replace(plan, witness=str(witness)), tmp_path)
        assert witness.is_file()
    assert len(list(witness.parent.glob("witness*.so"))) == 2


def cut(folder: Path) -> None:
    os.truncate(folder / "lib/libmpi.so.12", 10)


def lose_file(folder: Path) -> None:
    (folder / "lib/deep/libfabric.so.1").unlink()


def lose_alias(folder: Path) -> None:
    (folder / "lib/libmpi.so").unlink()


def turn_alias(folder: Path) -> None:
    lose_alias(folder)
    (folder / "lib/libmpi.so").symlink_to("/etc/passwd")


def lose_tables(folder: Path) -> None:
    (folder / "opt/etc/table.dat").unlink()
    (folder / "opt/etc").rmdir()


def flip(file: Path) -> None:
    """One other byte; size and times are as they were, but for the one that nobody can set."""
    before = file.stat()
    with file.open("r+b") as stream:
        stream.write(b"#")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip_library(folder: Path) -> None:
    flip(folder / "lib/libmpi.so.12")


def flip_table(folder: Path) -> None:
    flip(folder / "opt/etc/table.dat")


def add_library(folder: Path) -> None:
    (folder / "lib/libucp.so.0").touch()


def link_library(folder: Path) -> None:
    library = folder / "lib/libmpi.so.12"
    library.rename(folder.parent / "elsewhere")
    library.symlink_to(folder.parent / "elsewhere")


DAMAGES = [
    cut, lose_file, lose_alias, turn_alias, lose_tables, flip_library, flip_table, add_library, link_library,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_ensure_damaged_is_remade(damage, plan: Plan, tmp_path: Path) -> None:
    folder = stage.ensure(plan, tmp_path)
    assert folder
    damage(folder)
    assert plan.staging and not stage.is_whole(folder, plan.staging)
    stage.ensure(plan, tmp_path)
    assert whole(folder, plan)
    (tmp_path / "stage/elsewhere").unlink(missing_ok=True)
    assert names(tmp_path / "stage") == ["mpi-1"]


def test_ensure_reads_copies_again_only_when_they_may_have_changed(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seals, "SETTLED_S", -1.0)
    folder = stage.ensure(plan, tmp_path)
    assert folder
    os.utime(folder / "lib/libmpi.so.12")
    read: list[Path] = []
    seal = seals.seal
    monkeypatch.setattr(seals, "seal", lambda file: (read.append(file), seal(file))[1])
    assert stage.ensure(plan, tmp_path) == folder
    assert read == [folder / "lib/libmpi.so.12"]
    assert stage.ensure(plan, tmp_path) == folder
    assert len(read) == 1, "its new times are noted"


def test_ensure_follows_a_library_of_another_build_with_the_same_size_and_time(
    plan: Plan, tmp_path: Path
) -> None:
    folder = stage.ensure(plan, tmp_path)
    assert folder and plan.staging
    flip(Path(plan.staging.files[0].source))
    stage.ensure(plan, tmp_path)
    assert (folder / "lib/libmpi.so.12").read_bytes()[:2] == b"#i"


def test_ensure_follows_a_library_that_was_updated(plan: Plan, tmp_path: Path) -> None:
    folder = stage.ensure(plan, tmp_path)
    assert folder and plan.staging
    source = Path(plan.staging.files[0].source)
    source.write_bytes(b"new" * 4000)
    stage.ensure(plan, tmp_path)
    assert (folder / "lib/libmpi.so.12").read_bytes() == b"new" * 4000


def test_ensure_file_that_vanished_is_reported_and_leaves_nothing(
    plan: Plan, tmp_path: Path
) -> None:
    assert plan.staging
    gone = Path(plan.staging.files[0].source)
    gone.unlink()
    with pytest.raises(FairleadError) as caught:
        stage.ensure(plan, tmp_path)
    assert caught.value.code is ExitCode.LAUNCH_FAILED
    assert caught.value.findings[0].where == str(gone)
    assert list((tmp_path / "stage").iterdir()) == []


SLOW = """
import sys, time, pickle
from fairlead.elf.facts import AbiFamily
from fairlead.swap import staging as stage
plan = pickle.load(open(sys.argv[1], "rb"))
fill = stage._fill
def slow(work, staging):
    fill(work, staging)
    print("filled", flush=True)
    time.sleep(60)
stage._fill = slow
from pathlib import Path
stage.ensure(plan, Path(sys.argv[2]))
"""


def test_ensure_killed_before_the_end_leaves_no_final_name(plan: Plan, tmp_path: Path) -> None:
    import pickle

    (tmp_path / "plan").write_bytes(pickle.dumps(plan))
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, tmp_path / "plan", tmp_path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "filled\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "stage/mpi-1").exists()
    folder = stage.ensure(plan, tmp_path)
    assert folder and whole(folder, plan)
    assert names(tmp_path / "stage") == ["mpi-1"]


def _race(plan: Plan, cache: Path, at: float) -> None:
    while time.time() < at:
        pass
    folder = stage.ensure(plan, cache)
    os._exit(0 if folder and whole(folder, plan) else 1)


@pytest.mark.parametrize("damaged", [False, True])
def test_ensure_by_six_processes_at_once_is_whole(
    damaged: bool, plan: Plan, tmp_path: Path
) -> None:
    if damaged:
        folder = stage.ensure(plan, tmp_path)
        assert folder
        cut(folder)
    context = multiprocessing.get_context("fork")
    at = time.time() + 0.2
    racers = [context.Process(target=_race, args=(plan, tmp_path, at)) for _ in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert [r.exitcode for r in racers] == [0] * 6
    assert whole(tmp_path / "stage/mpi-1", plan)
    assert names(tmp_path / "stage") == ["mpi-1"]
