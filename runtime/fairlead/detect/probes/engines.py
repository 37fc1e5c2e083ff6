"""The container engines, with what of their configuration decides how containers run here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.base.timeboxed import answers, clear, failed, first, settings, version
from fairlead.detect.model import EngineFact, Unknown
from fairlead.engines.find import private_apptainer

_APPTAINER_KEYS = (
    "allow setuid",
    "user bind control",
    "mount hostfs",
    "mount home",
    "mount tmp",
    "mount dev",
    "mount proc",
    "mount sys",
    "enable overlay",
    "enable underlay",
    "enable fusemount",
    "max loop devices",
    "sessiondir max size",
    "limit container owners",
    "limit container groups",
    "limit container paths",
    "allow container squashfs",
    "allow container sif",
    "allow container dir",
    "bind path",
    "root default capabilities",
    "always use nv",
    "always use rocm",
)


@dataclass(frozen=True)
class Config:
    """A configuration file and what of it matters."""

    path: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Asked:
    """How one engine is recognised.

    Attributes:
        programs: of which the first on PATH is it.
        words: what asks it for its version.
        config: finds its configuration; given the program's real path.
    """

    programs: tuple[str, ...]
    words: tuple[str, ...]
    config: Callable[[View, str], Config | None]


def probe(world: View) -> dict[str, Any]:
    paths: dict[str, str] = {}
    for kind, known in ENGINES.items():
        for name in known.programs:
            if path := world.which(name):
                paths[kind] = path
                break
    if "apptainer" not in paths:
        for path in filter(
            None, [world.environ.get("FAIRLEAD_APPTAINER"), str(private_apptainer(world.environ))]
        ):
            if world.access(path, 1):
                paths["apptainer"] = path
                break
    paths = {kind: paths[kind] for kind in ENGINES if kind in paths}
    # ch-run wants to know who it is for, even to say its version.
    user = () if world.environ.get("USER") else ("env", f"USER={world.user}")
    asked: dict[str, tuple[str, ...]] = {
        kind: (*(user if kind == "charliecloud" else ()), path, *ENGINES[kind].words)
        for kind, path in paths.items()
    }
    if srun := world.which("srun"):
        asked[""] = (srun, "--help")
    said = answers(world, asked)
    help_ = said.pop("", Ran((), 127))
    facts: list[EngineFact] = []
    unknown: list[Unknown] = []
    for kind, path in paths.items():
        fact = _fact(world, kind, path, said[kind])
        facts.append(fact)
        if not fact.version:
            ran = said[kind]
            why = failed(ran) if ran.returncode else f"`{' '.join(ran.argv)}` names none"
            unknown.append(Unknown(f"version of {kind}", why))
    facts += _of_slurm(world, help_)
    return {"engines": tuple(facts), "unknown": tuple(unknown)}


def _fact(world: View, kind: str, path: str, ran: Ran) -> EngineFact:
    real = world.real(path)
    config = ENGINES[kind].config(world, real)
    text = f"{ran.stdout}\n{ran.stderr}" if ran.returncode == 0 else ""
    seen = [
        f"`{' '.join([path.rpartition('/')[2], *ENGINES[kind].words])}`" if version(text) else path
    ]
    seen += [config.path] if config and config.path else []
    return EngineFact(
        kind=kind,
        version=version(text),
        path=path,
        setuid=_setuid(world, kind, real),
        settings=config.settings if config else {},
        config=config.path if config else "",
        seen=", ".join(seen),
    )


def _setuid(world: View, kind: str, real: str) -> bool | None:
    """Whether it starts as root: its program, or a helper of it, is root's and has the bit."""
    if kind in ("shifter", "sarus"):
        files = [real]
    elif kind == "apptainer":
        prefix, name = _prefix(real), real.rpartition("/")[2]
        files = [f"{prefix}/libexec/{name}/bin/starter-suid"]
        files += world.matching(f"{prefix}/lib/*/{name}/bin/starter-suid")
    else:
        return None
    found = [owner_mode for path in files if (owner_mode := world.owner_mode(path)) is not None]
    return any(owner == 0 and mode & 0o4000 for owner, mode in found)


def _prefix(real: str) -> str:
    return real.rsplit("/", 2)[0] if real.count("/") > 1 else ""


