"""The plan is a pure function of facts; what holds of every plan, and what of single ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.recorded import (
    CACHE,
    HOSTS,
    HYDRA,
    IMAGES,
    NO_FILES,
    OPENMPI,
    ROOT_ENGINE,
    SITE,
    USER_ENGINE,
    host,
    image,
    planned,
)

from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.base.serde import to_json
from fairlead.cli import show
from fairlead.elf.facts import AbiFamily, ImageFacts
from fairlead.elf.mpi_symbols import GLIBC_PIECES, family_of_soname
from fairlead.elf.reader import version_key
from fairlead.mpi.host import HostMpi
from fairlead.swap.checks import launcher_family
from fairlead.swap.family import choose_host, image_family
from fairlead.swap.glibc import GlibcWay
from fairlead.swap.model import MOUNT, ROOM, WITNESS, Bind, Inputs, Plan, Request
from fairlead.swap.plan import plan

FOLDERS = st.sampled_from(["/home/u/lib", "/scratch/lib", "/opt/tool/lib64"])
BINDS = st.lists(st.builds(Bind, FOLDERS, FOLDERS, st.booleans()), max_size=3).map(tuple)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of every recorded image on every recorded host, some of the host's parts left out."""
    mpi = host(draw(st.sampled_from(HOSTS)))
    parts = draw(st.lists(st.sampled_from(mpi.closure), unique_by=lambda e: e.path))
    mpi = replace(mpi, closure=tuple(parts), companions=mpi.companions[: draw(st.integers(0, 9))])
    return planned(
        image(draw(st.sampled_from(IMAGES))),
        mpi,
        engine=draw(st.sampled_from([ROOT_ENGINE, USER_ENGINE, NO_FILES])),
        library_path=":".join(draw(st.lists(FOLDERS, max_size=3))),
        preload=draw(st.sampled_from(["", "/opt/tool/libtrace.so"])),
        image_library_path=draw(st.sampled_from(["", "/opt/image/lib:/scratch/lib"])),
        image_preload=draw(st.sampled_from(["", "/opt/image/libnice.so"])),
        binds=draw(BINDS),
        ranks=draw(st.integers(1, 10_000)),
    )


@given(made=plans())
def test_plan_any_has_no_piece_of_glibc_on_a_search_path(made: Plan) -> None:
    assert made.staging and made.staging.files and made.glibc
    searched = made.env.get("LD_LIBRARY_PATH", "").split(":")
    for item in made.staging.files:
        if GLIBC_PIECES.match(PurePosixPath(item.target).name):
            assert item.target.startswith("glibc/") and made.glibc.pieces, item
            assert f"{MOUNT}/{PurePosixPath(item.target).parent}" not in searched
    assert f"{MOUNT}/glibc" not in searched


@given(made=plans())
def test_plan_any_brings_a_whole_glibc_or_none_and_only_when_it_is_needed(made: Plan) -> None:
    assert made.glibc and made.host and made.staging
    need, have = version_key(made.glibc.need), version_key(made.facts.glibc)
    brought = {p.soname for p in made.glibc.pieces}
    assert bool(brought) <= (need > have)
    over = {b.target for b in made.binds} & set(made.facts.glibc_files.values())
    if made.glibc.way is GlibcWay.BIND:
        assert {"libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6"} <= brought
        assert over == {made.facts.glibc_files[name] for name in brought}
        both = set(made.facts.glibc_files) & {e.soname for e in made.host.glibc}
        assert brought == both
    else:
        assert not over
    assert bool(made.wrapper) is (made.glibc.way is GlibcWay.LOADER)
    if made.wrapper:
        assert "LD_LIBRARY_PATH" not in made.env and f"{MOUNT}/lib" in made.wrapper[-1]


