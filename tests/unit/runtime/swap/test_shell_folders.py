"""Variables of the shell that name folders which a container does not show."""

from __future__ import annotations

import doctest
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recorded import CACHE, HYDRA, ROOT_ENGINE, SITE, host, image

from fairlead.engines.apptainer import describe
from fairlead.engines.charliecloud import ENGINE as CHARLIECLOUD
from fairlead.engines.model import Driver
from fairlead.engines.podman import ENGINE as PODMAN
from fairlead.launch.launch import command_line
from fairlead.swap import shell_folders
from fairlead.swap.model import Bind, Inputs, Plan, Request
from fairlead.swap.plan import plan

SHELL = {
    "HOME": "/home/me",
    "XDG_CACHE_HOME": "/scratch/me/cache",
    "XDG_RUNTIME_DIR": "/run/user/1",
    "TMPDIR": "/local/job.7",
}


def planned(shows: tuple[str, ...] = (), **request: object) -> Plan:
    environ = {**SHELL, **request.pop("environ", {})}
    asked = Request(ranks=2, folders=shell_folders.folders(environ, "/data"), **request)
    engine = replace(ROOT_ENGINE, shows=shows)
    return plan(Inputs("/no.sif", image(), host(), HYDRA, SITE, engine, asked, CACHE))


def test_examples_in_the_docstring_are_right() -> None:
    failed, tried = doctest.testmod(shell_folders)
    assert (failed, bool(tried)) == (0, True)


def test_folder_that_the_container_does_not_show_is_not_named_to_ranks() -> None:
    made = planned()
    assert {"XDG_CACHE_HOME", "TMPDIR"} <= {*made.withheld}
    assert "XDG_RUNTIME_DIR" not in made.withheld
    line = command_line(made, ("true",), 2)
    assert "XDG_CACHE_HOME" in line.argv and "XDG_CACHE_HOME" not in line.unset
    (why,) = [part.why for part in made.lines if part.what == "XDG_CACHE_HOME"]
    assert "--bind" in why


@pytest.mark.parametrize(
    "more",
    [
        {"shows": ("/",)},
        {"shows": ("/etc/hosts", "/scratch")},
        {"binds": (Bind("/scratch/me", "/scratch/me"),)},
        {"engine_args": ("--bind", "/scratch")},
        {"environ": {"APPTAINER_BIND": "/a:/b,/scratch:/scratch:rw"}},
        {"environ": {"HOME": "/scratch/me"}},
        {"environ": {"XDG_CACHE_HOME": "/data/cache"}},
        {"environ": {"XDG_CACHE_HOME": ""}},
    ],
    ids=str,
)
def test_folder_that_may_be_shown_is_left_alone(more: dict[str, object]) -> None:
    assert "XDG_CACHE_HOME" not in planned(**more).withheld


@pytest.mark.parametrize("driver", [CHARLIECLOUD, PODMAN], ids=lambda driver: driver.kind)
def test_engine_keeps_what_it_reads_itself(driver: Driver) -> None:
    shell = {**SHELL, "XDG_STATE_HOME": "/scratch/me", "XDG_DATA_HOME": "/scratch/me"}
    asked = Request(ranks=1, folders=shell_folders.folders(shell, "/data"))
    engine = replace(ROOT_ENGINE, shows=driver.shows, reads=driver.reads)
    kept = {*asked.folders} - {*shell_folders.hidden(asked, engine, ())}
    assert kept == {*driver.reads} & {*shell} and "TMPDIR" in kept


def test_bind_at_another_place_shows_nothing() -> None:
    binds = (Bind("/scratch/me", "/in"), Bind("/x", "/scratch/me"))
    assert "XDG_CACHE_HOME" in planned(binds=binds).withheld


def test_apptainer_shows_what_its_configuration_binds(tmp_path: Path) -> None:
    program = tmp_path / "bin/apptainer"
    program.parent.mkdir()
    program.write_text("")
    assert describe(program, 0, 0).shows == ("/",), (
        "a configuration that cannot be read says nothing"
    )
    conf = tmp_path / "etc/apptainer/apptainer.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(
        "bind path = /etc/localtime\nbind path = /scratch:/scratch:ro\nbind path = /a:/b\n"
    )
    assert describe(program, 0, 0).shows == ("/etc/localtime", "/scratch")
    conf.write_text("mount hostfs = yes\n")
    assert describe(program, 0, 0).shows == ("/",)
