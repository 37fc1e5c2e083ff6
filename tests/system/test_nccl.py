"""The host's network plugin in real containers: a library that opens its plugin as NCCL does finds the planned one.

The ``full`` tests take NCCLs from PyPI and compare what preflight says with what NCCL's loader and log say.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.compiled import compiled
from tests.support.nccl import Does, plugin
from tests.system import hosts
from tests.system.hosts import answer, fairlead

from fairlead.base.system import Machine
from fairlead.elf import nccl_symbols, reader
from fairlead.nccl.choose import choose
from fairlead.nccl.host import discover
from fairlead.nccl.interfaces import row
from fairlead.nccl.model import NcclRules
from fairlead_build.cache.store import scratch_parent

COMMUNICATOR = """
import ctypes, sys
from mpi4py import MPI
library = ctypes.CDLL("/opt/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2")
code = library.ncclCommInitRank()
print("rank", MPI.COMM_WORLD.rank, "code", code, flush=True)
sys.exit(code)
"""
PROFILE = """
[site]
name = "{name}"
summary = "a laptop with a network plugin"
extends = "laptop"

[sources]
guide = {{ status = "documented", text = "its guide", read = "2026-06-01" }}

[nccl]
folders = ["{folder}"]
networks = ["AWS Libfabric"]
single_node = true
env = {{ NCCL_CROSS_NIC = "1" }}
source = "guide"
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """mpi-base as a folder, with a library that does what NCCL 2.21.5 does about its network."""
    code = hosts.PROGRAMS.joinpath("nccl_opens.c").read_text()
    made = compiled(tmp_path_factory.mktemp("nccl") / "libnccl.so.2", code)
    cuda = compiled(made.with_name("libcudart.so.12"), "int cudaGetDevice(void) { return 1; }")
    wheels = "/opt/venv/lib/python3.11/site-packages/nvidia"
    files = {
        f"{wheels}/nccl/lib/libnccl.so.2": made,
        f"{wheels}/cuda_runtime/lib/libcudart.so.12": cuda,
    }
    with tempfile.TemporaryDirectory(dir=scratch_parent(500 << 20)) as work:
        yield hosts.unpacked(Path(work, "tree"), files)


def host_plugin(folder: Path, **changes: object) -> Path:
    """A plugin with a library in a folder that only its RUNPATH names; returns the plugin's folder."""
    behind = compiled(folder / "deps/libhwloc.so.15", "int hwloc(void) { return 15; }")
    words = ["-Wl,--no-as-needed", str(behind), f"-Wl,-rpath,{behind.parent}"]
    plugin(folder / "lib/libnccl-net-ofi.so", **{"release": "1.18.0", "words": words, **changes})
    return folder / "lib"


def launched(image: Path, *words: str, env: dict[str, str] | None = None):
    command = ("run", "-n", "2", "--json", *words, image, "--", "python3", "-c", COMMUNICATOR)
    return fairlead(*command, env=env)


