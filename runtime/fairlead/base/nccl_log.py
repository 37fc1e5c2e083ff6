"""What NCCL and RCCL write about their network, as records: one per process.

The lines are those of ``NCCL_DEBUG=INFO`` with ``NCCL_DEBUG_SUBSYS=INIT,NET,ENV``; their texts are those of NCCL 2.12 to
2.30 and of aws-ofi-nccl 1.6 to 1.21, whose sources are public. :data:`SETTINGS` asks for them. Ranks read their own
logs with it (``python3 -m fairlead.prove --nccl``), so it imports the standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}
_WARNINGS = 20  # kept of a process
# The cause that explains the most comes first.
KINDS = (
    "missing-library", "not-loadable", "cuda", "vni", "open-failed", "no-nic", "no-interface", "not-found", "wrong-name",
    "no-socket", "init-failed", "no-ib",
)  # fmt: skip


@dataclass(frozen=True)
class Edge:
    """A connection between ranks that NCCL's network carries.

    Attributes:
        network: by the name of its plugin.
        gdr: by GPUDirect RDMA; otherwise data goes through the host's memory.
    """

    sender: int
    receiver: int
    network: str
    device: int
    gdr: bool


@dataclass(frozen=True)
class Cause:
    """Why the network is another one, or none.

    Attributes:
        kind: one of :data:`KINDS`.
        text: what the log says, in one line.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Record:
    """What one process says.

    Attributes:
        rank, ranks, nodes: of its first communicator; -1 and 0 before it has one.
        version: ``2.21.5+cuda12.4``; RCCL's ends with its HIP version. Often only rank 0 says it.
        network: the one in use; "" while it is undecided.
        plugin: file of the external plugin, as NCCL names it: a path since 2.28; "" when none was loaded.
        name: what that plugin calls its network.
        interface: of the plugin, the N of ``ncclNetPlugin_vN``; 0 where NCCL does not say.
        asked: what NCCL_NET_PLUGIN asked for.
        tuner: the external tuner in use, by its name or its file; "" when there is none.
        release: of aws-ofi-nccl.
        libfabric: its version.
        provider: libfabric's, ``tcp;ofi_rxm``.
        nics: how many network devices the plugin found.
        protocol: of aws-ofi-nccl: ``SENDRECV`` or ``RDMA``.
        devices: of NCCL's own IB or Socket network: ``mlx5_0:1/IB``.
        nics_gdr: of each network device, by its name, whether NCCL uses GPUDirect RDMA with it.
        dmabuf: the plugin registers GPU memory as DMA-BUF; None when it does not say.
        complete: a communicator stands.
        causes: the most telling first; also of attempts that something else has made up for.
        warnings: NCCL's own, in order.
    """

    host: str
    pid: int
    rank: int = -1
    ranks: int = 0
    nodes: int = 0
    version: str = ""
    network: str = ""
    plugin: str = ""
    name: str = ""
    interface: int = 0
    asked: str = ""
    tuner: str = ""
    release: str = ""
    libfabric: str = ""
    provider: str = ""
    nics: int = 0
    protocol: str = ""
    devices: tuple[str, ...] = ()
    nics_gdr: tuple[tuple[str, bool], ...] = ()
    dmabuf: bool | None = None
    edges: tuple[Edge, ...] = ()
    complete: bool = False
    causes: tuple[Cause, ...] = ()
    warnings: tuple[str, ...] = ()


