"""What of a profile's patterns is on a machine, and what that adds to a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.recorded import SITE, planned

from fairlead.site.engine_options import with_options
from fairlead.site.model import Engines, Environment, Gpu, Origin, Status
from fairlead.site.resolved_paths import Here, look, matches
from fairlead.swap.model import Bind, Request
from fairlead.swap.site_rules import from_site


def test_matches_highest_version_first_by_numbers(tmp_path: Path) -> None:
    for version in ("8.1.9", "8.1.29", "7.7.20"):
        (tmp_path / f"opt/mpich/{version}/lib").mkdir(parents=True)
    found = matches(["/opt/mpich/*/lib"], {}, tmp_path)
    assert [p.parent.name for p in found] == ["8.1.29", "8.1.9", "7.7.20"]


def test_matches_variables_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "opt/here/gtl").mkdir(parents=True)
    pattern = "$ROOT_OF_MPI/gtl"
    assert matches([pattern], {"ROOT_OF_MPI": "/opt/here"}, tmp_path) == [tmp_path / "opt/here/gtl"]
    assert matches([pattern], {}, tmp_path) == []


def test_matches_of_several_patterns_keep_their_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
    assert [p.name for p in matches(["/b", "/a", "/[ab]"], {}, tmp_path)] == ["b", "a"]


def test_look_shows_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "var/spool/slurmd").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/cxi0").touch()
    (tmp_path / "dev/cxi1").touch()
    site = replace(SITE, binds=("/var/spool/slurmd", "/run/cxi"), devices=("/dev/cxi*",))
    here = look(site, {}, tmp_path)
    assert here.binds == ("/var/spool/slurmd",) and here.absent == ("/run/cxi",)
    assert here.devices == ("/dev/cxi1", "/dev/cxi0")


def test_from_site_the_users_own_comes_first() -> None:
    site = replace(
        SITE,
        environment=Environment(set={"FI_A": "1", "FI_B": "2"}),
        gpu=Gpu(set={"MPICH_GPU_SUPPORT_ENABLED": "1"}),
        origins={"environment.set": Origin(Status.DOCUMENTED, "its manual", "", "there")},
    )
    here = Here(binds=("/opt/cray", "/run/cxi"), absent=("/gone",))
    found = from_site(site, here, Request(shell=("FI_B",), binds=(Bind("/run/cxi", "/run/cxi"),)))
    assert found.binds == (Bind("/opt/cray", "/opt/cray"),) and found.env == {"FI_A": "1"}
    output = {(line.kind, line.what) for line in found.lines}
    assert {("left out", "/gone"), ("left out", "FI_B=2"), ("env", "FI_A=1")} <= output
    assert any("documented: its manual" in line.why for line in found.lines)
    with_gpu = from_site(site, here, Request(gpu=True))
    assert with_gpu.env["MPICH_GPU_SUPPORT_ENABLED"] == "1"


def test_with_options_of_a_site_that_wants_a_namespace_a_rank() -> None:
    site = replace(SITE, engine=Engines(options={"apptainer": ("--fakeroot",)}))
    engine = with_options(planned().engine, site, gpu=False)
    assert engine.options[-1] == "--fakeroot" and engine.userns_per_rank
    assert engine.reasons[-1][0] == "--fakeroot"
    assert with_options(engine, site, gpu=False) == engine  # once
    assert with_options(planned().engine, SITE, gpu=False) == planned().engine


def test_with_options_of_a_user_who_wants_a_namespace_a_rank() -> None:
    plain = planned().engine
    own = with_options(plain, SITE, gpu=False, own=("--userns",))
    assert own == replace(plain, userns_per_rank=True)
    podman = replace(plain, kind="podman")
    assert with_options(podman, SITE, gpu=False, own=("-u", "1000")) == podman


def test_plan_shows_what_the_site_adds() -> None:
    plan = planned(here=Here(binds=("/opt/cray",), devices=("/dev/cxi0",)))
    assert ("/opt/cray", "/opt/cray") in [(b.source, b.target) for b in plan.binds]
    assert plan.devices == ("/dev/cxi0",)