def test_ranks_load_the_hosts_plugin_and_its_own_library(image: Path, tmp_path: Path) -> None:
    folder = host_plugin(tmp_path, does=Does(("libhwloc.so.15",)))
    done = launched(image, "--nccl", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stdout + done.stderr
    loaded = "loaded /opt/fairlead/nccl/lib/libnccl-net-ofi.so by ncclNetPlugin_v8"
    assert text.count(loaded) == 2
    assert text.count("Using network Libfabric") == 2


@pytest.mark.parametrize("name", ["libcudart.so", "libcudart.so.12"])
def test_plugin_finds_the_images_run_time_where_no_search_path_leads(
    image: Path, tmp_path: Path, name: str
) -> None:
    folder = host_plugin(tmp_path, does=Does((name,)))
    done = launched(image, "--nccl", str(folder))
    text = done.stdout + done.stderr
    assert done.returncode == 0 and text.count("Using network Libfabric") == 2, text


def test_plugin_of_a_profile_serves_by_its_network_and_a_miss_is_an_error(
    image: Path, tmp_path: Path
) -> None:
    site = tmp_path / "there.toml"
    folder = host_plugin(tmp_path, name="AWS Libfabric")
    site.write_text(PROFILE.format(name="there", folder=folder))
    words = ("--nccl", "host", "--site", str(site))
    done = launched(image, *words)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert text.count("Using network AWS Libfabric") == 2
    host_plugin(tmp_path, name="AWS Libfabric", does=Does(fails=2))  # as without a network card
    done = launched(image, *words)
    text = done.stdout + done.stderr
    assert done.returncode == 122, text
    assert "network AWS Libfabric not found" in text and "Using network Socket" not in text


@pytest.mark.parametrize("mpi", ["host", "container"])
def test_programs_find_what_the_engine_brings_for_gpus(tmp_path: Path, mpi: str) -> None:
    """As --nv binds them: an image of fairlead's leads to that folder, with the host's MPI and without."""
    driver = compiled(tmp_path / "libcuda.so.1", "int cuInit(unsigned flags) { return 7; }")
    opens = "import ctypes; from mpi4py import MPI; print('init', ctypes.CDLL('libcuda.so.1').cuInit(0), flush=True)"
    bound = f"{driver}:/.singularity.d/libs/libcuda.so.1"
    words = (
        "run",
        "-n",
        "1",
        "--mpi",
        mpi,
        "-B",
        bound,
        hosts.image(),
        "--",
        "python3",
        "-c",
        opens,
    )
    done = fairlead(*words)
    assert done.returncode == 0 and "init 7" in done.stdout, done.stdout + done.stderr


def test_image_alone_uses_tcp_and_is_asked_for(image: Path, tmp_path: Path) -> None:
    folder = host_plugin(tmp_path)
    env = {"LD_LIBRARY_PATH": str(folder)}
    done = launched(image, "--nccl", "image", env=env)
    text = done.stdout + done.stderr
    assert done.returncode == 0 and text.count("Using network Socket") == 2, text


def test_preflight_refuses_and_explain_shows(image: Path, tmp_path: Path) -> None:
    new = plugin(tmp_path / "new/libnccl-net.so", (11, 12), release="1.21.1")
    done = fairlead("preflight", image, "--nccl", new, "--json")
    assert done.returncode == 121
    found = answer(done)
    [finding] = [f for f in found["findings"] if f["check"] == "nccl-interface"]
    assert "v5, v6, v7, v8" in finding["why"] and "v11, v12" in finding["why"]
    folder = host_plugin(tmp_path / "good")
    done = fairlead("explain", image, "--nccl", folder)
    assert done.returncode == 0, done.stderr
    for text in (
        "NCCL's network\n",
        "aws-ofi-nccl 1.18.0 of the host -> NCCL 2.21.5 of the image, net interface v8",
        "NCCL_NET_PLUGIN=/opt/fairlead/nccl/lib/libnccl-net-ofi.so",
        "the ranks are on one node",
    ):
        assert text in done.stdout
    dry = fairlead("run", "-n", "2", "--dry-run", "--nccl", folder, image, "--", "true")
    assert ":/opt/fairlead/nccl:ro" in dry.stdout


def test_example_shows_the_plugin_that_serves_an_image(image: Path, tmp_path: Path) -> None:
    folder = host_plugin(tmp_path)
    done = hosts.typed(f"sh examples/nccl_plugin.sh {image} {folder}")
    assert done.returncode == 0, done.stdout
    assert "ok    aws-ofi-nccl 1.18.0 of the host serves NCCL 2.21.5 of the image" in done.stdout
    assert "NCCL's network\n" in done.stdout and ":/opt/fairlead/nccl:ro" in done.stdout


def test_variables_of_the_user_stay(image: Path, tmp_path: Path) -> None:
    folder = host_plugin(tmp_path)
    env = {"NCCL_NET": "Socket", "NCCL_DEBUG": "WARN"}
    done = launched(image, "--nccl", str(folder), env=env)
    text = done.stdout + done.stderr
    assert done.returncode == 0 and text.count("Using network Socket") == 2, text
    assert "nccl-user" in text


@pytest.mark.parametrize(
    "text", [None, "", "not a library", "\x7fELF cut"], ids=["gone", "empty", "text", "cut"]
)
def test_file_that_is_not_a_plugin_is_refused_at_once(image: Path, tmp_path: Path, text) -> None:
    path = tmp_path / "libnccl-net.so"
    if text is not None:
        path.write_text(text)
    done = fairlead("preflight", image, "--nccl", path, limit_s=60)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "next:" in done.stderr


# The real NCCLs that look for their plugin before they look for a GPU, in ncclGetUniqueId.
WHEELS = (
    ("nvidia-nccl-cu11", "2.13.4"),
    ("nvidia-nccl-cu11", "2.14.3"),
    ("nvidia-nccl-cu11", "2.16.5"),
    ("nvidia-nccl-cu12", "2.18.1"),
    ("nvidia-nccl-cu12", "2.19.3"),
    ("nvidia-nccl-cu12", "2.20.5"),
    ("nvidia-nccl-cu12", "2.21.5"),
)
INTERFACES = (
    (2, 3, 4),
    (4,),
    (5,),
    (6,),
    (7,),
    (8,),
    (9, 10),
    (2, 3, 4, 5, 6),
    (6, 7, 8, 9, 10, 11),
)
UNIQUE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.ncclGetUniqueId(ctypes.create_string_buffer(128))
"""


def real_nccl(name: str, version: str) -> Path:
    """The library of a wheel, kept with the tests' other downloads."""
    kept = hosts.KEPT / f"{name}-{version}"
    if not kept.is_dir():
        partial = kept.with_name(f".{kept.name}.{os.getpid()}")
        quiet = ("-q", "--no-deps", "--no-compile", "--target", str(partial))
        argv = [sys.executable, "-m", "pip", "install", *quiet, f"{name}=={version}"]
        subprocess.run(argv, check=True)
        partial.rename(kept)
    return kept / "nvidia/nccl/lib/libnccl.so.2"


def log_of(library: Path, folder: Path, **environ: str) -> str:
    variables = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV", **environ}
    done = subprocess.run(
        [sys.executable, "-c", UNIQUE, library],
        env={"LD_LIBRARY_PATH": str(folder), "PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def taken_interface(library: Path, folder: Path, versions: tuple[int, ...]) -> int:
    """The version of the interface that a real NCCL takes; 0: none. The loader lists the symbols that it asks for, from
    the newest down until one is there."""
    seen = folder / "symbols"
    log_of(library, folder, LD_DEBUG="symbols", LD_DEBUG_OUTPUT=str(seen))
    [listing] = folder.glob("symbols.*")
    asked = [int(n) for n in re.findall(r"symbol=ncclNetPlugin_v(\d+);", listing.read_text())]
    assert asked, "the plugin was not opened"
    return asked[-1] if asked[-1] in versions else 0


@pytest.mark.full
@pytest.mark.parametrize(("name", "version"), WHEELS)
def test_preflights_word_on_a_real_nccl_is_what_its_log_says(tmp_path: Path, name, version) -> None:
    path = real_nccl(name, version)
    library = nccl_symbols.library(path, reader.read(path))
    assert library and library.version == version
    compared = {}
    for versions in INTERFACES:
        folder = tmp_path / "-".join(map(str, versions))
        plugin(folder / "libnccl-net.so", versions)
        there = discover(NcclRules(), Machine({}), {}, named=str(folder))
        said = choose(library, there.networks).interface
        compared[versions] = said, taken_interface(path, folder, versions)
    assert {v: said for v, (said, _) in compared.items()} == {
        v: real for v, (_, real) in compared.items()
    }
    assert any(said for said, _ in compared.values())
    assert not all(said for said, _ in compared.values())
    recorded = row(version)
    assert recorded and library.asks["net"] == tuple(range(recorded.net[0], recorded.net[1] + 1))
    assert library.runtime.startswith(f"cuda{name[-2:]}")


@pytest.mark.full
@pytest.mark.parametrize(("name", "version"), WHEELS)
def test_missing_library_and_wrong_processor_are_what_a_real_loader_refuses(
    tmp_path: Path, name, version
) -> None:
    path = real_nccl(name, version)
    lost = compiled(tmp_path / "lost/libhwloc.so.99", "int hwloc(void) { return 1; }")
    words = ["-Wl,--no-as-needed", str(lost)]
    plugin(tmp_path / "lacks/libnccl-net.so", words=words)
    shutil.rmtree(lost.parent)
    arm = bytearray(plugin(tmp_path / "arm/libnccl-net.so").read_bytes())
    arm[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    (tmp_path / "arm/libnccl-net.so").write_bytes(arm)
    library = nccl_symbols.library(path, reader.read(path))
    assert library
    for kind in ("lacks", "arm"):
        folder = tmp_path / kind
        [network] = discover(NcclRules(), Machine({}), {}, named=str(folder)).networks
        refused = bool(network.missing) or network.plugin.elf.machine != library.elf.machine
        log = log_of(path, folder)
        assert refused and "Loaded net plugin" not in log
        if kind == "lacks" and "libhwloc.so.99" not in log:
            assert "No plugin found" in log, log


@pytest.mark.full
def test_names_that_a_real_nccl_asks_for_are_the_staged_ones(tmp_path: Path) -> None:
    """By its own words for what it did not find, of the releases before and after paths."""
    from fairlead.nccl.selection import names_asked

    for name, version in WHEELS:
        path = real_nccl(name, version)
        library = nccl_symbols.library(path, reader.read(path))
        assert library
        for value in ("", "fairlead", "/nowhere/libnccl-net.so"):
            environ = {"NCCL_NET_PLUGIN": value} if value else {}
            log = log_of(path, tmp_path, **environ)
            asked = names_asked(library, value)
            assert any(one in log for one in asked), (version, value, log)


@pytest.mark.full
def test_facts_of_a_real_nccl_are_read_fast_and_without_running_it() -> None:
    path = real_nccl(*WHEELS[-1])
    facts = json.loads(
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import json, sys; from pathlib import Path; from fairlead.elf import reader, nccl_symbols as n;"
                "p = Path(sys.argv[1]); l = n.library(p, reader.read(p));"
                "print(json.dumps([l.kind, l.version, l.runtime, l.soname]))",
                path,
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert facts == ["nccl", "2.21.5", "cuda12.4", "libnccl.so.2"]