# A timestamp of any format may precede, and the CUDA device is a random number where there is none. Where the line was
# written may be a file or, in aws-ofi-nccl, a whole signature with blanks.
_LINE = re.compile(
    r"(?:^|[\s\]])(?P<host>[^\s:\[\]]+):(?P<pid>\d+):\d+ (?:\[-?\d+\] )?(?:\S.*?:\d+ (?:\([^)]*\) )?)?"
    r"NCCL (?P<level>INFO|WARN) (?P<text>.*)$"
)
_VERSION = re.compile(r"\b(?:NCCL|RCCL) version ?:? ?(\d+\.\d+\.\d+\S*)")
_COMM = re.compile(r"\bcomm \S+ rank (\d+) n[rR]anks (\d+)(?: nNodes (\d+))?")
_EDGE = re.compile(
    r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\] \[(?:send|receive)\] via NET/(.+?)/(\d+)(?:\(\d+\))?((?:/GDRDMA)?)"
)
_NOT_OPENED = "cannot open shared object file"
_PLUGIN = re.compile(r"lib[nr]ccl-net")
_LOADER = (
    # 2.18; 2.12 to 2.17 only where errno is not ENOENT
    re.compile(r"NET/Plugin ?: Plugin load (?:\((?P<file>[^)]*)\) )?returned \d+ : (?P<why>.+?)(?: : when loading (?P<when>\S+))?$"),
    # 2.19, 2.20
    re.compile(r"NET/Plugin ?: dlerror=(?P<why>.+?) No plugin found \((?P<file>[^)]*)\)"),
    # 2.22 and newer
    re.compile(r"NET/Plugin ?: (?P<file>\S+\.so[.\d]*): (?P<why>.+)$"),
)  # fmt: skip
_NOT_FOUND = (
    re.compile(r"NET/Plugin ?: No plugin found(?: \((?P<file>[^)]*)\))?"),
    re.compile(r"NET/Plugin ?: Could not find: ?(?P<file>[^.\s]\S*?(?:\.so[.\d]*)?(?: \S+?)*?)\.?(?: Using internal.*)?$"),
)  # fmt: skip
_CAUSES = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("cuda", r"NET/OFI .*(?:Failed to find CUDA|CUDA initialization failed|Failed to load CUDA runtime symbol|Failed to resolve CUDA)"),
        ("open-failed", r"NET/OFI .*Couldn't (?:open a fabric|allocate endpoint|enable endpoint)"),
        ("no-nic", r"NET/OFI .*(?:No eligible providers were found|Couldn't find any optimal provider|Insufficient Libfabric devices|protocol that worked|No viable endpoint)"),
        ("no-nic", r"NET/OFI .*Failed to initialize (?:sendrecv|rdma|\S+) protocol"),
        ("no-ib", r"NET/IB ?: No device found"),
        ("no-interface", r"NET/Plugin ?: Failed to find ncclNetPlugin symbol|External network plugin .* is unsupported"),
        ("no-socket", r"Bootstrap ?: no socket interface found"),
        ("wrong-name", r"Error: network .* not found"),
        ("init-failed", r"Failed to initialize NET plugin (?!(?:IB|Socket)$)|aws-ofi-nccl initialization failed|Failed to initialize any NET plugin"),
    )
)  # fmt: skip
_FACTS = {
    "asked": re.compile(r"(?<!TUNER/Plugin: )(?:NET/Plugin ?: )?(?:Plugin name set by env to|NCCL_NET_PLUGIN set by environment to) (\S+?)\.?$"),
    "plugin": re.compile(r"Successfully loaded external (?:network )?plugin (.+)$"),
    "tuner": re.compile(r"(?:Using tuner plugin:? '?|Successfully loaded external tuner plugin )([^']+?)'?$"),
    "release": re.compile(r"NET/OFI Initializing aws-ofi-nccl (\S+)"),
    "libfabric": re.compile(r"NET/OFI Using Libfabric version (\d+\.\d+)"),
    "protocol": re.compile(r"NET/OFI Using transport protocol (\w+)"),
    "network": re.compile(r"^Using network (.+?)\s*$"),
}  # fmt: skip
_LOADED = re.compile(r"NET/Plugin ?: Loaded net plugin (.+) \(v(\d+)\)")
_PROVIDER = re.compile(
    r"NET/OFI Selected [Pp]rovider is ([^\s,]+)(?:, fabric is .+?)? \(found (\d+) nics\)"
)
_DEVICES = re.compile(r"NET/(?:IB|Socket) ?: Using ?((?: ?\[\d+\]\S+)+)")
_NIC_GDR = re.compile(r"NET/(.+?) : GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '(.+)'")
_MISSED = re.compile(r"Failed to find ncclNetPlugin_v\d+ symbol")
# Releases that name the interface only when it is not the newest that they know, and which that is.
_UNSAID = {"2.18": 6, "2.19": 7, "2.20": 8, "2.21": 8, "2.22": 8, "2.23": 8}
_INTERNAL = ("", "IB", "Socket")
_DMABUF = re.compile(r"NET/OFI Support for DMA-BUF registrations: (true|false)")


def parse(text: str) -> tuple[Record, ...]:
    """The records of one log, a process each, in the order in which they first wrote.

    Lines that are none of NCCL's are skipped, so that a job's whole output serves as well.
    """
    readers: dict[tuple[str, int], _Reader] = {}
    version = ""
    for line in text.splitlines():
        header = _LINE.search(line)
        if header is None:
            match = _VERSION.search(line)
            version = match.group(1) if match else version
            continue
        key = header.group("host"), int(header.group("pid"))
        reader = readers.setdefault(key, _Reader(*key))
        reader.read(header.group("text").strip(), header.group("level") == "WARN")
    records = tuple(reader.record() for reader in readers.values())
    return tuple(replace(r, version=r.version or version) for r in records)


