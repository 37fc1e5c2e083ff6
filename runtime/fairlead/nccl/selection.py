"""How NCCL and RCCL choose their network: the files that they open, and what the variables mean to a release.

``NCCL_NET_PLUGIN`` names the plugin's file, ``NCCL_NET`` the network that must be used: without a match NCCL ends with an
error instead of TCP. ``NCCL_TUNER_PLUGIN`` names the file that chooses algorithms; every release that knows it takes a
path, and one that fails is left out silently. Environment variables precede the lines of ``~/.nccl.conf``, and those precede ``/etc/nccl.conf``.
Sources: NVIDIA/nccl by tag, src/net.cc, src/init.cc, src/plugin/plugin_open.cc, src/misc/param.cc; ROCm/rccl src/net.cc.
"""

from __future__ import annotations

from itertools import chain

from fairlead.elf.facts import NcclLibrary, NetPlugin
from fairlead.elf.reader import version_key

NET, PLUGIN, TUNER = "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN"
# They are tried after any plugin, and need none.
INTERNAL = ("IB", "Socket")
OWN_NAME = "fairlead"  # X of libnccl-net-X.so, for releases that take no path
_SELECTS, _TAKES_PATHS, _TAKES_LISTS = (2, 12), (2, 21), (2, 27)
OLD_NAME, NEW_NAMES = "AWS Libfabric", ("Libfabric", "AWS Libfabric", "OFI")


def has_selection(library: NcclLibrary) -> bool:
    """Whether the release knows NCCL_NET and NCCL_NET_PLUGIN; one of unknown version is taken for a newer one."""
    return not library.version or version_key(library.version) >= _SELECTS


def takes_paths(library: NcclLibrary) -> bool:
    """Whether NCCL_NET_PLUGIN may be a path; older releases put it into ``libnccl-net-X.so``."""
    return not library.version or version_key(library.version) >= _TAKES_PATHS


def names_asked(library: NcclLibrary, value: str = "") -> tuple[str, ...]:
    """The files that a library opens, in its order.

    Args:
        value: of NCCL_NET_PLUGIN.
    """
    stem = "librccl-net" if library.kind == "rccl" else "libnccl-net"
    if not value or not has_selection(library):
        return (f"{stem}.so",)
    if not takes_paths(library):
        return (f"{stem}-{value}.so",)
    lists = library.version and version_key(library.version) >= _TAKES_LISTS
    words = [word for word in value.split(",") if word] if lists else [value]
    if value.lower() == "none":
        return ()
    return tuple(chain.from_iterable(_tried(stem, word) for word in words))


def _tried(stem: str, word: str) -> tuple[str, ...]:
    is_file = "/" in word or (word.startswith("lib") and word.endswith(".so"))
    return (word,) if is_file else (word, f"{stem}-{word}.so")


def names_staged(library: NcclLibrary) -> tuple[str, ...]:
    """Every name under which a release of the library's kind, or a script of the site, may ask for the plugin."""
    stems = ("librccl-net", "libnccl-net") if library.kind == "rccl" else ("libnccl-net",)
    return tuple(f"{stem}{end}.so" for stem in stems for end in ("", "-ofi", f"-{OWN_NAME}"))


def names_of_network(plugin: NetPlugin) -> tuple[str, ...]:
    """What NCCL_NET may be for a plugin to be chosen; the preferred first. Empty if its name is unknown.

    aws-ofi-nccl has one name up to 1.12; later ones take that of NCCL_NET, so that the old name serves all of them.
    """
    if not plugin.release:
        return (plugin.name,) if plugin.name else ()
    if version_key(plugin.release) < (1, 13):
        return (OLD_NAME,)
    return (OLD_NAME, *(name for name in NEW_NAMES if name != OLD_NAME))


def is_same_network(left: str, other: str) -> bool:
    """Whether two names mean the same network to NCCL, which ignores case."""
    return left.lower() == other.lower()
