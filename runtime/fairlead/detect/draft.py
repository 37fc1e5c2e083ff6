"""Drafts a profile from the facts of a machine, on top of the family that fits it.

Each value has its evidence in a comment, and ``[sources.detected]`` as its source, with status
``run`` and the date; conclusions that usually but not always hold are guesses. What was not found, and what
holds for a login node but not for compute nodes, is left to the family, or to the editor of the draft.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from typing import NamedTuple, get_args

from fairlead.detect.model import SiteFacts
from fairlead.engines.registry import kinds as engine_kinds
from fairlead.launchers.registry import kinds_of_profiles
from fairlead.schedulers.registry import with_scripts
from fairlead.site.match import Detected
from fairlead.site.model import Site
from fairlead.site.profile import GUESS, Pmi

_SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")


class Value(NamedTuple):
    """One value of the draft, and what was seen of it; a guess where it follows from that only usually."""

    section: str
    key: str
    value: object
    seen: str
    guess: bool = False


def draft(
    name: str,
    facts: SiteFacts,
    detected: Detected,
    base: Site | None,
    today: datetime.date | None = None,
) -> str:
    """The text of ``NAME.toml``.

    Args:
        name: of the profile; that of its file.
        base: what it extends.
    """
    day = today or datetime.date.today()
    reasons = "; ".join(detected.reasons) if base else "no profile fits, so nothing is inherited"
    lines = [
        f"# A draft that `fairlead site detect --write` made on {_comment(facts.node)}, {day}. Read every line:",
        "# it says what was seen from this one node. A login node may lack what compute nodes have.",
        "",
        "[site]",
        f'name = "{name}"',
        f'summary = "What fairlead saw of {_safe(facts.node)}; say here what the machine is."',
    ]
    if base:
        guess = "a guess: " if detected.guess else ""
        lines += [f"# {_comment(guess + reasons)}", f'extends = "{base.name}"']
    lines += [
        "",
        "[sources.detected]",
        f'text = "seen by fairlead site detect on {_safe(facts.node)}"',
        'status = "run"',
        f"read = {day}",
    ]
    section = ""
    for value in _values(facts, base):
        if value.section != section:
            section = value.section
            lines += ["", f"[{section}]", 'source = "detected"']
        lines += [f"# {_comment(value.seen)}", f"{value.key} = {json.dumps(value.value)}"]
        if value.guess:
            lines.append(f'sources.{value.key} = "{GUESS}"')
    left = [f"# not known: {_comment(u.what)}: {_comment(u.why)}" for u in facts.unknown]
    return "\n".join([*lines, *(["", *left] if left else [])]) + "\n"


def name_for(facts: SiteFacts) -> str:
    """A name for the profile: the cluster's, else the node's without its number."""
    cluster = next((s.cluster for s in facts.schedulers if s.cluster), "")
    stem = (
        cluster or re.sub(r"[-_]?(login|node|nid)?\d*$", "", facts.node.split(".")[0]) or facts.node
    )
    plain = re.sub(r"[^a-z0-9-]+", "-", stem.split(".")[0].lower()).strip("-")[:63]
    return plain or "here"


def _values(facts: SiteFacts, base: Site | None) -> Iterator[Value]:
    yield from _clues(facts)
    schedulers = [s for s in facts.schedulers if s.kind in with_scripts()]
    if schedulers:
        first = schedulers[0]
        in_use = bool(first.cluster or first.job)  # else only its programs are installed
        yield Value("scheduler", "kind", first.kind, first.seen, guess=not in_use)
    elif not facts.schedulers:
        yield Value("scheduler", "kind", "none", "no scheduler's program on PATH, no job of one")
    yield from _launcher(facts)
    engines = {e.kind: e for e in facts.engines if e.kind in engine_kinds()}
    if engines:
        evidence = "; ".join(f"{e.kind} {e.version}: {e.seen}" for e in engines.values())
        yield Value("engine", "kinds", list(engines), evidence)
    yield from _fabric(facts, base)
    yield from _mpi(facts)
    yield from _devices(facts)
    yield from _nccl(facts)
    if facts.compute:
        yield from _node(facts)
    for role, key in (("shared", "shared"), ("node-local", "node_local"), ("memory", "memory")):
        place = next((s for s in facts.storage if s.role == role), None)
        if place:
            yield Value("storage", key, place.path, f"{place.seen} {place.kind}".strip())


def _nccl(facts: SiteFacts) -> Iterator[Value]:
    """Folders of plugins that are whole; the system's are searched anyway."""
    whole = [p for p in facts.plugins if not p.missing and not p.path.startswith(_SYSTEM)]
    folders = dict.fromkeys(p.path.rpartition("/")[0] for p in whole)
    if folders:
        yield Value("nccl", "folders", list(folders), "; ".join(p.seen for p in whole))
        libraries = dict.fromkeys(p.libfabric.rpartition("/")[0] for p in whole if p.libfabric)
        if own := [folder for folder in libraries if not f"{folder}/".startswith(_SYSTEM)]:
            yield Value("nccl", "libraries", own, "libfabric, as the loader finds it here")


def _node(facts: SiteFacts) -> Iterator[Value]:
    """GPUs, processor and memory."""
    for gpu in facts.gpus[:1]:
        yield Value("gpu", "vendor", gpu.vendor, gpu.seen)
        yield Value("gpu", "per_node", gpu.count, gpu.seen)
    if processor := facts.processor:
        if processor.target:
            yield Value("node", "processor", [processor.target], f"archspec: {processor.model}")
        cores = processor.online or processor.cores
        yield Value("node", "cores", cores, processor.seen)
        if processor.memory_bytes:
            gib = round(processor.memory_bytes / 2**30, 1)
            yield Value("node", "memory_gib", gib, "MemTotal in /proc/meminfo")


