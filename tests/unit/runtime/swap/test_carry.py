"""The host's libfabric or UCX below the image's own MPI: found, planned, staged, checked, and compared with what ranks map."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from tests.support.compiled import compiled
from tests.support.nccl import gpu_ask, gpu_image, network, plugin_of
from tests.support.recorded import CACHE, HYDRA, NO_FILES, ROOT_ENGINE, SITE, image

from fairlead.base.errors import Severity
from fairlead.cli.options import Planning
from fairlead.cli.show import swap_line
from fairlead.elf.carried.registry import LIBRARIES
from fairlead.elf.facts import Elf, ImageFacts
from fairlead.elf.patchelf import find_patchelf
from fairlead.mpi.below import HostLibrary, find
from fairlead.mpi.host import Plugins
from fairlead.proof import closure
from fairlead.proof.verdict import RankProof, judged
from fairlead.site.model import NcclSite
from fairlead.swap import checks, staging
from fairlead.swap.model import CARRIED_MOUNT, Inputs, Plan, Request
from fairlead.swap.plan import plan
from fairlead.swap.why_not import why_not

FABRIC = LIBRARIES.get("libfabric")
VERSIONS = "FABRIC_1.0 { global: fi_*; };\nFABRIC_1.7 { global: more; } FABRIC_1.0;\n"


def carried(**changes: Any) -> HostLibrary:
    """The facts of a Cray's libfabric."""
    folder = "/opt/cray/libfabric/1.22.0/lib64"
    one = Elf(f"{folder}/libfabric.so.1.25.0", "x64", "libfabric.so.1", offers={"FABRIC": "1.8"})
    behind = (
        Elf("/usr/lib64/libcxi.so.1.5", "x64", "libcxi.so.1"),
        Elf("/usr/lib64/libc.so.6", "x64", "libc.so.6"),
        Elf("/usr/lib64/libgcc_s.so.1", "x64", "libgcc_s.so.1"),
    )
    modules = (
        Plugins("FI_PROVIDER_PATH", f"{folder}/libfabric", (f"{folder}/libfabric/libefa-fi.so",)),
    )
    made = HostLibrary(
        "libfabric", FABRIC, (one,), behind, (), modules, "where its vendor installs it"
    )
    return replace(made, **changes)


def planned(*libraries: HostLibrary, facts: ImageFacts | None = None, **changes: Any) -> Plan:
    given = {"engine": ROOT_ENGINE, "isolate": True, **changes}
    more = {k: given.pop(k) for k in ("nccl",) if k in given}
    engine, isolate = given.pop("engine"), given.pop("isolate")
    request = Request(**{"ranks": 2, "mpi": "container", **given})
    return plan(
        Inputs(
            "/images/x.sif", facts or image(), None, HYDRA, SITE, engine, request, CACHE,
            isolate=isolate, carried=libraries, **more,
        )
    )  # fmt: skip


def found(made: Plan) -> dict[str, tuple[Severity, str]]:
    return {
        f.what: (f.severity, f"{f.where} {f.why} {f.remedy}")
        for f in checks.check(made)
        if f.check == "carried"
    }


def with_mpi_that_needs(version: str = "1.7", **changes: Any) -> ImageFacts:
    facts = image()
    elf = replace(
        facts.mpis[0].elf, needed=("libfabric.so.1",), needs={"FABRIC": version}, **changes
    )
    return replace(facts, mpis=(replace(facts.mpis[0], elf=elf),))


def test_plan_keeps_the_images_mpi_and_brings_the_hosts_library() -> None:
    made = planned(carried())
    assert made.mode == "container" and made.host is None and made.staging is None
    assert made.planned_title == "MPICH 3.4.3"
    assert made.carried_staging
    targets = {file.target for file in made.carried_staging.files}
    assert targets == {"lib/libfabric.so.1", "dep/libcxi.so.1", "dep/libfabric/libefa-fi.so"}
    assert {f.rpath for f in made.carried_staging.files} == {
        f"{CARRIED_MOUNT}/lib:{CARRIED_MOUNT}/dep"
    }
    assert made.env["LD_LIBRARY_PATH"].split(":")[0] == f"{CARRIED_MOUNT}/lib"
    assert made.env["FI_PROVIDER_PATH"] == f"{CARRIED_MOUNT}/dep/libfabric"
    [bind] = [b for b in made.binds if b.target == CARRIED_MOUNT]
    assert bind.read_only and made.carried_staging.key in bind.source
    shown = {line.what: line.kind for line in made.lines}
    assert shown["libfabric of the host -> the image's own MPI"] == "carry"


