"""A profile held against a machine: what an update moved, what cannot be seen, and how much it weighs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests import recording
from tests.recording import Played
from tests.unit.runtime.detect import test_detect as machines

from fairlead.base.errors import Severity
from fairlead.detect.drift import Compared, Here, State, compare, find_library
from fairlead.detect.gather import gather
from fairlead.site import Site, layers

PROFILE = """
[site]
name = "lumi"
summary = "A machine of which its profile tells things of last year."

[sources.docs]
text = "the site's documentation"
status = "documented"

[scheduler]
source = "docs"
kind = "slurm"

[launcher]
source = "docs"
kinds = ["srun"]
pmi = ["cray", "pmi2", "pmix"]

[engine]
source = "docs"
kinds = ["apptainer"]

[fabric]
source = "docs"
kind = "slingshot"
interfaces = ["hsn*"]
counters = ["/sys/class/cxi/cxi*/device/telemetry/hni_sts_tx_ok_octets"]
accepts = ["cxi"]

[mpi]
source = "docs"
vendor = "Cray MPICH"
family = "mpich"
search = ["/opt/cray/pe/mpich/8.1.27/ofi/gnu/12.3/lib-abi-mpich"]
modules = ["cray-mpich-abi"]
variable = "CRAY_MPICH_DIR"

[dependencies]
source = "docs"
folders = ["/opt/cray/pals/1.2.12/lib", "/opt/cray/pe/pmi/*/lib"]
files = ["/usr/lib64/libcxi.so.1", "/usr/lib64/libjson-c.so.5", "$NOT_SET/libx.so"]
expected = ["libxpmem.so.0", "libjson-c.so.5", "libnowhere.so.7"]

[devices]
source = "docs"
paths = ["/dev/cxi*", "/dev/kgni0"]

[gpu]
source = "docs"
vendor = "amd"
per_node = 8

[comm]
source = "docs"
plugin = ["/opt/cray/pals/1.2.12/lib", "/opt/cray/pe/pmi/*/lib"]

[nccl]
source = "docs"
folders = ["/opt/cray/gone/lib", "/opt/cray/pals/1.2.12/lib", "/opt/cray/no/lib"]
libraries = ["/opt/cray/gone/lib", "/opt/cray/pe/pmi/*/lib"]
files = ["/usr/lib64/libcxi.so*", "/usr/lib64/libgdrapi.so*"]
interfaces = ["hsn", "mlx"]

[storage]
source = "docs"
shared = "/pfs/lustrep1"
sources.memory = "guess"
memory = "/dev/shm"

