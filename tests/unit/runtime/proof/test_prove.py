"""What a rank says about itself, from what its library and its kernel tell it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import prove

# What the libraries printed on one node, shortened: two ranks of MPICH 5.0.2, MPICH 3.4.3 and
# Intel MPI 2021.18.1, natively and (without cma) as an ordinary user in Apptainer.
UCX = """\
[1.131] [vm:22817:0] ucp_context.c:2463 UCX  INFO  Version 1.20.1 (loaded from /x/libucp.so.0)
[1.139] [vm:22817:0]  ucp_worker.c:1912 UCX  INFO    ucp_context_0 self cfg#0 tag(self/memory cma/memory)  rma(self/memory)  am(self/memory cma/memory)
==== UCX netmod Capability ====
[1.142] [vm:22816:0]  ucp_worker.c:1912 UCX  INFO    ucp_context_0 intra-node cfg#1 tag(sysv/memory cma/memory)  rma(sysv/memory posix/memory)  am(sysv/memory cma/memory)
"""
OFI = "libfabric provider: udp;ofi_rxd\nMPIDI_OFI_ENABLE_AV_TABLE: 1\nMPIDI_OFI_ENABLE_AM: 1\n"
INTEL = '[0] MPI startup(): Load tuning file: "/x/opt/mpi/etc/tuning_emr_shm.dat"\n'
INTEL_NET = (
    "[0] MPI startup(): libfabric version: 1.22\n[0] MPI startup(): libfabric provider: tcp\n"
)
# In UCX's form, with the device of an InfiniBand port, which has a colon: not seen on a machine.
INFINIBAND = """\
[1.1] [n1:9:0]  ucp_worker.c:1912 UCX  INFO    ucp_context_0 self cfg#0 tag(self/memory cma/memory)
[1.2] [n1:9:0]  ucp_worker.c:1912 UCX  INFO    ucp_context_0 intra-node cfg#1 tag(sysv/memory cma/memory)
[1.3] [n1:9:0]  ucp_worker.c:1912 UCX  INFO    ucp_context_0 inter-node cfg#2 tag(rc_mlx5/mlx5_0:1 rc_mlx5/mlx5_1:1)  rma(rc_mlx5/mlx5_0:1)
"""
# In the form of Open MPI's comm_method hook.
OPENMPI_UCX = """\
Connection summary: (ucx)
  on-host:  all connections are ucx
  off-host: all connections are ucx