def _apptainer(world: View, real: str) -> Config | None:
    prefix, name = _prefix(real), real.rpartition("/")[2]
    names = dict.fromkeys((name, "apptainer", "singularity"))
    places = [
        f"{folder}/{n}/{n}.conf"
        for n in names
        for folder in (f"{prefix}/etc", "/etc", "/usr/local/etc")
    ]
    path = first(world, *places)
    if not path:
        return None
    text = world.read(path)
    if text is None:
        return Config(path, {"": "not readable"})
    found = settings(text, _APPTAINER_KEYS)
    binds = re.findall(r"^\s*bind path\s*=\s*(\S+)", text, re.MULTILINE)
    if binds:
        found["bind path"] = ", ".join(binds)
    return Config(
        path, {k: v for k in _APPTAINER_KEYS if (v := found.get(k)) not in (None, "", "NULL")}
    )


def _toml_or_ini(world: View, path: str, keys: Sequence[str]) -> dict[str, str]:
    return {k: clear(v) for k, v in settings(world.read(path) or "", keys).items() if v}


def _podman(world: View, real: str) -> Config | None:
    home = world.environ.get("XDG_CONFIG_HOME") or f"{world.environ.get('HOME', '')}/.config"
    found: dict[str, str] = {}
    used: list[str] = []
    # A user's own file hides storage.conf of the system; of containers.conf all that there are count.
    storage = first(
        world,
        *filter(None, [world.environ.get("CONTAINERS_STORAGE_CONF", "")]),
        *([f"{home}/containers/storage.conf"] if world.uid else []),
        "/etc/containers/storage.conf",
        "/usr/share/containers/storage.conf",
    )
    keys = (
        "driver",
        "graphroot",
        "rootless_storage_path",
        "additionalimagestores",
        "mount_program",
    )
    confs: list[tuple[str, Sequence[str]]] = [(storage, keys)] if storage else []
    own = world.environ.get("CONTAINERS_CONF", "")
    several = (
        [own]
        if own
        else [
            "/usr/share/containers/containers.conf",
            "/etc/containers/containers.conf",
            *world.matching("/etc/containers/containers.conf.d/*.conf"),
            f"{home}/containers/containers.conf",
        ]
    )
    more = (
        "runtime",
        "cgroups",
        "cgroup_manager",
        "hooks_dir",
        "default_ulimits",
        "netns",
        "ipcns",
        "pidns",
    )
    confs += [(path, more) for path in several if world.access(path, 0)]
    for path, wanted in confs:
        values = _toml_or_ini(world, path, wanted)
        if values or path == storage:
            used.append(path)
        found |= values
    return Config(", ".join(used), found) if used else None


def _podman_hpc(world: View, real: str) -> Config | None:
    path = first(
        world,
        *filter(None, [world.environ.get("PODMAN_HPC_CONFIG", "")]),
        "/etc/podman_hpc/podman_hpc.yaml",
        f"{_prefix(real)}/etc/podman_hpc/podman_hpc.yaml",
    )
    if not path:
        return None
    keys = (
        "podman_bin",
        "mount_program",
        "modules_dir",
        "shared_run",
        "shared_run_exec_args",
        "graph_root",
        "run_root",
        "squash_dir",
        "use_default_args",
    )
    found = {k: clear(v) for k, v in settings(world.read(path) or "", keys, ":").items() if v}
    folder = found.get("modules_dir", f"{path.rpartition('/')[0]}/modules.d")
    modules = [n.removesuffix(".yaml") for n in world.listdir(folder) if n.endswith(".yaml")]
    if modules:
        found["modules"] = ", ".join(modules)
    return Config(path, found)


_UDIROOT = (
    "/etc/shifter/udiRoot.conf",
    "/etc/udiRoot.conf",
    "/etc/opt/cray/shifter/udiRoot.conf",
    "/opt/shifter/default/etc/shifter/udiRoot.conf",
    "/opt/shifter/etc/shifter/udiRoot.conf",
)


