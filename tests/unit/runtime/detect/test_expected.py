"""A machine of which only the profile is known: what is planned, what is assumed, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recorded import image

from fairlead.base.errors import Severity
from fairlead.detect import profile_capture
from fairlead.elf.facts import AbiFamily
from fairlead.session.model import Choices
from fairlead.session.prepare import _is_elsewhere
from fairlead.site.model import (
    Dependencies,
    Engines,
    MpiHere,
    Node,
    Origin,
    Site,
    Starter,
    Status,
)
from fairlead.swap.family import choose_host
from fairlead.swap.model import Request

IMAGE = image()
SITE = Site(
    name="there",
    summary="a machine",
    accepts=("cxi",),
    start_s=30,
    mpi=MpiHere(
        vendor="Cray MPICH", family="mpich", level="3.1", glibc="2.31",
        search=("/opt/cray/pe/mpich/*/lib-abi-mpich",),
    ),
    dependencies=Dependencies(expected=("libfabric.so.1", "libcxi.so.1")),
    engine=Engines(kinds=("shifter",)),
    launcher=Starter(kinds=("srun",)),
    node=Node(processor=("zen3",)),
    origins={"mpi.level": Origin(Status.DOCUMENTED, "the maker's manual", "2026-01-01", "there")},
)  # fmt: skip


def test_machine_has_what_the_profile_says_and_no_more() -> None:
    there = profile_capture.machine(SITE, IMAGE)
    [mpi] = there.mpis
    assert mpi.library.family is AbiFamily.MPICH and mpi.library.soname == "libmpi.so.12"
    assert mpi.library.elf.machine == "x64"
    assert {e.soname for e in mpi.closure} == {"libfabric.so.1", "libcxi.so.1"}
    assert all(e.needs == {"GLIBC": "2.31"} for e in mpi.parts)
    assert mpi.launcher and mpi.launcher.path == "srun"
    assert there.engine and there.engine.kind == "shifter" and not there.engine.binds_files
    assert choose_host(IMAGE, there.mpis, Request())[0] is mpi


def test_machine_of_an_older_edition_lacks_what_came_later() -> None:
    newer = replace(
        IMAGE,
        consumers=(replace(IMAGE.consumers[0], mpi_imports=("MPI_Send", "MPI_Session_init")),),
    )
    [mpi] = profile_capture.machine(SITE, newer).mpis
    assert "MPI_Send" in mpi.library.elf.mpi_exports
    assert "MPI_Session_init" not in mpi.library.elf.mpi_exports
    [latest] = profile_capture.machine(
        replace(SITE, mpi=replace(SITE.mpi, level="4.0")), newer
    ).mpis
    assert "MPI_Session_init" in latest.library.elf.mpi_exports


@pytest.mark.parametrize(
    ("processor", "machine"), [("zen3", "x64"), ("power9le", "64-bit PowerPC"), ("nosuch", "")]
)
def test_machine_processor_is_known_by_archspec_or_taken_for_the_images(
    processor: str, machine: str
) -> None:
    site = replace(SITE, node=Node(processor=(processor,)))
    [mpi] = profile_capture.machine(site, IMAGE).mpis
    assert mpi.library.elf.machine == (machine or IMAGE.arch)


def test_assumptions_name_each_value_with_who_says_so_and_what_no_source_says() -> None:
    [finding] = profile_capture.assumptions(replace(SITE, mpi=replace(SITE.mpi, glibc="")))
    assert finding.severity is Severity.WARNING and finding.check == "profile-only"
    assert "mpi.level: 3.1 (documented: the maker's manual)" in finding.why
    assert "not stated, and assumed to fit: mpi.glibc" in finding.why


@pytest.mark.parametrize(
    ("replaces", "status", "mpi", "severity"),
    [
        ("mpi", Status.DOCUMENTED, "host", None),
        ("none", Status.DOCUMENTED, "host", Severity.ERROR),
        ("none", Status.GUESS, "host", Severity.WARNING),
        ("none", Status.DOCUMENTED, "container", None),
        ("libfabric", Status.DOCUMENTED, "host", Severity.WARNING),
    ],
)
def test_policy_of_a_site_that_exchanges_something_else(
    replaces: str, status: Status, mpi: str, severity: Severity | None
) -> None:
    origin = Origin(status, "its documents", "", "there")
    site = replace(SITE, mpi=replace(SITE.mpi, replaces=replaces), origins={"mpi.replaces": origin})
    found = list(profile_capture.policy(site, mpi))
    assert [f.severity for f in found] == ([severity] if severity else [])


def test_reports_enough_needs_a_family() -> None:
    assert profile_capture.tells_enough(SITE)
    assert not profile_capture.tells_enough(replace(SITE, mpi=MpiHere()))


def test_preflight_of_a_named_site_answers_from_its_profile(
    tmp_path: Path,
) -> None:
    environ = {"PATH": str(tmp_path)}
    assert _is_elsewhere(Choices(site="there"), SITE, environ)
    assert not _is_elsewhere(Choices(), SITE, environ)
    here = replace(SITE, mpi=replace(SITE.mpi, search=(str(tmp_path),)))
    assert not _is_elsewhere(Choices(site="there"), here, environ)
