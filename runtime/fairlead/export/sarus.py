"""Sarus: OCI hooks that exchange MPI and C library, and the script that stages the MPI.

The MPI hook pairs libraries by the name before ``.so`` and reads the version behind it, so it is given
copies under their SONAMEs: a Cray's libmpi_gnu_123.so.12 would find no partner. It sets no variable: what the MPI
needs of those goes into sarus.json. It can show what is behind the MPI in /usr/lib, where the copies do without a
DT_RPATH.
Source: eth-cscs/sarus, doc/config/mpi-hook.rst, doc/config/glibc-hook.rst; oci-hooks(5).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from fairlead.elf.mpi_symbols import is_binding
from fairlead.export.model import ExportFile, Facts, Target, check_path
from fairlead.export.staged import Staged, stage_script, staged

_PREFIX = "/opt/sarus/default"


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """Hooks, what sarus.json needs, and the staging script."""
    # BIND_MOUNTS shows the folder at the same path. The MPI's DT_RUNPATH may lead from the place of the image's MPI to a
    # libfabric next to that, which the loader takes before one in /usr/lib.
    place = f"{facts.stage_root.rstrip('/')}/{{key}}"
    made = staged(facts, "sarus", place, glibc=True, alone=True)
    name = facts.name or facts.label
    mpi, behind = libraries(made)
    tool = facts.tools.get
    env = {
        "LDCONFIG_PATH": tool("ldconfig", "/sbin/ldconfig"),
        "MPI_COMPATIBILITY_TYPE": "major",
        "MPI_LIBS": _joined(mpi),
        "MPI_DEPENDENCY_LIBS": _joined(behind),
        "BIND_MOUNTS": _joined([made.folder, *facts.here.binds, *facts.here.devices]),
    }
    # Each on a hook whose annotations all hold: --mpi --mpi-type=NAME, or defaultMPIType in sarus.json.
    when = {
        "^com.hooks.mpi.enabled$": "^true$",
        "^com.hooks.mpi.type$": "^" + name.replace(".", r"\.") + "$",
    }
    part = {"defaultMPIType": name, "environment": {"set": dict(sorted(made.env.items()))}}
    into = f"{_PREFIX}/etc/hooks.d, root's"
    return (
        ExportFile("hooks.d/05-mpi-hook.json", hook("mpi_hook", env, when), into),
        *_glibc(facts, into),
        ExportFile(
            "sarus.part.json",
            json.dumps(part, indent=2) + "\n",
            f"add its entries to {_PREFIX}/etc/sarus.json, root's",
        ),
        stage_script(facts, made, "the MPI hook of Sarus", "run it as root on every node"),
    )


def libraries(made: Staged) -> tuple[list[str], list[str]]:
    """The MPI with its companions, and what is behind them; modules are opened by their folder.

    Copies with a DT_RPATH are found by it, and kept from the image's programs.
    """
    host = made.plan.host
    assert host is not None
    modules = {path for plugins in host.plugins for path in plugins.files}
    mpi: list[str] = []
    behind: list[str] = []
    for file in made.staging.files:
        name = PurePosixPath(file.target).name
        if file.source in modules:
            continue
        own = name == host.library.soname or is_binding(name)
        if own or not file.rpath:
            (mpi if own else behind).append(f"{made.folder}/{file.target}")
    return mpi, behind


def _glibc(facts: Facts, into: str) -> tuple[ExportFile, ...]:
    """The other hook, where the pieces of the host's C library are known."""
    pieces = [e.path for e in facts.host.glibc] if facts.host else []
    if not pieces:
        return ()
    tool = facts.tools.get
    env = {
        "GLIBC_LIBS": _joined(pieces),
        "LDCONFIG_PATH": tool("ldconfig", "/sbin/ldconfig"),
        "LDD_PATH": tool("ldd", "/usr/bin/ldd"),
        "READELF_PATH": tool("readelf", "/usr/bin/readelf"),
    }
    text = hook("glibc_hook", env, {"^com.hooks.glibc.enabled$": "^true$"})
    return (ExportFile("hooks.d/01-glibc-hook.json", text, into),)


def hook(program: str, env: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """A hook as oci-hooks(5) describes it; both of Sarus' are of the stage ``createContainer``."""
    document = {
        "version": "1.0.0",
        "hook": {
            "path": f"{_PREFIX}/bin/{program}",
            "env": [f"{name}={value}" for name, value in env.items() if value],
        },
        "when": {"annotations": dict(annotations)},
        "stages": ["createContainer"],
    }
    return json.dumps(document, indent=2) + "\n"


def _joined(paths: Sequence[str]) -> str:
    for path in paths:
        check_path(path, ":", "a `:` separates the paths of a list", "a hook of Sarus")
    return ":".join(paths)


EXPORT = Target("OCI hooks of the MPI and the C library", files)