def test_plan_modules_of_the_image_are_never_opened() -> None:
    made = planned(carried(modules=()))
    assert made.env["FI_PROVIDER_PATH"] == f"{CARRIED_MOUNT}/dep/no-modules"


def test_plan_users_and_images_folders_follow() -> None:
    made = planned(carried(), library_path="/mine", image_library_path="/of/image")
    assert made.env["LD_LIBRARY_PATH"] == f"{CARRIED_MOUNT}/lib:/mine:/of/image"
    loose = planned(carried(), isolate=False)
    assert loose.env["LD_LIBRARY_PATH"].startswith(f"{CARRIED_MOUNT}/lib:{CARRIED_MOUNT}/dep")


def test_plan_without_carried_libraries_is_as_before() -> None:
    made = planned()
    assert made.carried_staging is None and "LD_LIBRARY_PATH" not in made.env
    assert not found(made)


def test_plan_ncclls_plugin_uses_the_carried_libfabric() -> None:
    there = network(plugin_of(versions=(6, 7, 8)))
    made = planned(carried(), facts=gpu_image(), nccl=gpu_ask(there))
    assert made.nccl_staging
    staged = {file.target: file.rpath for file in made.nccl_staging.files}
    assert "dep/libfabric.so.1" not in staged and "dep/libcxi.so.1" not in staged
    assert f"{CARRIED_MOUNT}/lib" in staged["lib/libnccl-net-ofi.so"]
    assert "FI_PROVIDER_PATH" in made.env


def test_plan_engine_that_shows_folders_only_has_a_place_for_it(tmp_path: Path) -> None:
    made = planned(engine=NO_FILES)
    staging.ensure(made, tmp_path)
    assert (tmp_path / "room/bare/carried").is_dir()


def test_check_version_that_the_images_mpi_needs() -> None:
    assert not found(planned(carried(), facts=with_mpi_that_needs("1.7")))
    [(what, (severity, words))] = found(
        planned(carried(), facts=with_mpi_that_needs("1.9"))
    ).items()
    assert severity is Severity.ERROR and "too old" in what
    assert "FABRIC_1.9" in words and "1.8" in words


def test_check_glibc_and_closure_of_what_is_brought() -> None:
    newer = replace(carried().closure[0], needs={"GLIBC": "2.99"})
    [(what, (severity, words))] = found(planned(carried(closure=(newer,)))).items()
    assert severity is Severity.ERROR and "glibc 2.36 is too old" in what and "libcxi" in words
    lacking = carried(missing=(("libcxi.so.1", "/opt/cray/libfabric.so.1"),))
    [(what, (severity, _))] = found(planned(lacking)).items()
    assert severity is Severity.ERROR and "libcxi.so.1" in what
    own = replace(carried().closure[1], needs={"GLIBC": "2.99"})
    assert not found(planned(carried(closure=(own,))))


def test_check_rpath_of_the_images_mpi_is_a_warning() -> None:
    tied = with_mpi_that_needs(rpath=("/opt/mpich/lib",), runpath=())
    [(_, (severity, words))] = found(planned(carried(), facts=tied)).items()
    assert severity is Severity.WARNING and "/opt/mpich/lib" in words


def fabric(folder: Path, soname: str = "libfabric.so.1", *words: str) -> Path:
    """A libfabric with symbol versions."""
    script = folder / "versions"
    folder.mkdir(parents=True, exist_ok=True)
    script.write_text(VERSIONS)
    code = "int fi_getinfo(void) { return 1; }\nint more(void) { return 2; }"
    return compiled(folder / soname, code, f"-Wl,--version-script={script}", *words)


def looked(root: Path, **environ: str) -> HostLibrary | None:
    (root / "etc").mkdir(exist_ok=True)
    site = replace(SITE, nccl=NcclSite(libraries=("/opt/site/fabric/lib",)))
    return find("libfabric", FABRIC, "x64", site, environ, root)


