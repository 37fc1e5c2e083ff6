"""Finding and installing: the parts that need no network."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from tests.support.recorded import ROOT_ENGINE, image

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.paths import atomic_folder, locked
from fairlead.doctor.install import apptainer
from fairlead.doctor.install.host_mpi import install_wheel_mpi
from fairlead.elf.facts import AbiFamily
from fairlead.engines.apptainer import find_apptainer, private_apptainer
from fairlead.mpi.wheels import install_line, known_wheels
from fairlead.swap.family import replaceable
from fairlead.swap.model import Request


def program(path: Path, body: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_find_apptainer_nowhere_is_none(tmp_path: Path) -> None:
    assert find_apptainer({"PATH": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}) is None


def test_find_apptainer_order_is_variable_path_prefix(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path / "bin"), "XDG_DATA_HOME": str(tmp_path / "data")}
    private = program(private_apptainer(environ))
    assert find_apptainer(environ) == private
    singularity = program(tmp_path / "bin" / "singularity")
    assert find_apptainer(environ) == singularity
    on_path = program(tmp_path / "bin" / "apptainer")
    assert find_apptainer(environ) == on_path
    chosen = program(tmp_path / "mine")
    assert find_apptainer({**environ, "FAIRLEAD_APPTAINER": str(chosen)}) == chosen


def test_find_apptainer_wrong_variable_is_refused(tmp_path: Path) -> None:
    program(tmp_path / "apptainer")
    with pytest.raises(FairleadError) as caught:
        find_apptainer({"PATH": str(tmp_path), "FAIRLEAD_APPTAINER": str(tmp_path / "gone")})
    assert caught.value.code is ExitCode.USAGE
    assert "gone" in caught.value.findings[0].where


def test_install_apptainer_whole_prefix_is_kept(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    whole = program(private_apptainer(environ), "echo apptainer version 9.9")
    assert apptainer.install_apptainer(environ) == whole


@pytest.mark.parametrize("odd", [":", ";", "$"])
def test_install_apptainer_folder_the_loader_cannot_name_is_refused(
    tmp_path: Path, odd: str
) -> None:
    with pytest.raises(FairleadError) as caught:
        apptainer.install_apptainer({"XDG_DATA_HOME": str(tmp_path / f"a{odd}b")})
    assert "XDG_DATA_HOME" in caught.value.findings[0].remedy


def test_install_apptainer_no_debian_mirror_names_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin" / "apt-get", "echo http://mirror/ubuntu/ jammy universe")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(FairleadError) as caught:
        apptainer.install_apptainer({"XDG_DATA_HOME": str(tmp_path)})
    assert "FAIRLEAD_APPTAINER" in caught.value.findings[0].remedy
    assert not (tmp_path / "fairlead" / "apptainer" / "current").exists()


@pytest.mark.parametrize("pin", ["mpich==1.0", "mpitch==5.0.2", "mpich=="])
def test_install_host_mpi_unpinned_is_refused_with_the_known(tmp_path: Path, pin: str) -> None:
    name, _, version = pin.partition("==")
    with pytest.raises(FairleadError) as caught:
        install_wheel_mpi(name, version, environ={"XDG_DATA_HOME": str(tmp_path)})
    assert caught.value.code is ExitCode.USAGE
    assert known_wheels().default in caught.value.findings[0].remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", [AbiFamily.MPICH, AbiFamily.OPENMPI])
def test_lacking_mpi_of_a_family_is_installed_by_the_command_that_is_named(
    family: AbiFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = install_line(family).partition(" --host-mpi ")[2] or known_wheels().default
    assert pin in {wheel.pin for wheel in known_wheels().wheel}
    assert pin.startswith(family.value)
    monkeypatch.setattr("fairlead.swap.family.image_family", lambda *_: family)
    with pytest.raises(FairleadError) as caught:
        replaceable("/x.sif", image(), None, ROOT_ENGINE, Request())
    assert install_line(family) in caught.value.findings[0].remedy


def test_known_wheels_default_is_one_of_them() -> None:
    wheels = known_wheels()
    assert wheels.default in {wheel.pin for wheel in wheels.wheel}
    assert all(len(digest) == 64 for wheel in wheels.wheel for digest in wheel.sha256)


def test_atomic_folder_failing_block_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "x") as new:
        (new / "half").touch()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_atomic_folder_replaces_the_old_and_sweeps_what_was_killed(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "old").touch()
    (tmp_path / ".x.dead.partial" / "new").mkdir(parents=True)
    with atomic_folder(tmp_path / "x") as new:
        (new / "fresh").touch()
        assert (tmp_path / "x" / "old").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert [p.name for p in (tmp_path / "x").iterdir()] == ["fresh"]


def _hold(path: Path, inside: Path) -> None:
    with locked(path):
        inside.touch()
        time.sleep(60)


def test_locked_waits_for_another_process_and_for_no_dead_one(tmp_path: Path) -> None:
    holder = multiprocessing.get_context("fork").Process(
        target=_hold, args=(tmp_path / "lock", tmp_path / "inside")
    )
    holder.start()
    while not (tmp_path / "inside").exists():
        time.sleep(0.01)
    said: list[str] = []

    def waiting() -> None:
        said.append("waiting")
        holder.kill()

    with locked(tmp_path / "lock", waiting):
        holder.join()
    assert said == ["waiting"]