def _clues(facts: SiteFacts) -> Iterator[Value]:
    clusters = [s for s in facts.schedulers if s.cluster and s.kind == "slurm"]
    if clusters:
        yield Value("detect", "clusters", [clusters[0].cluster], clusters[0].seen)
    else:
        host = facts.node.split(".")[0]
        pattern = re.sub(r"\d+", "[0-9]*", host) if facts.schedulers else host
        evidence, guess = f"host name {facts.node}", pattern != host
        if guess:
            evidence += "; which other names are of this machine is not known, correct the pattern"
        # Numbers and little else would be many machines.
        if not guess or len(pattern.replace("[0-9]*", "")) > 2:
            yield Value("detect", "hostnames", [pattern, f"{pattern}.*"], evidence, guess=guess)


def _launcher(facts: SiteFacts) -> Iterator[Value]:
    kinds: dict[str, str] = {}
    for launcher in facts.launchers:
        if launcher.kind in kinds_of_profiles():
            kinds.setdefault(launcher.kind, launcher.seen)
    for mpi in facts.mpis:
        if mpi.launcher:
            kinds.setdefault("mpiexec", f"{mpi.launcher}, of {mpi.vendor}")
    if kinds:
        yield Value("launcher", "kinds", list(kinds), "; ".join(kinds.values()))
    flavours = {p.flavour: p for p in facts.pmi if p.flavour in get_args(Pmi)}
    if flavours:
        evidence = "; ".join(f"{p.flavour}: {p.detail}, {p.seen}" for p in flavours.values())
        yield Value("launcher", "pmi", list(flavours), evidence)


# Transports that a proof may find on a kind of network, in addition to shared memory within a node.
_WITHIN = ("shm", "sm", "vader", "self", "sysv", "posix", "cma", "xpmem")
_BEYOND = {
    "slingshot": ("cxi",),
    "aries": ("ugni", "gni"),
    "infiniband": ("verbs", "ofi_rxm", "rc_mlx5", "dc_mlx5", "ud_mlx5", "rc_verbs", "ud_verbs"),
    "omni-path": ("psm2", "opx"),
    "efa": ("efa", "efa-direct", "ofi_rxr"),
    "ethernet": ("tcp", "sockets", "udp", "ofi_rxm", "ofi_rxd"),
    "none": ("tcp", "sockets", "udp", "ofi_rxm", "ofi_rxd"),
}


def _fabric(facts: SiteFacts, base: Site | None) -> Iterator[Value]:
    fast = facts.fast_fabrics
    if fast:
        kind, evidence = fast[0].profile_kind, "; ".join(f.seen for f in fast[:4])
        yield Value("fabric", "kind", kind, evidence)
    elif facts.schedulers:
        # A login node may lack it, so that nothing was learnt; a profile must accept something all the same.
        kind = base.fabric.kind if base else "ethernet"
        evidence = "no fabric device on this node: look from a compute node, and correct this"
        if kind in ("none", "ethernet"):
            yield Value("fabric", "kind", kind, evidence, guess=True)
        if base and base.accepts:
            return
    else:
        kind, evidence = "none", "no scheduler and no fabric device"
        yield Value("fabric", "kind", kind, evidence)
    if not (base and base.accepts and base.fabric.kind == kind):
        why = f"what MPIs call the transports of {kind}; {evidence}"
        yield Value("fabric", "accepts", [*_WITHIN, *_BEYOND[kind]], why, guess=True)
    interfaces = dict.fromkeys(
        m[0] for f in fast if (m := re.search(r"\b(hsn|ib)\d", f"{f.device} {f.state}"))
    )
    if interfaces:
        patterns = sorted({f"{name[:-1]}*" for name in interfaces})
        yield Value("fabric", "interfaces", patterns, fast[0].state)


def _mpi(facts: SiteFacts) -> Iterator[Value]:
    chosen = next((m for m in facts.mpis if m.family != "mpi-abi"), None)
    if chosen is None:
        return
    if chosen.vendor != "unknown":
        yield Value("mpi", "vendor", chosen.vendor, chosen.seen)
    if chosen.family in ("mpich", "openmpi"):
        yield Value("mpi", "family", chosen.family, f"SONAME {chosen.soname}")
    # A scheduler with its own launcher is detected together with it.
    apart = [m for m in facts.mpis if not m.launcher]
    if apart:
        folders = list(dict.fromkeys(m.path.rpartition("/")[0] for m in apart))
        yield Value("mpi", "search", folders, "; ".join(f"{m.title} in {m.path}" for m in apart))
    if chosen.missing:
        yield Value(
            "dependencies", "expected", list(chosen.missing),
            f"{chosen.path} needs them, and the loader does not find them; name their folders in `folders`",
        )  # fmt: skip


_NODES = {"slingshot": "/dev/cxi*", "aries": "/dev/kgni*", "infiniband": "/dev/infiniband/*",
          "roce": "/dev/infiniband/*", "efa": "/dev/infiniband/*", "omni-path": "/dev/hfi1_*"}  # fmt: skip


def _devices(facts: SiteFacts) -> Iterator[Value]:
    devices = [(_NODES[f.kind], f.seen) for f in facts.fast_fabrics]
    devices += [(facts.xpmem, facts.xpmem)] if facts.xpmem else []
    if devices:
        evidence = ", ".join(name for _, name in devices[:5])
        yield Value("devices", "paths", list(dict(devices)), evidence)


def _safe(text: str) -> str:
    return re.sub(r"[^\w. -]", "?", text)


def _comment(text: str) -> str:
    """The text as one line, without characters that a comment may not contain."""
    flat = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in flat)[:300]