"""


@pytest.mark.parametrize(
    ("said", "netmod", "providers"),
    [
        (UCX, "ucx", ["cma", "posix", "self", "sysv"]),
        (OFI, "ofi", ["udp;ofi_rxd"]),
        ("PE 0: OFI netmod using cxi provider\n", "ofi", ["cxi"]),  # Cray MPICH, as a user saw it
        (INTEL, "shm", ["shm"]),
        (INTEL_NET, "ofi", ["tcp"]),
        (INFINIBAND, "ucx", ["cma", "rc_mlx5", "self", "sysv"]),
        (INFINIBAND + OPENMPI_UCX, "ucx", ["cma", "rc_mlx5", "self", "sysv"]),
        (OPENMPI_UCX, "ucx", ["ucx"]),  # the transport below it is unknown, so nothing accepts it
        ("", "", []),
        ("nothing about transports", "", []),
    ],
)
def test_transports_are_read_from_what_the_library_prints(
    said: str, netmod: str, providers: list[str]
) -> None:
    found = prove.transports(said)
    assert (found["netmod"], found["providers"]) == (netmod, providers)
    assert found["said"] == ("" if providers else said)


@pytest.mark.parametrize(
    ("path", "is_mpi"),
    [
        ("/opt/fairlead/mpi/lib/libmpi.so.12", True),
        ("/usr/lib/libmpich.so.12.2.2", True),
        ("/opt/cray/lib/libmpi_gnu_123.so.12", True),
        ("/x/libmpi_abi.so.1", True),
        ("/x/libmpi.so", True),
        ("/x/libmpi.so.40.40.7", True),
        ("/x/libmpifort.so.12", False),
        ("/x/libmpicxx.so.12", False),
        ("/x/libmpi_mpifh.so.40", False),
        ("/x/libmpi_usempif08.so.40", False),
        ("/x/libmpi_cxx.so.40", False),
        ("/x/libmpiwrap.so", False),
        ("/x/libmpi_gtl_cuda.so.0", False),
        ("/x/mpi4py/MPI.so", False),
    ],
)
def test_mpi_files_are_distinguished_from_bindings(path: str, is_mpi: bool) -> None:
    assert prove._is_mpi(path) is is_mpi


def test_captured_keeps_words_apart_and_on_disk(tmp_path: Path) -> None:
    program = (
        "import ctypes, os, sys\nfrom fairlead import prove\n"
        "libc = ctypes.CDLL(None)\n"
        "def work():\n    libc.puts(b'from C'); os.write(2, b'from fd 2'); print('from Python', flush=True)\n"
        "print('before', flush=True)\n"
        "said = prove._captured(work, sys.argv[1])\n"
        "print('after', repr(sorted(said.split(chr(10)))))\n"
    )
    sink = tmp_path / "sink"
    done = subprocess.run(
        [sys.executable, "-c", program, sink], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "before"
    for words in ("from C", "from fd 2", "from Python"):
        assert words in done.stdout.splitlines()[1] and words in sink.read_text()
    assert len(done.stdout.splitlines()) == 2


def test_captured_words_of_a_process_that_dies_stay(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom fairlead import prove\n"
        "prove._captured(lambda: (os.write(1, b'last words'), os._exit(3)), sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "sink"], check=False)
    assert done.returncode == 3 and (tmp_path / "sink").read_text() == "last words"


def test_app_mpi_of_a_program_without_one_is_empty() -> None:
    found = prove._app_mpi(str(Path(sys.executable).resolve()))
    assert found["mpi"] == [] and found["not_found"] == []
    assert "error" in prove._app_mpi("/gone/program")


def test_app_mpi_names_the_file_that_the_loader_takes(tmp_path: Path) -> None:
    """A library of that name stands in: what matters here is whose file the loader finds."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        build(tmp_path / folder / "libmpi.so.12", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.12")
    app = tmp_path / "app"
    build(app, str(tmp_path / "first/libmpi.so.12"), main=True)
    os.environ["LD_LIBRARY_PATH"], kept = (
        f"{tmp_path}/second",
        os.environ.get("LD_LIBRARY_PATH", ""),
    )
    try:
        [found] = prove._app_mpi(str(app))["mpi"]
        assert found["path"] == str(tmp_path / "second/libmpi.so.12")
        assert found["inode"] == (tmp_path / "second/libmpi.so.12").stat().st_ino
        os.environ["LD_LIBRARY_PATH"] = ""
        assert prove._app_mpi(str(app))["not_found"] == ["libmpi.so.12"]
    finally:
        os.environ["LD_LIBRARY_PATH"] = kept


def build(target: Path, *flags: str, main: bool = False) -> None:
    text = "int f(void); int main(void) { return f(); }" if main else "int f(void) { return 0; }"
    words = ["cc", "-x", "c", "-", "-x", "none", "-o", str(target), *flags]
    subprocess.run(words, input=text, text=True, check=True)


def test_mapped_lists_each_real_file_once(tmp_path: Path) -> None:
    library = tmp_path / "libmpi.so.12"
    build(library, "-shared", "-fPIC")
    (tmp_path / "libmpi.so").symlink_to(library)
    program = (
        "import ctypes, sys, json\nfrom fairlead import prove\n"
        "for name in sys.argv[1:]: ctypes.CDLL(name)\n"
        "print(json.dumps(prove._mapped()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, library, tmp_path / "libmpi.so"],
        capture_output=True,
        text=True,
        check=True,
    )
    import json

    [found] = json.loads(done.stdout)
    assert (found["path"], found["inode"]) == (str(library), library.stat().st_ino)


def test_namespaces_are_those_of_the_kernel() -> None:
    seen = prove._namespaces()
    assert seen["user"] == str(Path("/proc/self/ns/user").readlink())
    assert seen["shm"] == str(Path("/dev/shm").stat().st_dev)


def test_write_leaves_no_half_file(tmp_path: Path) -> None:
    prove._write(str(tmp_path), "proof.0", {"a": 1})
    with pytest.raises(TypeError):
        prove._write(str(tmp_path), "proof.1", ctypes.c_int)
    assert (tmp_path / "proof.0").read_text() == '{"a": 1}'
    assert not (tmp_path / "proof.1").exists()


def test_prove_imports_few_modules_that_are_files() -> None:
    program = f"import sys, runpy\nrunpy.run_path({prove.__file__!r})\n" + (
        "print(sum(bool(getattr(m, '__file__', None)) for m in sys.modules.values()))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, check=True)
    assert int(done.stdout) < 60, "each is read once a rank"


def test_prove_imports_the_standard_library_alone() -> None:
    """It is copied into any image and run by whatever Python 3 is there."""
    program = f"import sys, runpy\nrunpy.run_path({prove.__file__!r})\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
    )
    known = {*sys.stdlib_module_names, "__main__"}
    others = {n.partition(".")[0] for n in done.stdout.split()} - known
    assert {n for n in others if not n.startswith("_")} == set()
