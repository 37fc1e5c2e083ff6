"""What is done about NCCL's network in a launch: nothing, and why, or a plugin with its variables.

A pure function of facts. The rules of precedence: what the user sets stays; the variables that select the plugin come
before the image's, so that a miss is an error of NCCL and never TCP; then those of the site's profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.elf.facts import ImageFacts, NcclLibrary
from fairlead.elf.reader import version_key
from fairlead.nccl.choose import Chosen, choose, mapped
from fairlead.nccl.interfaces import may_tune, tuner_versions
from fairlead.nccl.model import MOUNT, Ask, HostNetwork
from fairlead.nccl.selection import (
    NET,
    OWN_NAME,
    PLUGIN,
    TUNER,
    has_selection,
    is_same_network,
    names_asked,
    names_of_network,
    takes_paths,
)

PROTO, LL128_OFF = "NCCL_PROTO", "^LL128"
_LL128_BROKEN_SINCE = (2, 27)
_INTERFACES = "NCCL_SOCKET_IFNAME"
FILE_FOLDER = f"{MOUNT}/lib"


@dataclass(frozen=True)
class Variable:
    """A variable of ranks, with the reason.

    Attributes:
        kept: the user's own value, which the plan does not change.
        instead: what the plan or the site would set.
    """

    name: str
    value: str
    why: str
    kept: bool = False
    instead: str = ""


@dataclass(frozen=True)
class Decision:
    """What is done about NCCL's network.

    Attributes:
        library: the NCCL that ranks map; None if the image has none.
        chosen: None if no plugin is brought.
        why: why one is brought, or none.
        networks: accepted names of ``Using network``.
        left_out: variables that are not set, each with the reason.
        by_name: a release of the image finds the plugin by its name, in a folder of LD_LIBRARY_PATH.
    """

    library: NcclLibrary | None
    chosen: Chosen | None
    why: str
    variables: tuple[Variable, ...] = ()
    networks: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    by_name: bool = False

    @property
    def env(self) -> dict[str, str]:
        """The variables, with values."""
        return {variable.name: variable.value for variable in self.variables}

    @property
    def host(self) -> HostNetwork | None:
        """The plugin that is brought."""
        return self.chosen.host if self.chosen else None


def decide(facts: ImageFacts, ask: Ask) -> Decision:
    """What is done about NCCL's network for an image."""
    library = mapped(facts)
    if library is None:
        return Decision(None, None, "the image has neither NCCL nor RCCL")
    if not ask.wanted:
        why = "--nccl image asks for it" if ask.want == "image" else "ranks get no GPUs"
        return Decision(library, None, why)
    if ask.host is None:
        return Decision(library, None, "nothing is known of that machine's plugins")
    chosen = choose(library, ask.host.networks)
    if chosen.host is None:
        return Decision(library, None, "no plugin was found on this host")
    if by_user := _users_own(library, ask, chosen.host):
        return Decision(library, None, by_user)
    by_name = not all(map(takes_paths, facts.nccl))
    variables = tuple(_variables(library, chosen.host, ask, by_name))
    why = f"{library.title} of the image uses it in place of TCP"
    networks = _networks(chosen.host, ask)
    left_out = tuple(_left_out(library, chosen.host, ask))
    return Decision(library, chosen, why, variables, networks, left_out, by_name)


def settings(decision: Decision, facts: ImageFacts, ask: Ask) -> dict[str, str]:
    """The variables as NCCL and libfabric see them in a rank."""
    return {**facts.nccl_conf, **ask.image, **ask.user, **decision.env}


def _users_own(library: NcclLibrary, ask: Ask, host: HostNetwork) -> str:
    """Why the user's own variables leave the host's plugin no part; empty if they do not."""
    plugin = ask.user.get(PLUGIN, "")
    if plugin and not _means(library, plugin, host):
        return f"{PLUGIN}={plugin} of yours names another plugin"
    network, names = ask.user.get(NET), names_of_network(host.plugin)
    if network and names and not any(is_same_network(network, name) for name in names):
        return f"{NET}={network} of yours asks for another network than {names[0]}"
    return ""


def _means(library: NcclLibrary, value: str, host: HostNetwork) -> bool:
    """Whether a value of NCCL_NET_PLUGIN, as a module sets it, is this plugin of the host."""
    if "/" in value:
        return value == host.named
    return any(name in host.names for name in names_asked(library, value))


def _networks(host: HostNetwork, ask: Ask) -> tuple[str, ...]:
    """Names that ``Using network`` may print; the user's own choice narrows them."""
    names = names_of_network(host.plugin)
    if network := ask.user.get(NET):
        return tuple(name for name in names if is_same_network(network, name)) or (network,)
    return tuple(dict.fromkeys((*names, *ask.rules.networks)))


