"""Records what real NCCLs, plugins and libfabrics come to: ``python -m tests.recorded.nccl.record_pairs FOLDER > pairs.json``.

``tests/integration/runtime/nccl/test_pairs.py`` compares preflight's word with it. FOLDER has

* ``nccl/VERSION+cudaN.N/libnccl.so.2``: of NVIDIA's wheels;
* ``plugins/RELEASE/lib``: aws-ofi-nccl, as its own build installs it;
* ``libfabric/NAME/lib``: libfabric with what is behind it;
* ``hwloc/lib``: the hwloc of this machine's release;
* ``interfaces.json``: by version of NCCL, the N of ``ncclNetPlugin_vN`` that its sources name.

Kept are facts only: names, symbols, versions, what the loader and the plugins say. Plugins are loaded and initialised by
``native/wire.c``, over the tests' stand-in for CUDA (``tests/support/cuda_standin.c``) of the NCCL's major version.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.compiled import compiled

from fairlead.base.serde import to_json
from fairlead.base.system import Machine
from fairlead.elf import nccl_symbols, reader
from fairlead.elf.facts import Elf, NcclLibrary
from fairlead.nccl.host import discover
from fairlead.nccl.model import HostNetwork, NcclRules
from fairlead.proof.wire import Settings, Wire, wire

STANDIN = Path(__file__).parents[2] / "support/cuda_standin.c"
MAJORS = {"cuda11": "11.0", "cuda12": "12", "cuda13": "13"}  # of libcudart's SONAME
# The last release that opens its plugin before it looks for a GPU.
_LAST_TO_SHOW = (2, 21)
_UNIQUE = """
import ctypes, sys
ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(ctypes.create_string_buffer(128))
"""


def bare(elf: Elf, folder: Path) -> Elf:
    """Without what no check looks at, and without this machine's paths."""
    kept = ("machine", "soname", "needed", "needs", "offers", "nccl_exports")
    made = Elf(shown(elf.path, folder), elf.machine)
    return replace(made, **{name: getattr(elf, name) for name in kept})


def shown(path: str, folder: Path) -> str:
    """``/plugins/1.18.0/lib/libnccl-net.so``; what is elsewhere is the system's."""
    if Path(path).is_relative_to(folder):
        return f"/{Path(path).relative_to(folder)}"
    return f"/usr/lib/{Path(path).name}"


def named(plugin: Path) -> Path:
    """The plugin's file in the folder that its own build installs."""
    return sorted(plugin.glob("libnccl-net*.so*"))[0]


def libraries(folder: Path) -> Iterator[tuple[Path, NcclLibrary]]:
    for path in sorted(folder.glob("nccl/*/libnccl.so.2")):
        library = nccl_symbols.library(path, reader.read(path))
        assert library, path
        yield path, library


def cuda(work: Path, runtime: str) -> Path:
    """A folder with CUDA's driver and run time of a major version, as a container with a GPU has them."""
    number = MAJORS[runtime.partition(".")[0]]
    place = work / number
    script = work / f"versions.{number}"
    script.write_text(f"libcudart.so.{number} {{ global: *; }};\n")
    code = STANDIN.read_text()
    compiled(place / "libcuda.so.1", code)
    compiled(place / f"libcudart.so.{number}", code, f"-Wl,--version-script={script}")
    # As the staged folder has them: names without a version lead to those with one.
    for name, real in (("libcuda.so", "libcuda.so.1"), ("libcudart.so", f"libcudart.so.{number}")):
        if not (place / name).exists():
            (place / name).symlink_to(real)
    return place


def network(folder: Path, plugin: Path, fabric: Path) -> HostNetwork:
    path = f"{fabric}:{folder / 'hwloc/lib'}"
    environ = {"LD_LIBRARY_PATH": path}
    [found] = discover(NcclRules(), Machine(environ), environ, named=str(named(plugin))).networks
    made = replace(
        found,
        plugin=replace(
            found.plugin,
            path=shown(found.plugin.path, folder),
            elf=bare(found.plugin.elf, folder),
        ),
        closure=tuple(bare(elf, folder) for elf in found.closure),
        missing=tuple((name, shown(by, folder)) for name, by in found.missing),
        modules=(),
        found_by="",
    )
    tuner = found.tuner and replace(
        found.tuner, path=shown(found.tuner.path, folder), elf=bare(found.tuner.elf, folder)
    )
    return replace(made, tuner=tuner)


def driven(plugin: Path, folder: Path, fabric: Path, standin: Path) -> Wire:
    """What loading and initialising it comes to."""
    path = f"{standin}:{fabric}:{folder / 'hwloc/lib'}"
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": path,
        "FI_PROVIDER": "tcp",
        "OFI_NCCL_PROTOCOL": "SENDRECV",
    }
    return wire(str(named(plugin)), Settings(count=0, wait_s=20, limit_s=30), environ=environ)


