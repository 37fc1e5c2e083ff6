"""Identifies NCCL, RCCL and their plugins: kind, version, interfaces and the network's name, from the file alone.

Symbols decide: a plugin is what exports ``ncclNetPlugin_vN`` or the like, under any name. A library is what exports
``ncclGetVersion`` and contains the text that NCCL has for this, ``NCCL version 2.27.5+cuda12.9``; programs that only open
one have the functions as stubs, without the text. No code of a file is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fairlead.elf import reader
from fairlead.elf.facts import Elf, NcclLibrary, NetPlugin

SONAMES = {"libnccl.so.2": "nccl", "librccl.so.1": "rccl"}
_FUNCTIONS = frozenset({"ncclGetVersion", "ncclCommInitRank"})
_KINDS = {
    "ncclNetPlugin": "net",
    "ncclCollNetPlugin": "collnet",
    "ncclTunerPlugin": "tuner",
    "ncclProfiler": "profiler",
    "ncclGinPlugin": "gin",
}
_INTERFACE = re.compile(r"(\w+?)_v(\d+)")
# `NCCL version 2.21.5+cuda12.4`, `RCCL version : 2.20.5-HEAD`; what follows tells what it was built for.
_VERSION = rb"([NR])CCL version (?:: )?(\d+\.\d+\.\d+)[\w.-]*(?:\+(?:cuda|hip)(\d+\.\d+))?"
# What it passes to dlsym for each plugin that it opens.
_ASKED = rb"(?<![\w. ])(nccl(?:Net|CollNet|Tuner|Gin)Plugin_v\d{1,4}|ncclProfiler_v\d{1,4})\0"
_ROCM = rb"ROCm version : (\d+\.\d+)"
_RELEASE = rb"aws-ofi-nccl v?(\d+\.\d+\.\d+)"
# Linkers let a name share the end of a path, so what precedes it may be one.
_NAMES = rb"(?<![\w.+-])(lib[\w+-]+\.so(?:\.\d+)*)\0"
_OPENED = re.compile(r"lib(cuda|cudart|amdhip64|hsa-runtime64|gdrapi|nvidia-ml|rocm_smi64)\.so")
_RUN_TIME = re.compile(r"lib(cudart|amdhip64|hsa-runtime64)\.so")
_RUNTIMES = (
    (re.compile(r"libcudart\.so\.(\d+)"), "cuda"),
    (re.compile(r"libamdhip64\.so\.(\d+)"), "rocm"),
)


def is_library(elf: Elf) -> bool:
    """Whether a file may be an NCCL or RCCL, by its symbols or its SONAME."""
    return elf.soname in SONAMES or set(elf.nccl_exports) >= _FUNCTIONS


def is_plugin(elf: Elf) -> bool:
    """Whether a file exports a plugin's interface."""
    return bool(_interfaces(elf))


def is_request(name: str) -> bool:
    """Whether a NEEDED entry asks for an NCCL or RCCL.

    >>> is_request("libnccl.so.2"), is_request("libnccl-net.so")
    (True, False)
    """
    return name in SONAMES


def is_run_time(name: str) -> bool:
    """Whether a library is the run time of CUDA or ROCm, which an image brings.

    >>> is_run_time("libcudart.so.12"), is_run_time("libcuda.so.1")
    (True, False)
    """
    return bool(_RUN_TIME.match(name))


def library(path: Path, elf: Elf) -> NcclLibrary | None:
    """The NCCL or RCCL in the file at ``path``, whose facts are ``elf``; None if there is none in it.

    Raises:
        NotElf, OSError: it cannot be read.
    """
    if not is_library(elf):
        return None
    versions = reader.texts(path, _VERSION)
    # Newer ones also say `NCCL version 2.30.7 compiled with CUDA 12.9`, and what they say to others is not a version.
    maker, version, runtime = next(
        (g for g in versions if g[2]), versions[0] if versions else (b"", b"", b"")
    )
    kind = {b"N": "nccl", b"R": "rccl"}.get(maker) or SONAMES.get(elf.soname, "")
    if not kind or not (versions or elf.soname in SONAMES):
        return None  # of the functions it has stubs
    if kind == "rccl" and versions and not runtime:
        runtime = next((groups[0] for groups in reader.texts(path, _ROCM)), b"")
    prefix = {"nccl": "cuda", "rccl": "rocm"}[kind]
    built = f"{prefix}{runtime.decode()}" if runtime else ""
    asks = _by_kind(groups[0].decode() for groups in reader.texts(path, _ASKED))
    return NcclLibrary(elf.path, elf.soname, kind, version.decode(), built, elf, asks)


def plugin(path: Path, elf: Elf) -> NetPlugin | None:
    """The plugin in the file at ``path``, whose facts are ``elf``; None if it exports no interface.

    Raises:
        NotElf, OSError: it cannot be read.
    """
    interfaces = _interfaces(elf)
    if not interfaces:
        return None
    release = next((groups[0].decode() for groups in reader.texts(path, _RELEASE)), "")
    opened = {groups[0].decode() for groups in reader.texts(path, _NAMES)} if elf.opens else set()
    opens = tuple(sorted(name for name in opened if _OPENED.match(name)))
    name = ""
    if versions := interfaces.get("net"):
        name = reader.first_pointed_text(path, f"ncclNetPlugin_v{versions[-1]}")
    if release and not name:
        name = network_of(release)
    runtime = _runtime((*elf.needed, *opens))
    return NetPlugin(elf.path, elf.soname, interfaces, name, release, runtime, opens, elf)


def network_of(release: str) -> str:
    """The name of the network that a release of aws-ofi-nccl reports.

    From 1.13 on, it takes the name ``AWS Libfabric`` or ``OFI`` if NCCL_NET has that.
    """
    older = reader.version_key(release) < (1, 13)
    return "AWS Libfabric" if older else "Libfabric"


def read_plugin(path: Path) -> NetPlugin | None:
    """The plugin at ``path`` of this machine; None if the file is another library.

    Raises:
        NotElf: it is not an ELF file, or a damaged one.
        OSError: it cannot be read.
    """
    real = path.resolve()
    return plugin(real, reader.read(real, str(real)))


def conf(text: str) -> dict[str, str]:
    """The variables in a configuration file of NCCL, as it reads them: the first line of a name counts, and blanks do.

    >>> conf("# ours\\nNCCL_NET=Socket\\nNCCL_DEBUG = WARN\\nNCCL_NET=IB")
    {'NCCL_NET': 'Socket'}
    """
    values: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and name.isidentifier():
            values.setdefault(name, value)
    return values


def _interfaces(elf: Elf) -> dict[str, tuple[int, ...]]:
    return _by_kind(elf.nccl_exports)


def _by_kind(symbols: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The versions of each kind of interface among some symbols."""
    versions: dict[str, set[int]] = {}
    for symbol in symbols:
        match = _INTERFACE.fullmatch(symbol)
        if match and match[1] in _KINDS:
            versions.setdefault(_KINDS[match[1]], set()).add(int(match[2]))
    return {kind: tuple(sorted(versions[kind])) for kind in _KINDS.values() if kind in versions}


def _runtime(names: tuple[str, ...]) -> str:
    for pattern, kind in _RUNTIMES:
        for name in names:
            if match := pattern.match(name):
                return f"{kind}{match[1]}"
    return ""