def _variables(
    library: NcclLibrary, host: HostNetwork, ask: Ask, by_name: bool
) -> Iterator[Variable]:
    """Every variable that ranks get, in the order of the lines."""
    wanted = {**_selecting(library, host, ask, by_name), **_tuning(library, ask)}
    for name, (value, why) in wanted.items():
        if name in ask.user and (name == PLUGIN or (name == TUNER and _is_tuner(ask, host))):
            why = f"your own {name}={ask.user[name]}, as the container sees it"
            yield Variable(name, value, why)
        elif name in ask.user:
            yield Variable(name, ask.user[name], "your own, kept", kept=True, instead=value)
        else:
            yield Variable(name, value, why)
    for name, value in sorted(ask.user.items()):
        if name not in wanted:
            yield Variable(name, value, "your own", kept=True)


def _selecting(
    library: NcclLibrary, host: HostNetwork, ask: Ask, by_name: bool
) -> dict[str, tuple[str, str]]:
    """The variables that select the plugin: values and reasons by name."""
    wanted: dict[str, tuple[str, str]] = {}
    if has_selection(library):
        value = OWN_NAME if by_name else f"{FILE_FOLDER}/{staged_name(host)}"
        wanted[PLUGIN] = value, "NCCL opens this plugin, and no other"
    if host.tuner and may_tune(library, host.tuner):
        value = f"{FILE_FOLDER}/{tuner_name(host)}"
        wanted[TUNER] = value, "by this plugin NCCL chooses its algorithms for the network"
    if network := _net_value(library, host, ask):
        why = "without this network NCCL ends with an error, and never uses TCP"
        unknown = "" if ask.nodes else "; how many nodes there will be is not known"
        wanted[NET] = network, why + unknown
    return wanted


def _tuning(library: NcclLibrary, ask: Ask) -> dict[str, tuple[str, str]]:
    """The site's variables, and what keeps results right: values and reasons by name."""
    source = ask.rules.source
    wanted = {n: (v, source) for n, v in ask.rules.env.items() if n not in (NET, PLUGIN)}
    if ask.rules.interfaces:
        prefixes = ",".join(ask.rules.interfaces)
        wanted.setdefault(_INTERFACES, (prefixes, f"NCCL starts on these; {source}"))
    if ll128_is_broken(library, ask):
        why = "LL128 gives wrong sums on GH200 over Slingshot, silently (NVIDIA/nccl#2001)"
        wanted[PROTO] = LL128_OFF, why
    return wanted


def _is_tuner(ask: Ask, host: HostNetwork) -> bool:
    """Whether the user's NCCL_TUNER_PLUGIN, as a module sets it, is the tuner of this host."""
    return ask.user[TUNER].startswith("/") and ask.user[TUNER].endswith(f"/{tuner_name(host)}")


def _net_value(library: NcclLibrary, host: HostNetwork, ask: Ask) -> str:
    """The value of NCCL_NET; empty where it is not set: on one node the plugin may find no network to use."""
    if not has_selection(library) or (ask.nodes == 1 and not ask.rules.single_node):
        return ""
    names = names_of_network(host.plugin)
    for wish in (ask.rules.env.get(NET, ""), *ask.rules.networks):
        if wish and any(is_same_network(wish, name) for name in names):
            return wish
    return names[0] if names else ""


def _left_out(library: NcclLibrary, host: HostNetwork, ask: Ask) -> Iterator[tuple[str, str]]:
    """Variables that would select the plugin and are not set."""
    if not has_selection(library):
        yield NET, f"{library.title} does not know it: should the plugin fail, it uses TCP"
    elif ask.nodes == 1 and not ask.rules.single_node:
        yield NET, "the ranks are on one node, where the plugin need not find a network"
    elif not names_of_network(host.plugin):
        yield NET, "the plugin's file does not show the name of its network"
    if host.tuner and tuner_versions(library) and not may_tune(library, host.tuner):
        yield TUNER, f"{library.title} knows no version of the tuner's interface"


def staged_name(host: HostNetwork) -> str:
    """The name of the plugin's file in the staged folder."""
    return host.plugin.path.rpartition("/")[2]


def tuner_name(host: HostNetwork) -> str:
    """The name of the tuner's file in the staged folder; empty if there is none."""
    return host.tuner.path.rpartition("/")[2] if host.tuner else ""


def is_slingshot(ask: Ask) -> bool:
    """Whether nodes are connected by Slingshot, by profile or by device."""
    devices = ask.host.devices if ask.host else ()
    return ask.fabric == "slingshot" or any(path.startswith("/dev/cxi") for path in devices)


def is_gh200(library: NcclLibrary, ask: Ask) -> bool:
    """Whether the GPUs are GH200: NVIDIA's next to a processor of Arm, by its name or by the library's architecture."""
    model = ask.host.gpu_model if ask.host else ""
    if model:
        return "GH200" in model
    return library.kind == "nccl" and library.elf.machine == "AArch64"


def ll128_is_broken(library: NcclLibrary, ask: Ask) -> bool:
    """Whether sums may be wrong with the protocol LL128; source: NVIDIA/nccl#2001."""
    version = version_key(library.version)
    affected = library.kind == "nccl" and (not version or version >= _LL128_BROKEN_SINCE)
    return affected and is_gh200(library, ask) and is_slingshot(ask)
