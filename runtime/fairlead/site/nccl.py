"""What a site's profile says about NCCL: the rules for a plan, and what its sources disagree on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fairlead.site.model import Origin, Site

_ENV, _ALTERNATIVES = "nccl.env", "nccl.alternatives"


@dataclass(frozen=True)
class SiteRules:
    """What a plan for NCCL's plugin goes by.

    Attributes:
        folders, libraries: patterns of folders with the plugin, and with what it needs.
        networks: names of NCCL_NET that a run may end on; the first is asked for. Empty if not known.
        providers: libfabric's, that the plugin may choose. Empty if not known.
        interfaces: prefixes of interfaces.
        env: variables to set.
        single_node: NCCL_NET is set for runs on a single node too.
        source: which profile says so, and how well it is known.
    """

    folders: tuple[str, ...]
    libraries: tuple[str, ...]
    networks: tuple[str, ...]
    providers: tuple[str, ...]
    interfaces: tuple[str, ...]
    env: Mapping[str, str]
    single_node: bool
    source: str


def rules(site: Site) -> SiteRules:
    """The rules of a site; of one that says nothing about NCCL, empty ones."""
    nccl = site.nccl
    key = next((k for k in site.origins if k.startswith("nccl.")), "")
    return SiteRules(
        folders=nccl.folders,
        libraries=(*nccl.libraries, *_parents(nccl.files)),
        networks=nccl.networks,
        providers=nccl.providers,
        interfaces=nccl.interfaces,
        env=nccl.env,
        single_node=nccl.single_node,
        source=site.says(_ENV if _ENV in site.origins else key) if key else "",
    )


def _parents(files: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path.rpartition("/")[0] or "/" for path in files))


@dataclass(frozen=True)
class Setting:
    """One value of a variable, as one source states it.

    Attributes:
        used: the profile sets it; otherwise another source's value is set, or none.
    """

    site: str
    variable: str
    value: str
    used: bool
    origin: Origin


def settings(site: Site) -> tuple[Setting, ...]:
    """Every value that any source of the profile states, by variable; the one in use first."""
    return tuple(sorted(_settings(site), key=lambda s: (s.variable, not s.used)))


def _settings(site: Site) -> Iterator[Setting]:
    for name, value in site.nccl.env.items():
        yield Setting(site.name, name, value, True, site.origins[f"{_ENV}.{name}"])
    for source, variables in site.nccl.alternatives.items():
        for name, value in variables.items():
            origin = site.origins[f"{_ALTERNATIVES}.{source}"]
            yield Setting(site.name, name, value, False, origin)
