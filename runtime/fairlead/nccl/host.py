"""The host's net plugins: where they are, what they need, and what they can use.

A :class:`HostNetwork` contains only facts. No code of a plugin is run: one may abort when it is loaded.
:mod:`fairlead.nccl.choose` decides which of them serves an image.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.system import View
from fairlead.elf import nccl_symbols, reader
from fairlead.elf.facts import Elf
from fairlead.elf.loader import Loader, system_folders
from fairlead.elf.reader import NotElf
from fairlead.mpi.host import Plugins, modules_of
from fairlead.nccl.model import HostNccl, HostNetwork, NcclRules, NetPlugin
from fairlead.nccl.selection import PLUGIN
from fairlead.site import nccl as site_nccl
from fairlead.site.model import Site
from fairlead.site.resolved_paths import matches

_FILES = ("libnccl-net*.so*", "librccl-net*.so*")
# aws-ofi-nccl had a name of its own until NCCL settled one.
_TUNERS = ("lib{kind}-tuner*.so*", "lib{kind}-ofi-tuner*.so*")
# Where vendors install aws-ofi-nccl: AWS' images and packages of several years, ALCF.
_COMMON = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/*-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/soft/libraries/aws-ofi-nccl/*/lib",
)
_COMMON_LIBRARIES = (
    "/opt/amazon/efa/lib*",
    "/opt/cray/libfabric/*/lib64",
    "/soft/libraries/hwloc/lib",
)
_DEVICES = ("/dev/cxi[0-9]*", "/dev/infiniband/uverbs[0-9]*", "/dev/gdrdrv")
# What engines bring for GPUs, as far as programs that compute load it; source: Apptainer's nvliblist.conf, rocmliblist.conf.
DRIVERS = {
    "nvidia": (
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libnvidia-ptxjitcompiler.so.1",
        "libOpenCL.so.1",
    ),
    "amd": ("libdrm.so.2", "libdrm_amdgpu.so.1", "libnuma.so.1", "libpci.so.3", "libOpenCL.so.1"),
}
# A container has them from its engine or from the image: another driver than the kernel's own fails.
OF_CONTAINER = re.compile(
    r"lib(cuda|cudart|nvidia-\w+|nvcuvid|amdhip64|hsa-runtime64|rocm_smi64|amd_smi|hsakmt)\.so"
)
# Functions name themselves in libfabric's messages: those of a provider are there if it is built in.
_PROVIDERS = {
    "cxi": rb"cxip_\w+",
    "efa": rb"efa_\w+",
    "verbs": rb"vrb_\w+",
    "opx": rb"fi_opx_\w+",
    "psm2": rb"psmx2_\w+",
    "psm3": rb"psm(?:x3|3x?)_\w+",
    "ucx": rb"ucx_\w+",
    "tcp": rb"(?:xnet|tcpx)_\w+",
    "shm": rb"smr_\w+",
    "sockets": rb"sock_\w+",
}
_ENOUGH = 5  # other parts of libfabric name one or two
_MOST_PLUGINS = 50


def rules_of(site: Site | None) -> NcclRules:
    """What a site's profile wants of NCCL."""
    return site_nccl.rules(site) if site else NcclRules()


def discover(
    rules: NcclRules,
    view: View,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    named: str = "",
) -> HostNccl:
    """What this machine has for NCCL.

    Plugins come in this order: the one that is named, by ``named`` or NCCL_NET_PLUGIN; those of the site's folders; of
    LD_LIBRARY_PATH, as a loaded module sets it; of the folders that vendors use; of the system's. What they need is
    looked for as the loader would with the site's module: LD_LIBRARY_PATH, the profile's libraries, the system's, and
    only then where vendors install some.

    Args:
        named: path of a plugin, or of a folder with some.
    Raises:
        FairleadError: exit code 2; what is named is not a plugin.
    """
    loader = Loader(
        environ.get("LD_LIBRARY_PATH", ""),
        root,
        more=tuple(matches(_COMMON_LIBRARIES, environ, root)),
        first=tuple(matches(rules.libraries, environ, root)),
    )
    networks: dict[str, HostNetwork] = {}
    damaged: dict[str, str] = {}
    by_shell = environ.get(PLUGIN, "")
    for path, why in _candidates(rules, environ, root, named):
        if str(path) in networks or str(path) in damaged or len(networks) >= _MOST_PLUGINS:
            continue
        try:
            plugin = nccl_symbols.read_plugin(path)
            if plugin and plugin.interfaces.get("net"):
                networks[str(path)] = replace(
                    _described(plugin, loader, why),
                    names=_names(path),
                    named=by_shell if _is_named(path, by_shell) else "",
                )
        except (NotElf, OSError) as exc:
            damaged[str(path)] = str(exc).removeprefix(f"{path} ")
    if named and not networks:
        why = next(iter(damaged.values()), "it exports no ncclNetPlugin_vN")
        raise fail("nccl-named", named=named, why=why)
    return HostNccl(
        networks=tuple(networks.values()),
        damaged=tuple(damaged.items()),
        gone=tuple(p for p in rules.folders if not matches((p,), environ, root)),
        devices=tuple(path for pattern in _DEVICES for path in view.matching(pattern)),
        user_conf=_user_conf(view, environ),
        drivers=tuple(_drivers(root)),
    )