@given(made=plans())
def test_plan_any_lets_exactly_one_mpi_be_reached(made: Plan) -> None:
    """Every name and every place by which a program of the image asks leads to the staged file."""
    assert made.staging and made.host
    staged = {f.target for f in made.staging.files} | {link for link, _ in made.staging.aliases}
    real = {link: f"lib/{target}" for link, target in made.staging.aliases}
    if made.host.library.family is made.family:
        for name in made.names:
            place = f"lib/{name}"
            assert place in staged
            assert real.get(place, place) == f"lib/{made.host.library.soname}"
    for place in made.bound:
        [source] = [b.source for b in made.binds if b.target == place]
        name = source.removeprefix(f"{CACHE}/stage/{made.staging.key}/")
        assert name in {f.target for f in made.staging.files}
        if place in {mpi.path for mpi in made.facts.mpis}:
            assert name == f"lib/{made.host.library.soname}"
    mpis = [
        f for f in made.staging.files if family_of_soname(PurePosixPath(f.target).name) != "unknown"
    ]
    assert [f.source for f in mpis] == [made.host.library.path]


@given(made=plans())
def test_plan_any_aliases_are_links_next_to_the_real_file(made: Plan) -> None:
    assert made.staging and made.host
    files = {f.target for f in made.staging.files}
    for link, target in made.staging.aliases:
        assert "/" not in target
        assert str(PurePosixPath(link).parent / target) in files
        assert link not in files
    names = files | {link for link, _ in made.staging.aliases}
    first = "lib/libmpi_abi.so" if made.host.library.family is AbiFamily.MPI5 else "lib/libmpi.so"
    assert first in names
    assert made.planned_file == f"{MOUNT}/lib/{made.host.library.soname}"


@given(made=plans())
def test_plan_any_stages_each_place_once(made: Plan) -> None:
    assert made.staging and made.host
    targets = [f.target for f in made.staging.files] + [a for a, _ in made.staging.aliases]
    assert len(targets) == len(set(targets))
    sources = [f.source for f in made.staging.files]
    assert sources.count(made.host.library.path) == 1
    assert all(t.startswith(("lib/", "dep/", "glibc/")) and ".." not in t for t in targets)


@given(made=plans())
def test_plan_any_keeps_what_the_user_asked_for(made: Plan) -> None:
    shown = made.binds
    if not made.engine.binds_files:  # a folder with the witness in it, and places for the others
        assert shown[0].target == ROOM and shown[0].read_only
        shown = shown[1:]
    assert shown[0].target == MOUNT and shown[0].read_only
    files = [b.read_only for b in made.binds if b.target == WITNESS]
    assert files == ([True] if made.engine.binds_files else [])
    assert made.binds[len(made.binds) - len(made.request.binds) :] == made.request.binds
    path = made.env.get("LD_LIBRARY_PATH", "").split(":")
    if made.wrapper:  # by the host's loader, whose own words name the path
        path = made.wrapper[-1].split('--library-path "')[1].split('"')[0].split(":")[:-2]
    assert path[0] == f"{MOUNT}/lib"
    given_path = [p for p in made.request.library_path.split(":") if p]
    image_path = [p for p in made.request.image_library_path.split(":") if p]
    behind = [p for p in path if not p.startswith(MOUNT)]
    assert behind[: len(given_path)] == given_path
    assert set(behind) == {*given_path, *image_path}
    wanted = [WITNESS, *filter(None, [made.request.preload, made.request.image_preload])]
    assert made.env["LD_PRELOAD"].split(":") == wanted


@given(made=plans())
def test_plan_any_made_again_is_the_same(made: Plan) -> None:
    again = plan(
        Inputs(
            made.image,
            made.facts,
            made.host,
            made.launcher,
            made.site,
            made.engine,
            made.request,
            CACHE,
            witness=made.witness,
        )
    )
    assert again == made
    assert to_json(again) == to_json(made)


@given(made=plans())
def test_plan_any_explains_every_variable_alias_and_bind(made: Plan) -> None:
    said = {(line.kind, line.what.split("=")[0].split(" ")[0]) for line in made.lines}
    for name in made.env:
        assert ("env", name) in said
    assert made.staging
    for link, _ in made.staging.aliases:
        assert ("alias", PurePosixPath(link).name) in said
    for bind in made.binds:
        source = PurePosixPath(bind.source)
        whole = f"{source.parent}/*" if source.parent.name == "glibc" else bind.source
        assert ("bind", whole) in said
    assert all(line.why for line in made.lines)
    assert {line.kind for line in made.lines} <= set(show._TITLES), "explain would leave it out"


