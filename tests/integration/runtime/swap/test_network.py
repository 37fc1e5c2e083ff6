"""NCCL's network plugin in the plan, and its staged folder from real files."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.compiled import compiled
from tests.support.nccl import Does, gpu_ask, gpu_image, gpu_plan, network, plugin, plugin_of
from tests.support.recorded import CACHE, NO_FILES

from fairlead.base.system import Machine
from fairlead.elf import reader
from fairlead.elf.patchelf import find_patchelf
from fairlead.nccl.host import discover
from fairlead.nccl.model import HostNetwork, NcclRules
from fairlead.swap import staging
from fairlead.swap.model import NCCL_MOUNT, ROOM, Bind, Plan

FILE = "/opt/fairlead/nccl/lib/libnccl-net-ofi.so"


def lines(plan: Plan, kind: str) -> dict[str, str]:
    return {line.what: line.why for line in plan.lines if line.kind == kind}


def test_plan_binds_one_folder_and_says_what_for() -> None:
    plan = gpu_plan()
    assert plan.nccl and plan.nccl_staging
    folder = f"{CACHE}/stage/{plan.nccl_staging.key}"
    assert Bind(folder, NCCL_MOUNT, read_only=True) in plan.binds
    assert (plan.nccl.folder, plan.nccl.file, plan.nccl.interface) == (folder, FILE, 8)
    assert plan.nccl.providers == ("cxi",)
    assert plan.devices == plan.nccl.devices == ("/dev/cxi0", "/dev/cxi1")
    [brought] = lines(plan, "network")
    assert "aws-ofi-nccl 1.18.0" in brought and "NCCL 2.21.5" in brought and "v8" in brought


def test_plan_every_variable_of_nccl_has_a_line() -> None:
    user = {"NCCL_DEBUG": "INFO", "NCCL_CROSS_NIC": "0"}
    plan = gpu_plan(asked=gpu_ask(user=user))
    assert plan.nccl
    shown = lines(plan, "env")
    for name, value in plan.nccl.env.items():
        assert shown[f"{name}={value}"]
        assert plan.env[name] == value
    assert "in place of 1" in shown["NCCL_CROSS_NIC=0"]


def test_plan_image_variables_are_undone_with_a_line() -> None:
    facts = gpu_image(nccl_conf={"NCCL_NET": "IB", "NCCL_CROSS_NIC": "1"})
    plan = gpu_plan(facts, gpu_ask(image={"NCCL_NET_PLUGIN": "spcx"}))
    assert plan.env["NCCL_NET_PLUGIN"] == FILE
    undone = lines(plan, "undone")
    assert "the image sets it" in undone["NCCL_NET_PLUGIN=spcx"]
    assert "/etc of the image" in undone["NCCL_NET=IB"]
    assert "NCCL_CROSS_NIC=1" not in undone  # the same value


def test_plan_without_gpus_or_nccl_is_as_before() -> None:
    without = gpu_plan(replace(gpu_image(), nccl=()))
    for plan in (gpu_plan(asked=gpu_ask(gpus=False)), without):
        assert plan.nccl is None and plan.nccl_staging is None
        assert plan.lines == without.lines and plan.env == without.env


def test_plan_image_keeps_its_networks_and_says_why() -> None:
    plan = gpu_plan(asked=gpu_ask(want="image"))
    [(what, why)] = lines(plan, "network").items()
    assert "NCCL 2.21.5" in what and "--nccl image" in why
    assert plan.nccl is None and not any(name.startswith("NCCL") for name in plan.env)


def test_plan_names_are_those_that_nccl_asks_for_and_nothing_else() -> None:
    plan = gpu_plan()
    assert plan.nccl_staging
    found = {f.target for f in plan.nccl_staging.files} | {a for a, _ in plan.nccl_staging.aliases}
    assert {name for name in found if name.startswith("lib/")} == {
        "lib/libnccl-net.so", "lib/libnccl-net-ofi.so", "lib/libnccl-net-fairlead.so",
    }  # fmt: skip
    rccl = gpu_plan(gpu_image("2.20.5", runtime="rocm6.2", kind="rccl"))
    assert rccl.nccl_staging
    assert "lib/librccl-net.so" in dict(rccl.nccl_staging.aliases)


def test_plan_search_path_is_left_alone_but_for_old_releases() -> None:
    assert "nccl" not in gpu_plan().env["LD_LIBRARY_PATH"]
    old = gpu_plan(gpu_image("2.20.5"))
    assert old.env["LD_LIBRARY_PATH"] == "/opt/fairlead/mpi/lib:/opt/fairlead/nccl/lib"
    kept = gpu_plan(gpu_image("2.20.5"), library_path="/mine")
    assert kept.env["LD_LIBRARY_PATH"].endswith(":/mine")
    bare = gpu_plan(isolate=False)
    assert f"{NCCL_MOUNT}/dep" in bare.env["LD_LIBRARY_PATH"].split(":")
    assert bare.nccl_staging and not any(f.rpath for f in bare.nccl_staging.files)


def test_plan_what_the_mpi_brings_is_not_brought_again() -> None:
    plan = gpu_plan()
    assert plan.nccl_staging and plan.staging
    names = {Path(f.target).name for f in plan.nccl_staging.files}
    assert not names.intersection(Path(f.target).name for f in plan.staging.files)
    [shared] = {f.target for f in plan.staging.files if f.target.endswith("/libfabric.so.1")}
    folder = f"/opt/fairlead/mpi/{Path(shared).parent}"
    assert all(folder in f.rpath.split(":") for f in plan.nccl_staging.files)
    assert "FI_PROVIDER_PATH" in plan.env and "mpi" in plan.env["FI_PROVIDER_PATH"]


def test_plan_gpu_libraries_and_glibc_are_never_staged() -> None:
    plan = gpu_plan()
    assert plan.nccl_staging
    for file in plan.nccl_staging.files:
        assert not Path(file.target).name.startswith(("libc.so", "libcuda", "libstdc++"))
    assert [(s.target, s.needed) for s in plan.nccl_staging.stubs] == [
        ("dep/libcudart.so", "libcudart.so.12")
    ]


@pytest.mark.parametrize(
    ("runtime", "opens", "needed"),
    [
        ("cuda11.8", "libcudart.so", "libcudart.so.11.0"),
        ("cuda12.4", "libcudart.so", "libcudart.so.12"),
        ("cuda13.1", "libcudart.so", "libcudart.so.13"),
        ("cuda12.4", "libcuda.so", "libcuda.so.1"),
        ("rocm6.2", "libamdhip64.so", "libamdhip64.so.6"),
    ],
)
def test_plan_unversioned_name_leads_to_the_images_library(runtime, opens, needed) -> None:
    plan = gpu_plan(gpu_image(runtime=runtime), gpu_ask(network(plugin_of(opens=(opens,)))))
    assert plan.nccl_staging
    assert [(s.target, s.needed) for s in plan.nccl_staging.stubs] == [(f"dep/{opens}", needed)]
    assert any(f"{opens} -> {needed}" in what for what in lines(plan, "alias"))


def test_plan_copies_search_the_images_run_time_last() -> None:
    """torch maps it by its own path, and no search path leads there."""
    plan = gpu_plan()
    assert plan.nccl_staging
    folder = "/opt/venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib"
    assert all(f.rpath.split(":")[-1] == folder for f in plan.nccl_staging.files)
    without = gpu_plan(asked=gpu_ask(network(plugin_of(opens=()))))
    assert without.nccl_staging
    assert not any(folder in f.rpath for f in without.nccl_staging.files)


def test_plan_engine_that_shows_folders_only_has_a_place_for_it(tmp_path: Path) -> None:
    plan = gpu_plan(engine=NO_FILES)
    assert plan.binds[0].target == ROOM
    bare = replace(plan, staging=None, nccl_staging=None)
    staging.ensure(bare, tmp_path)
    [room] = (tmp_path / "room").iterdir()
    assert (room / "nccl").is_dir() and (room / "mpi").is_dir()
    (room / "nccl").rmdir()  # as an older version left it
    staging.ensure(bare, tmp_path)
    assert (room / "nccl").is_dir()


def test_plan_key_moves_with_the_plugin() -> None:
    one, again = gpu_plan(), gpu_plan()
    other = gpu_plan(asked=gpu_ask(network(plugin_of(build_id="beef"))))
    assert one.nccl_staging and again.nccl_staging and other.nccl_staging
    assert one.nccl_staging.key == again.nccl_staging.key != other.nccl_staging.key


def real(tmp_path: Path) -> HostNetwork:
    """A plugin with a library behind it, as its host has them."""
    behind = compiled(tmp_path / "site/deps/libhwloc.so.15", "int hwloc(void) { return 15; }")
    words = ["-Wl,--no-as-needed", str(behind), f"-Wl,-rpath,{behind.parent}"]
    folder = tmp_path / "site/lib"
    plugin(
        folder / "libnccl-net.so.0.0.0", words=words, release="1.9.2", does=Does(("libcuda.so",))
    )
    (folder / "libnccl-net.so").symlink_to("libnccl-net.so.0.0.0")
    found = discover(NcclRules(), Machine({}), {}, named=str(folder))
    return found.networks[0]


@pytest.fixture
def planned_really(tmp_path: Path) -> Plan:
    plan = gpu_plan(asked=gpu_ask(real(tmp_path)), isolate=bool(find_patchelf()))
    return replace(plan, staging=None, witness="")


def test_staged_folder_has_every_name_and_finds_its_own(planned_really, tmp_path: Path) -> None:
    assert find_patchelf()
    assert planned_really.nccl_staging
    cache = tmp_path / "cache"
    staging.ensure(planned_really, cache)
    folder = cache / "stage" / planned_really.nccl_staging.key
    assert staging.is_whole(folder, planned_really.nccl_staging)
    assert sorted(path.name for path in (folder / "lib").iterdir()) == [
        "libnccl-net-fairlead.so", "libnccl-net-ofi.so", "libnccl-net.so", "libnccl-net.so.0.0.0",
    ]  # fmt: skip
    elf = reader.read(folder / "lib/libnccl-net.so")
    assert elf.rpath == ("/opt/fairlead/nccl/dep",) and not elf.runpath
    assert reader.read(folder / "dep/libhwloc.so.15").rpath == elf.rpath
    assert reader.read(folder / "dep/libcuda.so").needed == ("libcuda.so.1",)


@pytest.mark.parametrize("fault", ["stub", "alias", "another", "source", "copy"])
def test_staged_folder_that_was_changed_is_made_anew(planned_really, tmp_path: Path, fault) -> None:
    made = planned_really.nccl_staging
    assert made
    cache = tmp_path / "cache"
    staging.ensure(planned_really, cache)
    folder = cache / "stage" / made.key
    if fault == "stub":
        (folder / "dep/libcuda.so").write_bytes(b"\x7fELF")
    elif fault == "alias":
        (folder / "lib/libnccl-net.so").unlink()
        (folder / "lib/libnccl-net.so").symlink_to("/elsewhere.so")
    elif fault == "another":
        (folder / "lib/libnccl-tuner.so").touch()
    elif fault == "source":
        source = next(f.source for f in made.files if f.target.startswith("dep/"))
        compiled(Path(source), "int hwloc(void) { return 16; }")
    else:
        (folder / "dep/libhwloc.so.15").write_bytes(b"")
    assert not staging.is_whole(folder, made)
    staging.ensure(planned_really, cache)
    assert staging.is_whole(folder, made)


def test_staged_libraries_have_no_leftover_of_the_host(planned_really, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    staging.ensure(planned_really, cache)
    assert planned_really.nccl_staging
    folder = cache / "stage" / planned_really.nccl_staging.key
    for path in folder.rglob("*.so*"):
        shown = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True)
        assert str(tmp_path / "site") not in shown.stdout
