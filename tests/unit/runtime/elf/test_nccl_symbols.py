"""NCCL, RCCL and their plugins, identified from small files that gcc makes, and from damaged ones."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from tests.support.compiled import compiled
from tests.support.nccl import Does, nccl, plugin

from fairlead.elf import nccl_symbols, reader
from fairlead.elf.facts import NcclLibrary

RCCL = """
#include <stdio.h>
int ncclGetVersion(int *v) { return 0; }
int ncclCommInitRank(void **c, int n, int r) {
    return printf("RCCL version : 2.20.5-HEAD:%s\\nROCm version : 6.2.1.0-12\\n", "x");
}
"""
STUB = "int ncclGetVersion(int *v) { return 5; } int ncclCommInitRank(void **c) { return 5; }"


def library(path: Path) -> NcclLibrary | None:
    return nccl_symbols.library(path, reader.read(path))


@pytest.mark.parametrize(
    ("text", "version", "runtime"),
    [
        ("2.12.12+cuda11.6", "2.12.12", "cuda11.6"),
        ("2.21.5+cuda12.4", "2.21.5", "cuda12.4"),
        ("2.27.5+cuda12.9", "2.27.5", "cuda12.9"),
        ("2.30.7+cuda13.1", "2.30.7", "cuda13.1"),
        ("2.27.5", "2.27.5", ""),
    ],
)
def test_library_of_a_version_is_identified_by_its_text(tmp_path: Path, text, version, runtime):
    found = library(nccl(tmp_path / "libnccl.so.2", text))
    assert found
    assert (found.kind, found.version, found.runtime) == ("nccl", version, runtime)
    assert found.soname == "libnccl.so.2"


def test_library_version_with_a_run_time_comes_before_other_texts(tmp_path: Path) -> None:
    more = """
    #include <stdio.h>
    int ncclGetVersion(int *v) { return puts("NCCL version 2.30.7 compiled with CUDA 12.9"); }
    int ncclCommInitRank(void **c, int n, int r) {
        puts("NCCL version mismatch with remote peer %s (local: %s, remote %s)");
        return puts("NCCL version 2.30.7+cuda12.9");
    }
    """
    found = library(compiled(tmp_path / "libnccl.so.2", more))
    assert found and (found.version, found.runtime) == ("2.30.7", "cuda12.9")


def test_library_names_the_interfaces_that_it_asks_for(tmp_path: Path) -> None:
    more = """
    #include <stdio.h>
    int ncclGetVersion(int *v) { puts("ncclNetPlugin_v9"); return puts("ncclNetPlugin_v10"); }
    int ncclCommInitRank(void **c, int n, int r) {
        puts("Failed to find ncclNetPlugin_v3"); puts("ncclProfiler_v2"); puts("ncclGinPlugin_v11");
        puts("ncclTunerPlugin_v4"); puts("ncclCollNetPlugin_v9");
        return puts("NCCL version 2.27.5+cuda12.9");
    }
    """
    found = library(compiled(tmp_path / "libnccl.so.2", more))
    assert found
    assert found.asks == {
        "net": (9, 10),
        "collnet": (9,),
        "tuner": (4,),
        "profiler": (2,),
        "gin": (11,),
    }


def test_library_renamed_is_still_one(tmp_path: Path) -> None:
    found = library(nccl(tmp_path / "libgpucomm.so.7"))
    assert found and (found.kind, found.version) == ("nccl", "2.21.5")


def test_library_rccl_has_version_and_rocm(tmp_path: Path) -> None:
    found = library(compiled(tmp_path / "librccl.so.1", RCCL))
    assert found and (found.kind, found.version, found.runtime) == ("rccl", "2.20.5", "rocm6.2")


def test_library_with_stubs_that_open_nccl_is_none(tmp_path: Path) -> None:
    assert library(compiled(tmp_path / "libframework.so.2", STUB)) is None


def test_library_with_the_soname_alone_has_no_version(tmp_path: Path) -> None:
    found = library(compiled(tmp_path / "libnccl.so.2", "int nothing;"))
    assert found and (found.kind, found.version, found.runtime) == ("nccl", "", "")


def test_plugin_exports_are_listed_by_kind(tmp_path: Path) -> None:
    more = "int ncclCollNetPlugin_v8, ncclTunerPlugin_v2, ncclTunerPlugin_v3, ncclProfiler_v1, ncclGinPlugin_v11;"
    found = nccl_symbols.read_plugin(plugin(tmp_path / "libnccl-net.so", (10, 6, 9), more=more))
    assert found
    assert found.interfaces == {
        "net": (6, 9, 10),
        "collnet": (8,),
        "tuner": (2, 3),
        "profiler": (1,),
        "gin": (11,),
    }


@pytest.mark.parametrize("words", [(), ("-Wl,-z,pack-relative-relocs",), ("-Wl,-z,norelro",)])
def test_plugin_network_is_read_without_running_it(tmp_path: Path, words) -> None:
    path = plugin(tmp_path / "libnccl-net.so", name="IBext_v8", words=words)
    found = nccl_symbols.read_plugin(path)
    assert found and found.name == "IBext_v8"


@pytest.mark.parametrize(
    ("release", "network"),
    [
        ("1.6.0", "AWS Libfabric"),
        ("1.9.2", "AWS Libfabric"),
        ("1.12.1", "AWS Libfabric"),
        ("1.13.0", "Libfabric"),
        ("1.18.0", "Libfabric"),
        ("1.21.1", "Libfabric"),
    ],
)
def test_plugin_release_of_aws_ofi_nccl_names_its_network(tmp_path: Path, release, network) -> None:
    assert nccl_symbols.network_of(release) == network
    found = nccl_symbols.read_plugin(plugin(tmp_path / "libnccl-net.so", release=release))
    assert found and found.release == release
    assert found.title == f"aws-ofi-nccl {release}"


def test_plugin_opens_are_the_gpu_libraries_it_names(tmp_path: Path) -> None:
    names = ("libcuda.so", "libcudart.so.12", "libm.so.6")
    found = nccl_symbols.read_plugin(plugin(tmp_path / "libnccl-net.so", does=Does(names)))
    assert found
    assert found.opens == ("libcuda.so", "libcudart.so.12")
    assert found.runtime == "cuda12"


def test_plugin_needing_a_run_time_is_built_for_its_major(tmp_path: Path) -> None:
    hip = compiled(tmp_path / "libamdhip64.so.6", "int hip;")
    path = plugin(tmp_path / "librccl-net.so", words=["-Wl,--no-as-needed", str(hip)])
    found = nccl_symbols.read_plugin(path)
    assert found and found.runtime == "rocm6"


def test_plugin_other_library_is_none(tmp_path: Path) -> None:
    using = "extern int ncclNetPlugin_v8; int use(void) { return ncclNetPlugin_v8; }"
    assert nccl_symbols.read_plugin(compiled(tmp_path / "libuser.so", using)) is None


def test_plugin_of_another_architecture_is_identified(tmp_path: Path) -> None:
    path = plugin(tmp_path / "libnccl-net.so", release="1.18.0")
    data = bytearray(path.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    path.write_bytes(data)
    found = nccl_symbols.read_plugin(path)
    assert found and found.elf.machine == "AArch64" and found.interfaces["net"] == (6, 7, 8)


def test_plugin_cut_short_anywhere_is_refused_or_read(tmp_path: Path) -> None:
    whole = plugin(tmp_path / "libnccl-net.so", release="1.18.0")
    data = whole.read_bytes()
    refused = 0
    for end in range(0, len(data), 97):
        path = tmp_path / "cut.so"
        path.write_bytes(data[:end])
        try:
            nccl_symbols.read_plugin(path)
        except reader.NotElf:
            refused += 1
    assert refused > 100


def test_plugin_with_wrong_bytes_anywhere_does_not_crash_the_reader(tmp_path: Path) -> None:
    whole = plugin(tmp_path / "libnccl-net.so", release="1.18.0")
    data = whole.read_bytes()
    for place in range(16, len(data), 211):
        wrong = bytearray(data)
        wrong[place : place + 8] = b"\xff" * 8
        path = tmp_path / "wrong.so"
        path.write_bytes(wrong)
        with contextlib.suppress(reader.NotElf):
            nccl_symbols.read_plugin(path)
    shutil.copy(whole, path)
    assert nccl_symbols.read_plugin(path)