[node]
source = "guess"
processor = ["zen3"]
cores = 128
memory_gib = 1024
"""


@cache
def profile(folder: Path) -> Site:
    path = folder / "lumi.toml"
    path.write_text(PROFILE)
    return layers.load(path, {})


def held(folder: Path, world: Played) -> dict[tuple[str, str], Compared]:
    found = compare(profile(folder), gather(world), world)
    assert all(c.wanted and c.seen for c in found)
    return {(c.key, c.wanted): c for c in found}


def test_library_that_an_update_moved_is_named_with_its_new_place(tmp_path: Path) -> None:
    found = held(tmp_path, machines.played("lumi-login"))
    search = found["mpi.search", "/opt/cray/pe/mpich/8.1.27/ofi/gnu/12.3/lib-abi-mpich"]
    assert search.state is State.DIFFERS and search.severity is Severity.ERROR
    assert search.moved_to[0] == "/opt/cray/pe/mpich/8.1.29/ofi/gnu/12.3/lib-abi-mpich"
    # Another number of its own: what it is called now.
    moved = found["dependencies.files", "/usr/lib64/libjson-c.so.5"]
    assert moved.moved_to == ("/usr/lib64/libjson-c.so.3",)
    expected = found["dependencies.expected", "libjson-c.so.5"]
    assert expected.state is State.DIFFERS and expected.moved_to == ("/usr/lib64/libjson-c.so.3",)
    assert found["dependencies.folders", "/opt/cray/pals/1.2.12/lib"].moved_to == (
        "/opt/cray/pals/1.3.2/lib",
    )
    plugin = found["comm.plugin", "/opt/cray/pals/1.2.12/lib"]
    assert plugin.state is State.DIFFERS and plugin.moved_to == ("/opt/cray/pals/1.3.2/lib",)
    assert found["comm.plugin", "/opt/cray/pe/pmi/*/lib"].state is State.OK
    assert found["dependencies.expected", "libnowhere.so.7"].moved_to == ()
    assert found["dependencies.expected", "libxpmem.so.0"].state is State.OK
    assert found["dependencies.files", "/usr/lib64/libcxi.so.1"].state is State.OK
    assert found["dependencies.files", "$NOT_SET/libx.so"].state is State.UNSEEN


def test_plugin_of_nccl_needs_one_of_its_folders_and_is_named_where_it_moved(
    tmp_path: Path,
) -> None:
    found = held(tmp_path, machines.played("frontier-compute"))
    assert found["nccl.libraries", "/opt/cray/pe/pmi/*/lib"].state is State.OK
    assert ("nccl.libraries", "/opt/cray/gone/lib") not in found
    [folders] = [c for (key, _), c in found.items() if key == "nccl.folders"]
    assert (folders.state, folders.severity) == (State.DIFFERS, Severity.ERROR)
    assert folders.moved_to and "/opt/cray/pals/" in folders.moved_to[0]
    assert found["nccl.files", "/usr/lib64/libcxi.so*"].state is State.OK
    assert found["nccl.files", "/usr/lib64/libgdrapi.so*"].state is State.DIFFERS
    assert found["nccl.interfaces", "/sys/class/net/hsn*"].state is State.OK
    assert found["nccl.interfaces", "/sys/class/net/mlx*"].state is State.DIFFERS


def test_library_is_found_in_the_loaders_folders(tmp_path: Path) -> None:
    made = machines.played("lumi-login").recording
    files = {
        **made.files,
        "/etc/ld.so.conf": "include ld.so.conf.d/*.conf  # more\n",
        "/etc/ld.so.conf.d/site.conf": "/opt/site/lib\n",
    }
    world = Played(replace(made, files=files, present=(*made.present, "/opt/site/lib/libodd.so.1")))
    here = Here(profile(tmp_path), gather(world), world)
    assert find_library(here, "libodd.so.1") == ("/opt/site/lib/libodd.so.1",)
    assert find_library(here, "libodd.so.2") == ("/opt/site/lib/libodd.so.1",)
    assert find_library(here, "libnone.so.1") == ()


def test_login_node_does_not_show_what_compute_nodes_have(tmp_path: Path) -> None:
    found = held(tmp_path, machines.played("lumi-login"))
    assert found["devices.paths", "/dev/cxi*"].state is State.OK
    unseen = {key for key, c in found.items() if c.state is State.UNSEEN}
    assert ("devices.paths", "/dev/kgni0") in unseen
    assert ("gpu.vendor", "amd") in unseen and ("node.cores", "128") in unseen
    assert all(found[key].severity is Severity.INFO for key in unseen)


def test_compute_node_shows_what_is_wrong(tmp_path: Path) -> None:
    found = held(tmp_path, machines.played("frontier-compute"))
    absent = found["devices.paths", "/dev/kgni0"]
    assert (absent.state, absent.severity) == (State.DIFFERS, Severity.ERROR)
    assert found["fabric.kind", "slingshot"].state is State.OK
    assert found["gpu.vendor", "amd"].state is State.OK
    assert found["gpu.per_node", "8"].state is State.OK
    # What nobody has said weighs less when it is wrong.
    memory = found["node.memory_gib", "1024 GiB"]
    assert (memory.state, memory.severity) == (State.DIFFERS, Severity.WARNING)
    assert found["launcher.pmi", "pmix"].state is State.DIFFERS
    assert found["launcher.pmi", "cray"].state is State.OK


def test_machine_of_another_kind_differs_everywhere(tmp_path: Path) -> None:
    found = held(tmp_path, machines.played("laptop-ubuntu"))
    for key in ("scheduler.kind", "launcher.kinds", "engine.kinds", "fabric.kind", "gpu.vendor"):
        assert next(c for (k, _), c in found.items() if k == key).state is State.DIFFERS, key
    # Without its module there is no MPI to look at.
    assert found["mpi.vendor", "Cray MPICH"].state is State.UNSEEN
    assert "module load cray-mpich-abi" in found["mpi.vendor", "Cray MPICH"].seen


def test_capture_says_what_facts_say_and_of_paths_that_it_has_none(tmp_path: Path) -> None:
    facts = machines.facts_of("lumi-login")
    found = {(c.key, c.wanted): c for c in compare(profile(tmp_path), facts)}
    assert found["scheduler.kind", "slurm"].state is State.OK
    assert found["mpi.vendor", "Cray MPICH"].state is State.OK
    assert found["dependencies.expected", "libxpmem.so.0"].state is State.OK
    assert found["devices.paths", "/dev/cxi*"].state is State.UNSEEN
    assert found["fabric.kind", "slingshot"].state is State.OK


@pytest.mark.parametrize("name", sorted(machines.EXPECTED))
def test_profile_and_the_recording_made_for_it_agree_on_what_can_be_compared(name: str) -> None:
    """What a bundled profile says as documented holds on the machine that was recorded from the same
    documents: who changes one of the two looks at the other."""
    world = machines.played(name)
    site = machines.bundled()[machines.EXPECTED[name].profile]
    found = compare(site, machines.facts_of(name), world)
    wrong = [f"{c.key}: {c.wanted} is {c.seen}" for c in found if c.severity is Severity.ERROR]
    assert wrong == []
    assert any(c.state is State.OK for c in found)


def test_family_is_no_machine_so_that_what_it_says_is_no_error() -> None:
    world = machines.played("flux-ex")
    found = compare(machines.bundled()["cray-ex-slingshot"], machines.facts_of("flux-ex"), world)
    scheduler = next(c for c in found if c.key == "scheduler.kind")
    assert (scheduler.state, scheduler.severity) == (State.DIFFERS, Severity.WARNING)
    assert not [c for c in found if c.key == "binds.paths" and c.state is State.DIFFERS]


def test_site_with_several_kinds_of_node_is_not_wrong_about_one(tmp_path: Path) -> None:
    one = profile(tmp_path)
    two = replace(one, scheduler=replace(one.scheduler, nodes={"-C cpu": "x", "-C gpu": "y"}))
    world = machines.played("frontier-compute")
    for site, state in ((one, State.DIFFERS), (two, State.UNSEEN)):
        found = {c.key: c for c in compare(site, machines.facts_of("frontier-compute"), world)}
        assert found["node.memory_gib"].state is state


def test_recordings_are_read_by_their_own_reader() -> None:
    for path in machines.RECORDED.glob("*.toml"):
        assert recording.read(path).about