def _shifter(world: View, real: str) -> Config | None:
    prefix = _prefix(real)
    path = first(
        world, f"{prefix}/etc/shifter/udiRoot.conf", f"{prefix}/etc/udiRoot.conf", *_UDIROOT
    )
    if not path:
        return None
    text = (world.read(path) or "").replace("\\\n", " ")
    keys = (
        "imagePath",
        "defaultModules",
        "siteFs",
        "system",
        "imageGateway",
        "allowLocalChroot",
        "siteEnv",
        "sitePreMountHook",
    )
    found = {k: clear(v) for k, v in settings(text, keys).items() if v}
    modules = dict.fromkeys(re.findall(r"^module_([^_\s]+)_\w+\s*=", text, re.MULTILINE))
    if modules:
        found["modules"] = ", ".join(modules)
    return Config(path, found)


def _sarus(world: View, real: str) -> Config | None:
    path = first(
        world,
        f"{_prefix(real)}/etc/sarus.json",
        "/opt/sarus/etc/sarus.json",
        "/etc/sarus/sarus.json",
        "/opt/sarus/default/etc/sarus.json",
    )
    if not path:
        return None
    try:
        data = json.loads(world.read(path) or "")
    except ValueError:
        return Config(path, {"": "not readable, or no JSON"})
    if not isinstance(data, dict):
        return Config(path, {"": "no JSON object"})
    keys = (
        "securityChecks",
        "OCIBundleDir",
        "rootfsFolder",
        "prefixDir",
        "hooksDir",
        "localRepositoryBaseDir",
        "centralizedRepositoryDir",
        "ramFilesystemType",
        "mksquashfsOptions",
    )
    found = {k: clear(str(data[k])) for k in keys if k in data}
    hooks = [
        n.removesuffix(".json")
        for n in world.listdir(str(data.get("hooksDir", "")))
        if n.endswith(".json")
    ]
    if hooks:
        found["hooks"] = ", ".join(hooks)
    return Config(path, found)


def _enroot(world: View, real: str) -> Config | None:
    path = first(world, "/etc/enroot/enroot.conf")
    if not path:
        return None
    keys = (
        "ENROOT_RUNTIME_PATH",
        "ENROOT_CACHE_PATH",
        "ENROOT_DATA_PATH",
        "ENROOT_SQUASH_OPTIONS",
        "ENROOT_MOUNT_HOME",
        "ENROOT_RESTRICT_DEV",
        "ENROOT_ROOTFS_WRITABLE",
    )
    found: dict[str, str] = {}
    for line in (world.read(path) or "").splitlines():
        key, _, value = line.strip().partition(" ")
        if key in keys:
            found[key] = value.strip()
    hooks = world.listdir("/etc/enroot/hooks.d")
    if hooks:
        found["hooks"] = ", ".join(hooks)
    return Config(path, found)


def _nothing(world: View, real: str) -> Config | None:
    return None


ENGINES: dict[str, Asked] = {
    "apptainer": Asked(("apptainer", "singularity"), ("--version",), _apptainer),
    "podman": Asked(("podman",), ("--version",), _podman),
    "charliecloud": Asked(("ch-run",), ("--version",), _nothing),
    "shifter": Asked(("shifter",), ("--version",), _shifter),
    "podman-hpc": Asked(("podman-hpc",), ("--version",), _podman_hpc),
    "sarus": Asked(("sarus",), ("--version",), _sarus),
    "enroot": Asked(("enroot",), ("version",), _enroot),
    "docker": Asked(("docker",), ("--version",), _nothing),
}
# Options that Slurm's plugins for containers add to srun.
_PLUGINS = (
    ("ce", "--environment", "Container Engine"),
    ("enroot", "--container-image", "pyxis"),
    ("shifter", "--image", "Shifter's plugin"),
)


def _of_slurm(world: View, help_: Ran) -> list[EngineFact]:
    """Engines that are seen by what they add to ``srun --help``, where their program is not on PATH."""
    text = help_.stdout + help_.stderr if help_.returncode == 0 else ""
    facts = []
    for kind, option, title in _PLUGINS:
        asked = ENGINES.get(kind)
        if not re.search(rf"^\s*{option}\b", text, re.MULTILINE):
            continue
        if asked and any(world.which(name) for name in asked.programs):
            continue
        found = {"srun": option}
        if kind == "ce":
            for variable in ("EDF_PATH", "EDF_SYSTEM_SEARCH_PATH"):
                if value := world.environ.get(variable):
                    found[variable] = value
        facts.append(
            EngineFact(
                kind, "", help_.argv[0], None, found, "", f"`srun --help`: {option}, {title}"
            )
        )
    return facts