class _Reader:
    """Collects the facts of one process."""

    def __init__(self, host: str, pid: int) -> None:
        self._facts: dict[str, Any] = {"host": host, "pid": pid}
        self._edges: dict[Edge, None] = {}
        self._causes: list[Cause] = []
        self._warnings: list[str] = []
        self._devices: dict[str, None] = {}
        self._nics: dict[tuple[str, str], bool] = {}
        self._missed = False

    def read(self, text: str, warned: bool) -> None:
        if warned:
            self._warnings.append(text)
        self._missed |= _MISSED.search(text) is not None
        for fact in (*_simple(text), *self._several(text)):
            self._facts.setdefault(*fact)
        if edge := _EDGE.search(text):
            sender, receiver, network, device, gdr = edge.groups()
            self._edges[Edge(int(sender), int(receiver), network, int(device), bool(gdr))] = None
        self._causes += _causes(text)

    def _several(self, text: str) -> Iterator[tuple[str, Any]]:
        if match := _COMM.search(text):
            # Those that it splits later have other numbers.
            if int(match.group(2)) >= self._facts.get("ranks", 0):
                self._facts.update(rank=int(match.group(1)), ranks=int(match.group(2)))
            if match.group(3):
                self._facts["nodes"] = max(int(match.group(3)), self._facts.get("nodes", 0))
            if text.endswith("Init COMPLETE"):
                yield "complete", True
        elif match := _LOADED.search(text):
            yield "name", match.group(1)
            yield "interface", int(match.group(2))
        elif match := _PROVIDER.search(text):
            yield "provider", match.group(1)
            yield "nics", int(match.group(2))
        elif match := _DMABUF.search(text):
            yield "dmabuf", match.group(1) == "true"
        elif match := _NIC_GDR.search(text):
            self._nics[match.group(1), match.group(3)] = match.group(2) == "Enabled"
        elif match := _DEVICES.search(text):
            self._devices.update(dict.fromkeys(re.findall(r"\[\d+\](\S+)", match.group(1))))

    def record(self) -> Record:
        facts = self._facts
        record = Record(
            **facts,
            devices=tuple(self._devices),
            nics_gdr=self._nics_of(str(facts.get("network", ""))),
            edges=tuple(self._edges),
            warnings=tuple(self._warnings[:_WARNINGS]),
        )
        if not (record.interface or self._missed) and record.network not in _INTERNAL:
            release = ".".join(record.version.split(".")[:2])
            record = replace(record, interface=_UNSAID.get(release, 0))
        return replace(record, causes=tuple(_ordered(record, self._causes)))

    def _nics_of(self, network: str) -> tuple[tuple[str, bool], ...]:
        nics = self._nics.items()
        return tuple((name, on) for (of, name), on in nics if same(of, network))


def _simple(text: str) -> Iterator[tuple[str, Any]]:
    for name, pattern in _FACTS.items():
        if match := pattern.search(text):
            yield name, match.group(1)
    if match := _VERSION.search(text):
        yield "version", match.group(1)


def _causes(text: str) -> Iterator[Cause]:
    for pattern in _LOADER:
        if match := pattern.search(text):
            groups = match.groupdict()
            file = groups.get("when") or groups.get("file") or ""
            if (
                "tuner" not in file and "profiler" not in file
            ):  # 2.21 writes those with this prefix too
                yield _loader_cause(file, groups["why"].strip(" ."))
            return
    for pattern in _NOT_FOUND:
        if match := pattern.search(text):
            yield Cause("not-found", text)
            return
    for kind, pattern in _CAUSES:
        if pattern.search(text):
            yield Cause(kind, text)
            return


def _loader_cause(file: str, why: str) -> Cause:
    """What the loader's words mean: it names the plugin, or a library that the plugin needs.

    Args:
        file: what NCCL asked for, which need not be the name of a file: ``ofi``.
    """
    library = why.partition(":")[0]
    if _NOT_OPENED not in why:
        return Cause("not-loadable", why)
    own = library == file or _PLUGIN.match(library.rpartition("/")[2]) is not None
    return Cause("not-found" if own else "missing-library", why)


def _ordered(record: Record, causes: list[Cause]) -> Iterable[Cause]:
    """The causes, each once, the most telling first; with what follows from the record as a whole."""
    unique = dict.fromkeys(causes)
    kinds = {cause.kind for cause in unique}
    if "cxi" in record.provider and "open-failed" in kinds:
        # The provider is there and its endpoint is not allowed: the job has no service for a VNI.
        unique = dict.fromkeys(
            replace(c, kind="vni") if c.kind == "open-failed" else c for c in unique
        )
    if (
        record.name
        and record.network
        and not same(record.network, record.name)
        and not kinds & set(KINDS[:6])
    ):
        text = f"the plugin {record.name} was loaded, and {record.network} is in use: it did not initialise, or found no device"
        unique[Cause("init-failed", text)] = None
    return sorted(unique, key=lambda cause: KINDS.index(cause.kind))


def same(left: str, other: str) -> bool:
    """Whether two names are one network's: NCCL ignores case."""
    return left.casefold() == other.casefold()