def test_plan_touches_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, mpi = image(), host()
    planned()  # remedies are looked up once
    opened: list[object] = []
    import io
    import os

    for module, name in ((io, "open"), (os, "stat"), (os, "scandir"), (os, "open")):
        monkeypatch.setattr(module, name, lambda *a, **k: opened.append(a))
    made = plan(Inputs("/no.sif", facts, mpi, HYDRA, SITE, ROOT_ENGINE, Request(), CACHE))
    monkeypatch.undo()
    assert opened == [] and made.staging


def test_plan_of_mpich_5_for_an_image_with_3_is_this() -> None:
    made = planned()
    assert made.staging
    assert made.names == ("libmpi.so.12",)
    assert dict(made.staging.aliases) == {
        "lib/libmpi.so": "libmpi.so.12",
        "lib/libmpich.so.12": "libmpi.so.12",
        **{a: t for a, t in made.staging.aliases if "fort" in a or "cxx" in a},
    }
    assert made.env["UCX_MODULE_DIR"] == f"{MOUNT}/lib/mpich/ucx"
    assert made.env["FI_PROVIDER_PATH"].startswith(f"{MOUNT}/lib/mpich")
    assert made.lines[0].what == "MPICH 3.4.3 of the image -> MPICH 5.0.2 of the host"


def with_the_standards_abi() -> ImageFacts:
    """MPICH 5: both interfaces, its own tools on the old one, one program on the standard's."""
    facts = image()
    (mpi,), consumer = facts.mpis, facts.consumers[0]
    elf = replace(mpi.elf, path="/opt/mpich/lib/libmpi_abi.so.1", soname="libmpi_abi.so.1")
    tool = replace(consumer, path="/opt/mpich/bin/mpivars", needed=("libmpi.so.12",))
    program = replace(consumer, path="/opt/app/ring", needed=("libmpi_abi.so.1",))
    both = (mpi, replace(mpi, elf=elf, family=AbiFamily.MPI5))
    return replace(facts, mpis=both, consumers=(tool, program))


def test_plan_run_time_of_the_compiler_comes_from_the_host_where_the_image_has_none() -> None:
    facts = replace(image(), glibc="2.99", libstdcxx="3.4.99")
    brought = []
    for runtime in (("libstdc++.so.6",), ("libgcc_s.so.1", "libstdc++.so.6"), ()):
        made = planned(replace(facts, runtime=runtime), host("debian-sid-mpich-5.0.2"))
        assert made.staging
        brought.append("lib/libgcc_s.so.1" in {f.target for f in made.staging.files})
    assert brought == [True, False, False]


def test_plan_image_with_two_interfaces_goes_by_what_its_programs_ask_for() -> None:
    facts = with_the_standards_abi()
    assert image_family(facts) is AbiFamily.MPI5
    old = replace(facts.consumers[1], needed=("libmpi.so.12",))
    assert image_family(replace(facts, consumers=(old,))) is AbiFamily.MPICH


def test_launcher_of_the_standards_abi_is_the_vendors() -> None:
    made = planned()
    assert made.host
    library = replace(made.host.library, family=AbiFamily.MPI5)
    made = replace(made, host=replace(made.host, library=library))
    assert [f.severity for f in launcher_family(made)] == [Severity.OK]
    other = replace(library, vendor="Open MPI")
    wrong = replace(made, host=replace(made.host, library=other)) if made.host else made
    assert [f.severity for f in launcher_family(wrong)] == [Severity.ERROR]


def test_plan_for_debian_image_aliases_its_name() -> None:
    made = planned(image("debian12-mpich"))
    assert made.staging and "libmpich.so.12" in made.names
    assert ("lib/libmpich.so.12", "libmpi.so.12") in made.staging.aliases


def test_plan_debian_host_is_staged_as_libmpich_with_libmpi_next_to_it() -> None:
    made = planned(mpi=host("debian13-mpich-4.2.1"))
    assert made.staging
    targets = {f.target for f in made.staging.files}
    assert "lib/libmpich.so.12" in targets and "lib/libucp.so.0" in targets
    assert ("lib/libmpi.so.12", "libmpich.so.12") in made.staging.aliases


