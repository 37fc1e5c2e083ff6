"""What NCCL uses, compared with what it should use; for ranks as well, so it imports the standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairlead.base.nccl_log import Cause, Record, same

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIBRARY = re.compile(r"/lib(?:nccl|rccl)\.so[\d.]*$")
PLUGIN = re.compile(r"/lib(?:nccl|rccl)-net[^/]*\.so[\d.]*$")
_SOCKET = "Socket"
_NOT_BEGUN = ("cuda", "vni", "open-failed", "no-nic", "init-failed")  # kinds of causes
_UNSAID = Cause(
    "unsaid", "NCCL does not say why: the plugin is not there, did not initialise, or has no device"
)


@dataclass(frozen=True)
class Expected:
    """What NCCL should use.

    Attributes:
        networks: accepted names; empty: any but Socket.
        providers: accepted providers of libfabric; empty: any.
        file: the plugin, as the container sees it; "" for any.
        inode: of that file; 0 when its path decides.
        interface: of the plugin; 0 for any.
        nics: network devices that the plugin must find, at least.
        gdr: edges between nodes must use GPUDirect RDMA, or must not; None for either.
        nics_gdr: the network must not be without GPUDirect RDMA on any of its devices. Which connections use it NCCL
            decides by the distance between a GPU and a device.
        library: the NCCL that must be mapped; "" for any.
    """

    networks: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    file: str = ""
    inode: int = 0
    interface: int = 0
    nics: int = 0
    gdr: bool | None = None
    nics_gdr: bool = False
    library: str = ""


@dataclass(frozen=True)
class Mapped:
    """The files of NCCL in a process, each once: ``(path, inode)``."""

    libraries: tuple[tuple[str, int], ...] = ()
    plugins: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Difference:
    """One thing that is not as planned.

    Attributes:
        kind: ``network``, ``failed``, ``plugin``, ``interface``, ``provider``, ``nics``, ``edge``, ``gdr``, ``library``,
            ``libraries``.
        text: the fact, in one line.
        cause: what the log says about the reason, if there can be one.
    """

    kind: str
    text: str
    cause: Cause | None = None


def mapped(maps: str) -> Mapped:
    """The files of NCCL in the text of a ``/proc/PID/maps``."""
    libraries, plugins = dict[tuple[str, int], None](), dict[tuple[str, int], None]()
    for line in maps.splitlines():
        words = line.split(None, 5)
        if len(words) == 6:
            path = words[5].replace(" (deleted)", "")
            for pattern, paths in ((LIBRARY, libraries), (PLUGIN, plugins)):
                if pattern.search(path):
                    paths[path, int(words[4])] = None
    return Mapped(tuple(libraries), tuple(plugins))


def differences(record: Record, expected: Expected) -> tuple[Difference, ...]:
    """What a log says that is not as planned, the most telling first. What it does not say is not a difference."""
    problems = [*_network(record, expected)]
    if record.network and not problems:
        problems += [*_plugin(record, expected), *_provider(record, expected)]
        problems += _nics_gdr(record, expected)
    return (*problems, *_edges(record, expected))


def file_differences(maps: Mapped, expected: Expected) -> tuple[Difference, ...]:
    """What a process has mapped that is not as planned; a process without NCCL has no difference."""
    return (*_libraries(maps, expected), *_mapped_plugins(maps, expected))


def _network(record: Record, expected: Expected) -> Iterator[Difference]:
    cause = record.causes[0] if record.causes else _UNSAID
    if not record.network:
        if failed(record):
            yield Difference("failed", _none(expected), cause)
        return
    if not _accepted(record.network, expected):
        planned = " or ".join(expected.networks) or "any but Socket"
        yield Difference("network", f"{record.network} is in use, {planned} was planned", cause)


def _none(expected: Expected) -> str:
    return f"no network is in use, {' or '.join(expected.networks) or 'a plugin'} was planned"


def failed(record: Record) -> bool:
    """Whether NCCL has given up looking for a network."""
    return not record.network and any(
        re.search(
            "Failed to initialize any NET plugin|Error: network .* not found|no socket interface found",
            warning,
        )
        for warning in record.warnings
    )


def ended(record: Record, expected: Expected) -> tuple[Difference, ...]:
    """What is not as planned in the log of a process that ended before it had a network, if its plugin failed to initialize.

    NCCL 2.28 then ends with SIGSEGV if the plugin's interface is older than v11.
    """
    begun = not record.name or not any(cause.kind in _NOT_BEGUN for cause in record.causes)
    if record.network or begun:
        return ()
    return (Difference("failed", _none(expected), record.causes[0]),)


def _accepted(network: str, expected: Expected) -> bool:
    if not expected.networks:
        return not same(network, _SOCKET)
    return any(same(network, name) for name in expected.networks)


def _plugin(record: Record, expected: Expected) -> Iterator[Difference]:
    file, path = expected.file, record.plugin
    if file and "/" in path and not _one_folder(path, file):
        yield Difference("plugin", f"{path} was loaded, {file} was planned")
    if expected.interface and record.interface not in (0, expected.interface):
        text = f"the plugin is used by its interface v{record.interface}, v{expected.interface} was planned"
        yield Difference("interface", text)


def _mapped_plugins(maps: Mapped, expected: Expected) -> Iterator[Difference]:
    file = expected.file
    if file and maps.plugins and not any(_is_planned(*plugin, expected) for plugin in maps.plugins):
        yield Difference("plugin", f"{maps.plugins[0][0]} is mapped, {file} was planned")


def _is_planned(path: str, inode: int, expected: Expected) -> bool:
    if expected.inode:
        return inode == expected.inode
    return _one_folder(path, expected.file)


def _one_folder(path: str, other: str) -> bool:
    """A staged plugin has several names in one folder."""
    return path.rpartition("/")[0] == other.rpartition("/")[0]


def _provider(record: Record, expected: Expected) -> Iterator[Difference]:
    used, accepted = record.provider, expected.providers
    listed = ", ".join(accepted)
    if accepted and not used:
        text = f"the log does not say which provider libfabric uses, accepted: {listed}"
        yield Difference("provider", text)
    elif accepted and used not in accepted and not set(used.split(";")) <= set(accepted):
        cause = next((c for c in record.causes if c.kind in ("vni", "no-nic")), None)
        yield Difference("provider", f"libfabric uses {used}, accepted: {listed}", cause)
    elif used and record.nics < expected.nics:
        text = f"the plugin found {record.nics} network devices, the node has {expected.nics}"
        yield Difference("nics", text)


def _nics_gdr(record: Record, expected: Expected) -> Iterator[Difference]:
    off = [name for name, on in record.nics_gdr if not on]
    if expected.nics_gdr and off:
        text = f"GPUDirect RDMA is disabled for {', '.join(off)}, so that data moves through the host's memory"
        yield Difference("gdr", text)


def _edges(record: Record, expected: Expected) -> Iterator[Difference]:
    for edge in record.edges:
        if not same(edge.network, record.network) and not _accepted(edge.network, expected):
            text = f"rank {edge.sender} sends to rank {edge.receiver} over {edge.network}"
            yield Difference("edge", text)
            break
    if expected.gdr is None:
        return
    other = [edge for edge in record.edges if edge.gdr is not expected.gdr]
    if other:
        way = "through the host's memory" if expected.gdr else "by GPUDirect RDMA"
        yield Difference(
            "gdr",
            f"{len(other)} of {len(record.edges)} connections move data {way}, "
            f"such as rank {other[0].sender} to rank {other[0].receiver}",
        )


def _libraries(maps: Mapped, expected: Expected) -> Iterator[Difference]:
    if len({inode for _, inode in maps.libraries}) > 1:
        paths = ", ".join(path for path, _ in maps.libraries)
        yield Difference("libraries", f"two NCCLs are mapped: {paths}")
    elif maps.libraries and not _one_file(maps.libraries[0][0], expected.library):
        text = f"{maps.libraries[0][0]} is mapped, {expected.library} was planned"
        yield Difference("library", text)


def _one_file(path: str, planned: str) -> bool:
    """Of a process in another mount namespace the kernel leaves the mount point out."""
    return path.endswith(planned) or planned.endswith(path)


def summary(records: Sequence[Record]) -> str:
    """In one line, what the processes of a job use."""
    parts = [_version(records)]
    for text in (_named(records), _rdma(records)):
        parts += [text] if text else []
    return "; ".join(parts)


def _version(records: Sequence[Record]) -> str:
    versions = sorted({record.version for record in records if record.version})
    return f"NCCL {', '.join(versions)}" if versions else "an NCCL of unknown version"


def _named(records: Sequence[Record]) -> str:
    texts = dict[str, None]()
    for record in records:
        facts = (
            ("", record.plugin),
            ("interface v", record.interface),
            ("aws-ofi-nccl ", record.release),
            ("libfabric ", record.libfabric),
            ("provider ", record.provider),
            ("devices: ", record.nics),
            ("tuner ", record.tuner),
            ("", " ".join(record.devices)),
        )
        details = ", ".join(f"{name}{value}" for name, value in facts if value)
        texts[(record.network or "no network") + (f" ({details})" if details else "")] = None
    return "; ".join(texts)


def _rdma(records: Sequence[Record]) -> str:
    edges = {edge for record in records for edge in record.edges}
    if not edges:
        return ""
    return f"GPUDirect RDMA on {sum(edge.gdr for edge in edges)} of {len(edges)} connections"