def loaded(done: Wire, folder: Path) -> dict[str, Any]:
    side = done.sides[0]
    words = re.sub(r"/[\w./+-]*/", "", side.failed or side.words)
    return {
        "loads": side.stage not in ("start", "load"),
        "initialises": done.holds,
        "stage": side.stage,
        "network": side.name,
        "provider": side.record.provider,
        "libfabric": side.record.libfabric,
        "words": words[:200],
    }


def symbols(plugin: Path, versions: Sequence[int], path: str) -> list[int]:
    """Those of some versions that the loader finds in it."""
    code = (
        "import ctypes, json, sys\n"
        "it = ctypes.CDLL(sys.argv[1])\n"
        "print(json.dumps([n for n in map(int, sys.argv[2:]) if hasattr(it, f'ncclNetPlugin_v{n}')]))"
    )
    argv = [sys.executable, "-c", code, str(plugin), *map(str, versions)]
    done = subprocess.run(
        argv, env={"LD_LIBRARY_PATH": path}, capture_output=True, text=True, check=False
    )
    return list(json.loads(done.stdout)) if done.returncode == 0 else []


def picked(library: Path, plugin: Path, path: str, work: Path) -> int:
    """The interface that a real NCCL takes: of the symbols that it asks the loader for, the last, if it is there."""
    asked_in = work / "asked"
    asked_in.mkdir(exist_ok=True)
    for old in asked_in.iterdir():
        old.unlink()
    names = work / "names"
    names.mkdir(exist_ok=True)
    link = names / "libnccl-net.so"
    link.unlink(missing_ok=True)
    link.symlink_to(plugin.resolve())
    subprocess.run(
        [sys.executable, "-c", _UNIQUE, library],
        env={
            "LD_LIBRARY_PATH": f"{names}:{path}", "LD_DEBUG": "symbols", "PATH": os.environ["PATH"],
            "LD_DEBUG_OUTPUT": str(asked_in / "symbols"),
        },
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    text = "".join(one.read_text(errors="replace") for one in asked_in.iterdir())
    asked = [int(n) for n in re.findall(r"symbol=ncclNetPlugin_v(\d+);", text)]
    if not asked:
        return 0
    there = symbols(plugin, asked, path)
    return asked[-1] if asked[-1] in there else 0


def shared(networks: dict[str, HostNetwork]) -> dict[str, Any]:
    """Networks with the names of their files, and each file's facts once."""
    files: dict[str, Any] = {}
    made = {}
    for name, one in networks.items():
        plain = to_json(one)
        for elf in one.parts:
            files[elf.path] = {key: value for key, value in to_json(elf).items() if value}
        plain["closure"] = [elf.path for elf in one.closure]
        plain["plugin"]["elf"] = one.plugin.elf.path
        if one.tuner:
            plain["tuner"]["elf"] = one.tuner.elf.path
        made[name] = {key: value for key, value in plain.items() if value}
    return {"files": files, "networks": made}


def record(folder: Path, work: Path) -> dict[str, Any]:
    sources = json.loads((folder / "interfaces.json").read_text())
    plugins = sorted(folder.glob("plugins/*/lib"), key=lambda p: reader.version_key(p.parent.name))
    fabrics = sorted(folder.glob("libfabric/*/lib"))
    every = list(libraries(folder))
    runtimes = sorted({library.runtime.partition(".")[0] for _, library in every})
    good = folder / "libfabric/bookworm/lib"
    takes = []
    for path, library in every:
        for plugin in plugins:
            file = named(plugin)
            where = f"{cuda(work, library.runtime)}:{good}:{folder / 'hwloc/lib'}"
            if reader.version_key(library.version)[:2] <= _LAST_TO_SHOW:
                taken, how = picked(path, file, where, work), "NCCL's own choice"
            elif knows := sources.get(library.version):
                taken, how = max(symbols(file, knows, where), default=0), "the names in its sources"
            else:
                taken, how = max(symbols(file, library.asks["net"], where), default=0), "its file"
            takes.append([library.version, library.runtime, plugin.parent.name, taken, how])
    loads = [
        [
            plugin.parent.name,
            fabric.parent.name,
            runtime,
            loaded(driven(plugin, folder, fabric, cuda(work, runtime)), folder),
        ]
        for plugin in plugins
        for fabric in fabrics
        for runtime in runtimes
    ]
    return {
        "glibc": os.confstr("CS_GNU_LIBC_VERSION").split()[-1],
        "libraries": [
            {**to_json(replace(one, path="/opt/nccl/libnccl.so.2", elf=Elf("/opt/nccl/libnccl.so.2", one.elf.machine, one.soname))), "source": sources.get(one.version, [])}
            for _, one in every
        ],
        **shared({
            f"{plugin.parent.name} {fabric.parent.name}": network(folder, plugin, fabric)
            for plugin in plugins
            for fabric in fabrics
        }),
        "takes": takes,
        "loads": loads,
    }  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        made = record(Path(sys.argv[1]).resolve(), Path(scratch))
    print(
        json.dumps(made, indent=None, separators=(",", ":"))
        .replace("],[", "],\n[")
        .replace("},", "},\n")
    )
