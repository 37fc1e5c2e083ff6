"""What a site's profile says about NCCL: the rules for a plan, and what its sources disagree on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.site.model import Origin, Site

_ENV, _ALTERNATIVES = "nccl.env", "nccl.alternatives"


@dataclass(frozen=True)
class NcclRules:
    """What a plan for NCCL's plugin goes by.

    Attributes:
        folders: patterns of folders with its plugins, on the host.
        libraries: patterns of folders with what they need: libfabric, hwloc, libcxi.
        networks: accepted names of ``Using network``; the first is asked for. Empty: any but Socket.
        providers: accepted providers of libfabric; empty: any.
        interfaces: prefixes of the network interfaces, for NCCL_SOCKET_IFNAME.
        env: variables for ranks.
        single_node: set NCCL_NET on one node too.
        gdr: NCCL must use GPUDirect RDMA between nodes.
        source: which profile says so, and how well it is known, for ``explain``.
    """

    folders: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    single_node: bool = False
    gdr: bool = False
    source: str = ""


def rules(site: Site) -> NcclRules:
    """The rules of a site; of one that says nothing about NCCL, empty ones."""
    nccl = site.nccl
    return NcclRules(
        folders=nccl.folders,
        libraries=(*nccl.libraries, *_parents(nccl.files)),
        networks=nccl.networks,
        providers=nccl.providers,
        interfaces=nccl.interfaces,
        env=nccl.env,
        single_node=nccl.single_node,
        gdr=nccl.gdr,
        source=_source(site),
    )


def _source(site: Site) -> str:
    """The profile and the source of the variables, or of what else there is, with its date."""
    first = next((key for key in site.origins if key.startswith("nccl.")), "")
    origin = site.origins.get(_ENV) or site.origins.get(first)
    if origin is None:
        return ""
    read = f", read {origin.read}" if origin.read else ""
    return f"the profile {origin.profile} says so ({origin.status.value}: {origin.source}{read})"


def _parents(files: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path.rpartition("/")[0] or "/" for path in files))


@dataclass(frozen=True)
class Setting:
    """One value of a variable, as one source states it.

    Attributes:
        profile: the profile that states it: a site, or the family of several.
        fabric: the network of its machines.
        used: a site's profile sets it; what other sources state is known and not set.
    """

    profile: str
    fabric: str
    value: str
    used: bool
    origin: Origin


@dataclass(frozen=True)
class Variable:
    """What the compared profiles say about one variable.

    Attributes:
        settings: each value with its source, those in use first.
        within: profiles with sources that disagree.
        between: networks on which the profiles set different values.
        unset: compared profiles of those networks that do not set it.
    """

    name: str
    settings: tuple[Setting, ...]
    within: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()

    @property
    def contradicted(self) -> bool:
        return bool(self.within or self.between)


def with_variables(sites: Iterable[Site]) -> tuple[Site, ...]:
    """Those sites, and no families, that set variables for NCCL."""
    return tuple(site for site in sites if site.nccl.env and not site.is_family)


def compare(sites: Sequence[Site]) -> tuple[Variable, ...]:
    """Every variable that one of the profiles or one of their sources sets, by name."""
    stated: dict[str, dict[tuple[str, str, Origin], Setting]] = {}
    for site in sites:
        for name, setting in _settings(site):
            # What a family states is the same for each of its sites.
            key = (setting.profile, setting.value, setting.origin)
            stated.setdefault(name, {}).setdefault(key, setting)
    return tuple(_variable(name, stated[name].values(), sites) for name in sorted(stated))


def _settings(site: Site) -> Iterator[tuple[str, Setting]]:
    fabric = site.fabric.kind
    for name, value in site.nccl.env.items():
        yield name, Setting(site.name, fabric, value, True, site.origins[f"{_ENV}.{name}"])
    for source, variables in site.nccl.alternatives.items():
        origin = site.origins[f"{_ALTERNATIVES}.{source}"]
        for name, value in variables.items():
            yield name, Setting(origin.profile, fabric, value, False, origin)


def _variable(name: str, stated: Iterable[Setting], sites: Sequence[Site]) -> Variable:
    settings = tuple(sorted(stated, key=lambda s: (not s.used, s.fabric, s.value, s.profile)))
    used: dict[str, set[str]] = {}
    for setting in settings:
        if setting.used:
            used.setdefault(setting.fabric, set()).add(setting.value)
    fabrics = {setting.fabric for setting in settings}
    return Variable(
        name,
        settings,
        within=tuple(site.name for site in sites if len(_values(site, name)) > 1),
        between=tuple(fabric for fabric, several in used.items() if len(several) > 1),
        unset=tuple(s.name for s in sites if s.fabric.kind in fabrics and name not in s.nccl.env),
    )


def _values(site: Site, name: str) -> set[str]:
    """All values of a variable that a profile knows, those of its family included."""
    return {setting.value for variable, setting in _settings(site) if variable == name}
