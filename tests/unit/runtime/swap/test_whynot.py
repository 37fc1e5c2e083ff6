"""What becomes of a library of the host, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support import recorded
from tests.support.nccl import gpu_plan

from fairlead.swap.family import choose_host
from fairlead.swap.model import Request
from fairlead.swap.why_not import why_not


@pytest.mark.parametrize(
    "name", ["libfabric.so.1", "libfabric", "libfabric.so", "/x/libfabric.so.1"]
)
def test_library_that_is_staged_says_where_and_who_needs_it(name: str) -> None:
    (line,) = why_not(recorded.planned(), name)
    assert line.kind == "staged" and line.what.endswith("/libfabric.so.1")
    assert "needed by libmpi.so.12" in line.why and line.fact.endswith("libfabric.so.1")


@pytest.mark.parametrize("name", ["libc.so.6", "libm", "ld-linux-x86-64.so.2", "libnss_dns.so.2"])
def test_piece_of_glibc_stays_the_images_own(name: str) -> None:
    (line,) = why_not(recorded.planned(), name)
    assert line.kind == "left out" and "piece of glibc" in line.why and "2.36" in line.why


def test_every_staged_file_is_found_by_its_name() -> None:
    for name in recorded.HOSTS:
        mpi = recorded.host(name)
        plan = recorded.planned(mpi=mpi)
        assert plan.staging is not None
        for file in plan.staging.files:
            lines = why_not(plan, file.target.rpartition("/")[2])
            assert any(line.kind == "staged" and line.fact == file.source for line in lines)


def test_alias_says_whose_name_it_is_and_the_image_keeps_its_own() -> None:
    lines = why_not(recorded.planned(), "libmpi.so")
    assert any(line.kind == "staged" and "a name of libmpi.so.12" in line.why for line in lines)
    assert any("of the image" in line.what and "unused" in line.why for line in lines)


def test_what_nothing_needs_is_reported_with_a_near_name() -> None:
    (line,) = why_not(recorded.planned(), "libfabrics.so.1")
    assert line.kind == "left out" and "Did you mean `libfabric.so.1`?" in line.why


def test_another_mpi_of_the_host_says_why_it_was_not_chosen() -> None:
    hosts = [recorded.host(name) for name in ("mpich-5.0.2", *recorded.HOSTS)]
    chosen, notes = choose_host(recorded.image(), hosts, Request())
    plan = recorded.planned(mpi=chosen)
    other = next(n for n in notes if n.fact != (chosen and chosen.library.path))
    lines = why_not(replace(plan, lines=(*plan.lines, *notes)), other.fact)
    assert any(line.why == other.why for line in lines)


def test_library_that_the_host_lacks_too_is_reported() -> None:
    mpi = replace(recorded.host(), missing=(("libcxi.so.1", "/opt/x/libmpi.so.12"),))
    (line,) = why_not(recorded.planned(mpi=mpi), "libcxi.so.1")
    assert "host's own loader" in line.why and line.fact == "/opt/x/libmpi.so.12"


def test_plan_on_the_images_own_mpi_stages_nothing() -> None:
    own = replace(recorded.planned(), staging=None, host=None)
    (line,) = why_not(own, "libfabric.so.1")
    assert "nothing of the host is staged" in line.why


def test_why_not_of_what_nccls_plugin_needs() -> None:
    plan = gpu_plan()
    [hwloc] = why_not(plan, "libhwloc.so.15")
    assert (hwloc.kind, hwloc.what) == ("staged", "/opt/fairlead/nccl/dep/libhwloc.so.15")
    assert "aws-ofi-nccl 1.18.0" in hwloc.why
    [own] = why_not(plan, "libnccl-net-ofi.so")
    assert "network plugin" in own.why
    [link] = why_not(plan, "libcudart.so")
    assert link.kind == "alias" and "libcudart.so.12" in link.why
