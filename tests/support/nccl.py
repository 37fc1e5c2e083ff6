"""NCCLs and net plugins for tests: those that gcc compiles, and facts without files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.compiled import compiled
from tests.support.recorded import CACHE, HYDRA, ROOT_ENGINE, SITE, host, image

from fairlead.elf.facts import Elf, ImageFacts, NcclLibrary, NetPlugin
from fairlead.elf.nccl_symbols import network_of
from fairlead.nccl.model import Ask, HostNccl, HostNetwork, NcclRules
from fairlead.swap.model import Inputs, Plan, Request
from fairlead.swap.plan import plan

LIBRARY = """
#include <stdio.h>
int ncclGetVersion(int *v) {{ *v = {number}; return 0; }}
int ncclCommInitRank(void **c, int n, int r) {{ puts("{text}"); return 0; }}
"""
_NET = """
struct net ncclNetPlugin_v{version} = {{ "{name}", init, devices }};
"""
PLUGIN = """
#include <stdlib.h>
#include <dlfcn.h>
struct net { const char *name; int (*init)(void *); int (*devices)(int *); };
const char *release = RELEASE;
static const char *const opened[] = { OPENS };
static int init(void *log) {
    for (int i = 0; opened[i]; i++) if (!dlopen(opened[i], RTLD_NOW)) return 2;
    return FAILS;
}
static int devices(int *n) { *n = DEVICES; return 0; }
"""
ABORTS = "#include <stdlib.h>\n__attribute__((constructor)) static void broken(void) { abort(); }\n"


def nccl(path: Path, version: str = "2.21.5+cuda12.4", words: Sequence[str] = ()) -> Path:
    """An NCCL of a version, with a SONAME that is its file's name."""
    major, minor, patch = version.partition("+")[0].split(".")
    number = int(major) * 10000 + int(minor) * 100 + int(patch)
    code = LIBRARY.format(number=number, text=f"NCCL version {version}")
    return compiled(path, code, *words)


@dataclass(frozen=True)
class Does:
    """What a plugin does when it is used.

    Attributes:
        opens: names that its ``init`` passes to dlopen.
        fails: what ``init`` returns.
    """

    opens: Sequence[str] = ()
    fails: int = 0
    devices: int = 1


def plugin(
    path: Path,
    versions: Sequence[int] = (6, 7, 8),
    *,
    name: str = "Libfabric",
    release: str = "",
    does: Does = Does(),
    more: str = "",
    words: Sequence[str] = (),
) -> Path:
    """A net plugin that exports these versions of the interface.

    Args:
        release: of aws-ofi-nccl.
        more: C code of further symbols.
    """
    text = f'"Initializing aws-ofi-nccl {release}"' if release else '""'
    code = PLUGIN.replace("RELEASE", text).replace("FAILS", str(does.fails))
    code = code.replace("OPENS", "".join(f'"{one}", ' for one in does.opens) + "0")
    code = code.replace("DEVICES", str(does.devices)) + more
    code += "".join(_NET.format(version=version, name=name) for version in versions)
    return compiled(path, code, *words)


RULES = NcclRules(
    folders=("/opt/site/plugin/lib",),
    env={"FI_MR_CACHE_MONITOR": "userfaultfd", "NCCL_CROSS_NIC": "1"},
    interfaces=("hsn",),
    providers=("cxi",),
    source="the profile there says so (documented: its guide, 2026-06-01)",
)


def library_of(
    version: str = "2.21.5", runtime: str = "cuda12.4", machine: str = "x64", kind: str = "nccl"
) -> NcclLibrary:
    """The facts of an NCCL as torch's wheel brings it."""
    soname = {"nccl": "libnccl.so.2", "rccl": "librccl.so.1"}[kind]
    path = f"/opt/venv/lib/python3.11/site-packages/nvidia/nccl/lib/{soname}"
    return NcclLibrary(path, soname, kind, version, runtime, Elf(path, machine, soname))


def plugin_of(
    versions: Sequence[int] = range(2, 12),
    release: str = "1.18.0",
    *,
    path: str = "/opt/site/plugin/lib/libnccl-net-ofi.so",
    runtime: str = "",
    opens: Sequence[str] = ("libcudart.so",),
    **elf: Any,
) -> NetPlugin:
    """The facts of an aws-ofi-nccl."""
    name = path.rpartition("/")[2]
    file = Elf(path, **{"machine": "x64", "soname": name, "needed": ("libfabric.so.1",), **elf})
    interfaces = {"net": tuple(sorted(versions))} if versions else {}
    network = network_of(release) if release else ""
    return NetPlugin(path, name, interfaces, network, release, runtime, tuple(opens), file)


def network(plugin: NetPlugin | None = None, **changes: Any) -> HostNetwork:
    """A plugin of a host with its own libfabric, which has cxi."""
    plugin = plugin or plugin_of()
    machine = plugin.elf.machine
    folder = "/opt/cray/libfabric/1.22.0/lib64"
    closure = (
        Elf(f"{folder}/libfabric.so.1.25.0", machine, "libfabric.so.1", offers={"FABRIC": "1.8"}),
        Elf("/usr/lib64/libhwloc.so.15.5", machine, "libhwloc.so.15"),
        Elf("/usr/lib64/libcxi.so.1.5", machine, "libcxi.so.1"),
    )
    made = HostNetwork(plugin, closure, (), ("cxi", "tcp", "shm"), "the profile there says so")
    return replace(made, **changes)


def gpu_image(version: str = "2.21.5", **changes: Any) -> ImageFacts:
    """mpi-base with torch's NCCL in it."""
    known = {key: changes.pop(key) for key in ("runtime", "machine", "kind") if key in changes}
    library = library_of(version, **known)
    kind, major = library.runtime[:4], library.runtime[4:].partition(".")[0]
    name = f"libamdhip64.so.{major}" if kind == "rocm" else f"libcudart.so.{major}"
    there = {name: f"/opt/venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/{name}"}
    return replace(image(), **{"nccl": (library,), "gpu_libraries": there, **changes})


def gpu_ask(*networks: HostNetwork, **changes: Any) -> Ask:
    """Two nodes with GPUs and Slingshot."""
    there = HostNccl(
        networks or (network(),),
        devices=("/dev/cxi0", "/dev/cxi1"),
        gpu="nvidia",
        gpu_model="NVIDIA A100-SXM4-40GB",
        driver="550.54.15",
    )
    there = replace(there, **{k: changes.pop(k) for k in vars(there) if k in changes})
    made = Ask(gpus=True, nodes=2, host=there, rules=RULES, fabric="slingshot")
    return replace(made, **changes)


def gpu_plan(facts: ImageFacts | None = None, asked: Ask | None = None, **request: Any) -> Plan:
    """A plan for ranks with GPUs on a recorded host with a plugin."""
    engine = request.pop("engine", ROOT_ENGINE)
    isolate = request.pop("isolate", True)
    return plan(
        Inputs(
            "/images/x.sif", facts or gpu_image(), host(), HYDRA, SITE, engine,
            Request(**{"ranks": 2, **request}), CACHE, isolate=isolate,
            witness=str(CACHE / "native/witness.so"), nccl=asked or gpu_ask(),
        )
    )  # fmt: skip