def test_plan_intel_brings_its_tables_and_providers() -> None:
    made = planned(mpi=host("impi-2021.18.1"))
    assert made.staging
    assert [place for _, place in made.staging.folders] == list(host("impi-2021.18.1").data)
    assert "lib/libfabric.so.1" in {f.target for f in made.staging.files}
    assert made.env["FI_PROVIDER_PATH"].startswith(MOUNT)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("mpich-5.0.2", "MPIR_CVAR_CH4_CMA_ENABLE"),
        ("impi-2021.18.1", "I_MPI_SHM_CMA"),
        ("openmpi-5.0.11", "OMPI_MCA_smsc"),
    ],
)
def test_plan_namespace_a_rank_switches_cross_memory_attach_off(name: str, variable: str) -> None:
    assert variable in planned(mpi=host(name), engine=USER_ENGINE).env
    assert variable not in planned(mpi=host(name)).env


def test_plan_staging_key_moves_with_the_library_only() -> None:
    first = planned()
    assert first.staging
    same = planned(ranks=64, library_path="/x", engine=USER_ENGINE)
    assert same.staging and same.staging.key == first.staging.key
    mpi = host()
    newer = replace(mpi, library=replace(mpi.library, elf=replace(mpi.library.elf, build_id="ff")))
    other = planned(mpi=newer)
    assert other.staging and other.staging.key != first.staging.key


def test_plan_container_uses_the_images_own() -> None:
    made = _container()
    assert made.host is None and made.staging is None and made.binds == ()
    assert made.planned_file == "/opt/mpich/lib/libmpi.so.12"
    assert made.planned_title == "MPICH 3.4.3"
    assert "LD_LIBRARY_PATH" not in made.env


def _container() -> Plan:
    request = Request(mpi="container", ranks=2)
    return plan(Inputs("/x.sif", image(), None, HYDRA, SITE, ROOT_ENGINE, request, CACHE))


def test_plan_container_without_an_mpi_is_refused() -> None:
    facts = replace(image(), mpis=())
    with pytest.raises(FairleadError) as caught:
        plan(Inputs("/x", facts, None, HYDRA, SITE, ROOT_ENGINE, Request(mpi="container"), CACHE))
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED
    assert caught.value.findings[0].check == "image-mpi"


def test_plan_without_a_fitting_host_says_why_each_was_left() -> None:
    chosen, notes = choose_host(image(), [host("openmpi-5.0.11")], Request())
    assert chosen is None
    with pytest.raises(FairleadError) as caught:
        plan(Inputs("/x", image(), None, HYDRA, SITE, ROOT_ENGINE, Request(), CACHE, notes))
    [finding] = caught.value.findings
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED and finding.check == "host-mpi"
    assert "its family is openmpi, the image's is mpich" in finding.why


def test_choose_host_takes_the_first_of_the_family_with_a_launcher() -> None:
    mute = replace(host("impi-2021.18.1"), launcher=None)
    candidates: list[HostMpi] = [host("openmpi-5.0.11"), mute, host(), host("debian13-mpich-4.2.1")]
    chosen, notes = choose_host(image(), candidates, Request())
    assert chosen is host()
    whys = " ".join(n.why for n in notes)
    assert len(notes) == 3
    for words in ("family is openmpi", "its prefix has no mpiexec", "MPICH 5.0.2 comes first"):
        assert words in whys


def test_plan_app_named_leaves_other_programs_out() -> None:
    facts = image("rpath")
    assert "/opt/app/tied" in [e.path for e in planned(facts).consumers]
    assert "/opt/app/tied" not in [e.path for e in planned(facts, apps=("/opt/app/x",)).consumers]
    kept = planned(facts, command=("/opt/app/tied",)).consumers
    assert "/opt/app/tied" in [e.path for e in kept]


def test_plan_launcher_is_explained() -> None:
    made = planned(launcher=OPENMPI)
    assert [line.what for line in made.lines if line.kind == "launch"] == [
        "/opt/other/bin/mpiexec  (Open MPI 5.0.11)"
    ]
