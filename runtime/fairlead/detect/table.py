"""Facts as rows for people: what, its value, where it was seen."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.detect.model import MpiFact, SiteFacts

Row = tuple[str, str, str]


def rows(facts: SiteFacts) -> Iterator[Row]:
    """One row a fact, in the order in which a profile has its sections."""
    for section in (_system, _starts, _engines, _mpis, _network, _nccl, _node):
        yield from section(facts)
    for unknown in facts.unknown:
        yield "not known", unknown.what, unknown.why


def _system(facts: SiteFacts) -> Iterator[Row]:
    """The operating system and the processor."""
    if system := facts.system:
        parts = [system.name, f"kernel {system.kernel}", system.machine]
        parts += [f"glibc {system.glibc}"] if system.glibc else []
        yield "system", ", ".join(filter(None, parts)), system.seen
        if system.inside:
            yield "inside", system.inside, system.seen.rpartition(", ")[2]
    if processor := facts.processor:
        cores = f"{processor.cores} cores for this process"
        cores += f" of {processor.online}" if processor.online != processor.cores else ""
        model = f" ({processor.model})" if processor.model else ""
        yield "processor", f"{processor.target or 'unknown'}{model}, {cores}", processor.seen
        if processor.memory_bytes:
            yield "memory", f"{processor.memory_bytes / 2**30:.1f} GiB", "/proc/meminfo"


def _starts(facts: SiteFacts) -> Iterator[Row]:
    """What gives nodes, and what starts ranks."""
    for scheduler in facts.schedulers:
        title = f"{scheduler.kind} {scheduler.version}".strip()
        cluster = f", cluster {scheduler.cluster}" if scheduler.cluster else ""
        job = f"in job {scheduler.job}" if scheduler.job else "outside of a job"
        yield "scheduler", f"{title}{cluster}, {job}", scheduler.seen
    if not facts.schedulers:
        yield "scheduler", "none", "no program and no job of one"
    for launcher in facts.launchers:
        yield "launcher", f"{launcher.kind}: {launcher.title}", launcher.seen
    for pmi in facts.pmi:
        yield "PMI", f"{pmi.flavour} ({pmi.detail})" if pmi.detail else pmi.flavour, pmi.seen


def _engines(facts: SiteFacts) -> Iterator[Row]:
    """The container engines."""
    for engine in facts.engines:
        setuid = {True: ", setuid", False: ", not setuid", None: ""}[engine.setuid]
        yield "engine", engine.title + setuid, engine.seen
        distinctive = [
            f"{key} {value}".strip()
            for key, value in engine.settings.items()
            if key in _ALWAYS or value != _USUAL.get(key)
        ]
        if distinctive:
            yield "", "; ".join(distinctive), engine.config or engine.seen
    if not facts.engines:
        yield "engine", "none", "PATH, `srun --help`"


def _mpis(facts: SiteFacts) -> Iterator[Row]:
    """The MPIs."""
    by_prefix: dict[tuple[str, str, str], list[MpiFact]] = {}
    for mpi in facts.mpis:  # one may have several binary interfaces
        by_prefix.setdefault((mpi.vendor, mpi.version, mpi.prefix), []).append(mpi)
    for first, *others in by_prefix.values():
        families = " and ".join(dict.fromkeys(m.family for m in (first, *others)))
        launcher = first.launcher_title or first.launcher
        lacks = f"; lacks {', '.join(first.missing)}" if first.missing else ""
        title = f"{first.title}, {families} family, MPI {first.level}; "
        yield (
            "MPI",
            title + (f"launcher {launcher}" if launcher else "no launcher") + lacks,
            first.seen,
        )
    if not facts.mpis:
        where = "$FAIRLEAD_MPI, fairlead's own, mpiexec on PATH, system and Cray folders"
        yield "MPI", "none", where


def _network(facts: SiteFacts) -> Iterator[Row]:
    """Networks, and what libraries can use of them."""
    for fabric in facts.fabrics:
        state = f", {fabric.state}" if fabric.state else ""
        yield "fabric", f"{fabric.kind}: {fabric.device}{state}", fabric.seen
    if not facts.fast_fabrics:
        yield "fabric", "no device beyond Ethernet", "/sys/class/{cxi,infiniband,net}, /dev"
    if facts.xpmem:
        yield "XPMEM", "yes", facts.xpmem
    for transport in facts.transports:
        kind = "providers" if transport.library == "libfabric" else "transports"
        some = "" if transport.complete else f"{kind} as modules, besides built-in ones: "
        title = f"{transport.library} {transport.version}".strip()
        yield title, some + ", ".join(transport.names), transport.seen


def _nccl(facts: SiteFacts) -> Iterator[Row]:
    """What carries NCCL between nodes."""
    for plugin in facts.plugins:
        parts = [plugin.title, f"network {plugin.network}" if plugin.network else ""]
        parts += [f"net interface {_span(plugin.interfaces)}"]
        parts += [f"tuner {_span(plugin.tuner)}" if plugin.tuner else "", plugin.runtime]
        lacks = f"; lacks {', '.join(plugin.missing)}" if plugin.missing else ""
        yield "NCCL plugin", ", ".join(filter(None, parts)) + lacks, plugin.seen
        if plugin.libfabric:
            names = ", ".join(plugin.providers) or "not known"
            yield "", f"providers of its libfabric: {names}", plugin.libfabric
    if not facts.plugins:
        where = "the profile's folders, LD_LIBRARY_PATH, the vendors', the system's"
        yield "NCCL plugin", "none", where
    if facts.gdrcopy:
        yield "GDRCopy", "yes", facts.gdrcopy


def _span(versions: tuple[int, ...]) -> str:
    first, last = min(versions), max(versions)
    return f"v{first}" if first == last else f"v{first} to v{last}"


def _node(facts: SiteFacts) -> Iterator[Row]:
    """GPUs, what the kernel allows, places for data."""
    for gpu in facts.gpus:
        vendor = "" if gpu.vendor in gpu.model.lower() else gpu.vendor
        driver = f", driver {gpu.driver}" if gpu.driver else ""
        name = f"{vendor} {gpu.model}".strip()
        yield "GPU", f"{gpu.count} × {name}{driver}", gpu.seen
    if not facts.gpus:
        yield "GPU", "none", "/proc/driver/nvidia, /sys/class/kfd, /sys/class/drm, /dev"
    for ability in facts.abilities:
        yield ability.name, ability.value, ability.seen
    for place in facts.storage:
        free = f", {place.free_bytes / 1e9:.1f} GB free" if place.free_bytes is not None else ""
        kind = f" ({place.kind})" if place.kind else ""
        yield "storage", f"{place.role}: {place.path}{kind}{free}", place.seen


# Default values of engine configurations.
_USUAL = {
    "allow setuid": "yes", "user bind control": "yes", "mount hostfs": "no", "mount home": "yes", "mount tmp": "yes",
    "mount dev": "yes", "mount proc": "yes", "mount sys": "yes", "enable fusemount": "yes", "max loop devices": "256",
    "allow container squashfs": "yes", "allow container sif": "yes", "allow container dir": "yes",
    "root default capabilities": "full", "always use nv": "no", "always use rocm": "no",
}  # fmt: skip
_ALWAYS = ("user bind control", "mount hostfs", "bind path", "enable overlay", "enable underlay")
