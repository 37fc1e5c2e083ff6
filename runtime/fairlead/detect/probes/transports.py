"""What libfabric and UCX of this machine can use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import answers, failed, version
from fairlead.detect.model import MpiFact, TransportFact, Unknown


def probe(world: View) -> dict[str, Any]:
    asked: dict[str, tuple[str, ...]] = {}
    if fi_info := _fi_info(world):
        asked |= {"fi": (fi_info, "-l"), "fi version": (fi_info, "--version")}
    if ucx_info := world.which("ucx_info"):
        asked |= {"ucx": (ucx_info, "-d"), "ucx version": (ucx_info, "-v")}
    said = answers(world, asked)
    facts: list[TransportFact] = []
    unknown: list[Unknown] = []
    if ran := said.get("fi"):
        names = providers(ran.stdout)
        if ran.returncode or not names:
            unknown.append(
                Unknown(
                    "providers of libfabric",
                    failed(ran) if ran.returncode else "`fi_info -l` names none",
                )
            )
        else:
            release = version(said["fi version"].stdout, "libfabric:") or version(
                said["fi version"].stdout
            )
            facts.append(
                TransportFact("libfabric", release, names, True, f"`{' '.join(ran.argv)}`")
            )
    if ran := said.get("ucx"):
        names = tuple(dict.fromkeys(re.findall(r"Transport:\s*(\w+)", ran.stdout)))
        if ran.returncode or not names:
            unknown.append(
                Unknown(
                    "transports of UCX",
                    failed(ran) if ran.returncode else "`ucx_info -d` names none",
                )
            )
        else:
            release = version(said["ucx version"].stdout)
            facts.append(TransportFact("ucx", release, names, True, f"`{' '.join(ran.argv)}`"))
    return {"transports": tuple(facts), "unknown": tuple(unknown)}


def _fi_info(world: View) -> str:
    """On PATH, or in Cray's folder, which only a module puts there."""
    cray = world.matching("/opt/cray/libfabric/*/bin/fi_info")
    return world.which("fi_info") or (cray[-1] if cray else "")


def providers(text: str) -> tuple[str, ...]:
    """What ``fi_info -l`` lists.

    >>> providers("tcp;ofi_rxm:\\n    version: 118.0\\ncxi:\\n    version: 0.1\\n")
    ('tcp;ofi_rxm', 'cxi')
    """
    names = re.findall(r"^([\w;]+):\s*$", text, re.MULTILINE)
    # Hooks and helpers are listed too, which carry nothing.
    helpers = re.compile(r"ofi_hook_\w+|off_coll|ofi_mrail|lnx")
    return tuple(dict.fromkeys(n for n in names if not helpers.fullmatch(n)))


def of_modules(
    world: View, mpis: Iterable[MpiFact], probed: Iterable[TransportFact]
) -> tuple[TransportFact, ...]:
    """Transports according to the module files of the MPIs' libraries, for libraries that no tool reported.

    Args:
        probed: the facts from :func:`probe`.
    """
    known = {fact.library for fact in probed}
    found: dict[str, TransportFact] = {}
    for mpi in mpis:
        for soname, path in mpi.closure.items():
            folder = path.rpartition("/")[0]
            if soname.startswith("libfabric") and "libfabric" not in known:
                library, names, where = "libfabric", [], ""
                for place in (f"{folder}/libfabric", f"{folder}/prov", folder):
                    files = world.matching(f"{place}/*-fi.so")
                    if files:
                        where = place
                        names = [re.sub(r"^lib|-fi\.so$", "", f.rpartition("/")[2]) for f in files]
                        break
            elif re.match(r"libuct\b", soname) and "ucx" not in known:
                library, where = "ucx", f"{folder}/ucx"
                files = world.matching(f"{folder}/ucx/libuct_*.so*")
                names = [m[1] for f in files if (m := re.search(r"libuct_(\w+?)\.so", f))]
            else:
                continue
            if names and where not in found:
                unique = tuple(dict.fromkeys(names))
                found[where] = TransportFact(
                    library, "", unique, False, f"modules in {where}, behind {mpi.path}"
                )
    return tuple(found.values())