def _candidates(
    rules: NcclRules, environ: Mapping[str, str], root: Path, named: str
) -> Iterator[tuple[Path, str]]:
    """Files that may be plugins by their names, links resolved, and why each is considered."""
    if named:
        path = Path(named)
        for file in _plugins_in(path) if path.is_dir() else (path.resolve(),):
            yield file, f"named by --nccl {named}"
        return
    if "/" in environ.get(PLUGIN, ""):
        yield Path(environ[PLUGIN]).resolve(), f"named by your {PLUGIN}"
    searched = [Path(p) for p in environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    for folders, why in (
        (matches(rules.folders, environ, root), rules.source),
        (searched, "in a folder of LD_LIBRARY_PATH"),
        (matches(_COMMON, environ, root), "where its vendor installs it"),
        (system_folders(root), "in the system's library folders"),
    ):
        for folder in folders:
            for file in _plugins_in(folder):
                yield file, why


def _drivers(root: Path) -> Iterator[Elf]:
    """The first of each name and processor, as the loader's cache has them."""
    visited = set[tuple[str, str]]()
    folders = system_folders(root)
    for name in dict.fromkeys(chain.from_iterable(DRIVERS.values())):
        for folder in folders:
            with suppress(NotElf, OSError):
                elf = reader.read((folder / name).resolve(strict=True))
                if (name, elf.machine) not in visited:
                    visited.add((name, elf.machine))
                    yield elf


def _is_named(path: Path, value: str) -> bool:
    return "/" in value and Path(value).resolve() == path


def _names(path: Path) -> tuple[str, ...]:
    links = (p for p in path.parent.iterdir() if p.name.startswith(("libnccl", "librccl")))
    return tuple(sorted({path.name, *(p.name for p in links if p.resolve() == path)}))


def _plugins_in(folder: Path) -> Sequence[Path]:
    try:
        files = [path for pattern in _FILES for path in sorted(folder.glob(pattern))]
        return list(dict.fromkeys(path.resolve() for path in files if path.is_file()))
    except OSError:
        return ()


def _described(plugin: NetPlugin, loader: Loader, why: str) -> HostNetwork:
    opened = (
        loader.find(name, plugin.elf) for name in plugin.opens if not OF_CONTAINER.match(name)
    )
    behind, absent = _behind(plugin, loader, *filter(None, opened))
    modules = tuple(modules_of(behind))
    tuner, more = _tuner(plugin, loader)
    there = {elf.name for elf in behind}
    closure = (*behind, *(elf for elf in more if elf.name not in there))
    return HostNetwork(
        plugin, closure, tuple(absent), providers(behind, modules), why, modules, tuner=tuner
    )


def _behind(
    plugin: NetPlugin, loader: Loader, *opened: Path
) -> tuple[list[Elf], list[tuple[str, str]]]:
    """What a plugin brings, and what it lacks."""
    closure, missing = loader.closure([Path(plugin.path), *opened])
    behind = [e for e in closure if e.path != plugin.path and not OF_CONTAINER.match(e.name)]
    return behind, [(name, by) for name, by in missing if not OF_CONTAINER.match(name)]


def _tuner(plugin: NetPlugin, loader: Loader) -> tuple[NetPlugin | None, list[Elf]]:
    """The tuner of a network, with what it needs: one that lacks something serves nobody, and is none."""
    if plugin.interfaces.get("tuner"):
        return plugin, []
    path = Path(plugin.path)
    kind = "rccl" if path.name.startswith("librccl") else "nccl"
    for pattern in _TUNERS:
        for file in sorted(path.parent.glob(pattern.format(kind=kind))):
            with suppress(NotElf, OSError):
                tuner = nccl_symbols.read_plugin(file)
                if tuner and tuner.interfaces.get("tuner") and _one_build(plugin, tuner):
                    behind, missing = _behind(tuner, loader)
                    if not missing:
                        return tuner, behind
    return None, []


def _one_build(plugin: NetPlugin, tuner: NetPlugin) -> bool:
    """Whether they are for one processor and, as far as they say, of one release."""
    same_build = not (plugin.release and tuner.release) or plugin.release == tuner.release
    return same_build and plugin.elf.machine == tuner.elf.machine


def providers(closure: Sequence[Elf], modules: Sequence[Plugins]) -> tuple[str, ...]:
    """The providers of the libfabric among some libraries: built in, or modules.

    Raises:
        NotElf, OSError: it cannot be read.
    """
    names: list[str] = []
    for elf in closure:
        if elf.soname.startswith("libfabric.so"):
            names += providers_in(Path(elf.path))
    for plugins in modules:
        if plugins.variable == "FI_PROVIDER_PATH":
            files = [Path(file).name for file in plugins.files]
            names += [re.sub(r"^lib|-fi\.so.*$", "", name) for name in files]
    return tuple(dict.fromkeys(names))


def providers_in(libfabric: Path) -> tuple[str, ...]:
    """The providers that are built into a libfabric.

    Raises:
        NotElf, OSError: it cannot be read.
    """
    every = b"|".join(b"(%s)" % pattern for pattern in _PROVIDERS.values())
    markers: dict[str, set[bytes]] = {name: set() for name in _PROVIDERS}
    for groups in reader.texts(libfabric, rb"\0(?=(?:%s)\0)" % every):
        for name, function in zip(_PROVIDERS, groups, strict=True):
            if function:
                markers[name].add(function)
    return tuple(name for name, functions in markers.items() if len(functions) >= _ENOUGH)


def _user_conf(view: View, environ: Mapping[str, str]) -> dict[str, str]:
    """The user's file of NCCL, which containers of most engines see too; RCCL's is read after it."""
    home = environ.get("HOME", "")
    files = [environ.get("NCCL_CONF_FILE", "")] if environ.get("NCCL_CONF_FILE") else []
    files = files or [f"{home}/.nccl.conf", f"{home}/.rccl.conf"]
    values: dict[str, str] = {}
    for file in files if home or files[0].startswith("/") else ():
        for name, value in nccl_symbols.conf(view.read(file) or "").items():
            values.setdefault(name, value)
    return values
