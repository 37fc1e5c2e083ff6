"""What libfabric and UCX of this machine can use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import answers, failed, version
from fairlead.detect.model import MpiFact, TransportFact, Unknown


def probe(world: View) -> dict[str, Any]:
    # Cray's is in a folder that only a module puts on PATH.
    cray = world.matching("/opt/cray/libfabric/*/bin/fi_info")
    fi_info = world.which("fi_info") or next(reversed(cray), "")
    tools = {"fi_info": fi_info, "ucx_info": world.which("ucx_info")}
    asked: dict[str, tuple[str, ...]] = {}
    for tool, path in tools.items():
        listing, release = ("-l", "--version") if tool == "fi_info" else ("-d", "-v")
        asked |= {tool: (path, listing), f"{tool} version": (path, release)} if path else {}
    ran = answers(world, asked)
    facts: list[TransportFact] = []
    unknown: list[Unknown] = []
    for tool, library, what, list_names in (
        ("fi_info", "libfabric", "providers of libfabric", providers),
        ("ucx_info", "ucx", "transports of UCX", _transports),
    ):
        if tool not in ran:
            continue
        listed, text = ran[tool], ran[f"{tool} version"].stdout
        names = list_names(listed.stdout)
        if listed.returncode or not names:
            none = f"`{tool} {listed.argv[-1]}` names none"
            unknown.append(Unknown(what, failed(listed) if listed.returncode else none))
        else:
            release = version(text, f"{library}:") or version(text)
            evidence = f"`{' '.join(listed.argv)}`"
            facts.append(TransportFact(library, release, names, True, evidence))
    return {"transports": tuple(facts), "unknown": tuple(unknown)}


def _transports(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(re.findall(r"Transport:\s*(\w+)", text)))


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
    by_folder: dict[str, TransportFact] = {}
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
            if names and where not in by_folder:
                unique = tuple(dict.fromkeys(names))
                by_folder[where] = TransportFact(
                    library, "", unique, False, f"modules in {where}, behind {mpi.path}"
                )
    return tuple(by_folder.values())