def test_find_order_of_folders(tmp_path: Path) -> None:
    assert looked(tmp_path) is None
    folders = ("usr/lib", "opt/cray/libfabric/1.22.0/lib64", "opt/site/fabric/lib", "modules")
    for folder in folders:
        made = fabric(tmp_path / folder)
        environ = {"LD_LIBRARY_PATH": str(tmp_path / folder)} if folder == "modules" else {}
        one = looked(tmp_path, **environ)
        assert one and Path(one.files[0].path) == made and one.found_by
        assert one.files[0].offers["FABRIC"] == "1.7"


def test_find_what_is_behind_it_and_its_modules(tmp_path: Path) -> None:
    folder = tmp_path / "opt/site/fabric/lib"
    cxi = compiled(folder / "libcxi.so.1", "int cxi(void) { return 1; }")
    compiled(folder / "libfabric/libefa-fi.so", "int efa(void) { return 1; }")
    fabric(folder, "libfabric.so.1", "-Wl,--no-as-needed", str(cxi))
    one = looked(tmp_path)
    assert one and "libcxi.so.1" in [elf.name for elf in one.closure]
    assert [Path(p.folder).name for p in one.modules] == ["libfabric"]


def test_find_part_of_ucx_is_none(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    ucx = LIBRARIES.get("ucx")
    for soname in ucx.sonames[:-1]:
        compiled(tmp_path / "usr/lib" / soname, "int ucp(void) { return 1; }")
    assert find("ucx", ucx, "x64", SITE, {}, tmp_path) is None
    compiled(tmp_path / "usr/lib" / ucx.sonames[-1], "int ucm(void) { return 1; }")
    one = find("ucx", ucx, "x64", SITE, {}, tmp_path)
    assert one and [elf.soname for elf in one.files] == list(ucx.sonames)
    assert find("ucx", ucx, "AArch64", SITE, {}, tmp_path) is None


@pytest.mark.skipif(not find_patchelf(), reason="no patchelf")
def test_staged_folder_finds_its_own_libraries(tmp_path: Path) -> None:
    folder = tmp_path / "opt/site/fabric/lib"
    cxi = compiled(folder / "libcxi.so.1", "int cxi(void) { return 1; }")
    fabric(folder, "libfabric.so.1", "-Wl,--no-as-needed", str(cxi))
    one = looked(tmp_path)
    assert one
    made = planned(one)
    staging.ensure(made, tmp_path / "cache")
    [library] = (tmp_path / "cache/stage").glob("libfabric-*/lib/libfabric.so.1")
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    assert re.search(rf"RPATH.*{CARRIED_MOUNT}/lib:{CARRIED_MOUNT}/dep", dynamic.stdout)
    [known] = [k for k in closure.libraries(made, tmp_path / "cache") if k.stem == "libfabric"]
    assert known.inode == library.stat().st_ino and not known.loose


def test_words_for_people_name_it() -> None:
    made = planned(carried())
    assert swap_line(made).endswith("; libfabric of the host below it")
    [line] = why_not(made, "libfabric.so.1")
    assert line.kind == "staged" and line.what == f"{CARRIED_MOUNT}/lib/libfabric.so.1"
    assert "carry" in {line.kind for line in made.lines}


def test_proof_another_library_than_the_hosts_is_named() -> None:
    made = planned(carried())
    rank = RankProof(
        0, 1, "nid1", made.planned_file, 0, 1, "MPICH Version: 3.4.3", "ch4:ofi", ("tcp",), True, {},
        others=("/usr/lib/x86_64-linux-gnu/libfabric.so.1.19.0",),
    )  # fmt: skip
    [finding] = [f for f in judged(made, 1, 0, [rank], 1.0).findings if f.check == "carried"]
    assert "libfabric" in finding.what and "libfabric.so.1.19.0" in finding.where
    assert "--carry none" in finding.remedy


def options(**changes: Any) -> Planning:
    return Planning(**{"apps": (), "binds": (), "engine_args": (), "carry": (), **changes})


def test_option_belongs_to_the_images_mpi() -> None:
    assert options(mpi="container", carry=("ucx",)).request(1).carry == ("ucx",)
    with pytest.raises(click.UsageError, match="--mpi container"):
        options(carry=("libfabric",))


def test_names_of_a_profile_are_the_declared_ones() -> None:
    assert set(LIBRARIES.names()) >= {"libfabric", "ucx"}
