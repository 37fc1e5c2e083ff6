"""Shifter: lines of ``udiRoot.conf`` for a module with the host's MPI, and the script that stages it.

The file is read by a parser with sharp corners: an unknown key ends every Shifter on the node, an
unknown part of a module's key is ignored without a word, and so is the case of a letter. So every line
goes through :func:`conf`, which knows the keys.
Source: NERSC/shifter, src/UdiRootConfig.c (_assign, parse_ShifterModule_key), src/utility.c
(shifter_parseConfig), src/shifter_core.c (modules, siteFs, hooks).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from fairlead import __version__
from fairlead.export.model import ExportFile, Facts, Target, unfit
from fairlead.export.staged import Staged, lowest, stage_script, staged
from fairlead.swap.model import MOUNT

COPIED = "/opt/udiImage/modules"  # where Shifter puts what a module's copyPath names
BOUND = "/fairlead"  # a folder directly below the root: deeper ones need a hook
CONF = "/etc/shifter"
# Keys of the file. Others end Shifter: `Couldn't understand key`.
KEYS = frozenset((
    "allowLibcPwdCalls", "allowLocalChroot", "batchType", "chmodPath", "cpPath", "ddPath",
    "defaultImageType", "defaultModules", "etcPath", "gatewayTimeout", "imageGateway",
    "imagePath", "insmodPath", "loopMount", "maxGroupCount", "mkfsXfsPath", "modprobePath",
    "mountPropagationStyle", "mountUdiRootWritable", "mvPath", "optUdiImage",
    "perNodeCacheAllowedFsType", "perNodeCachePath", "perNodeCacheSizeLimit",
    "populateEtcDynamically", "rootfsType", "siteEnv", "siteEnvAppend", "siteEnvPrepend",
    "siteEnvUnset", "siteFs", "sitePostMountHook", "sitePreMountHook", "system", "udiMount",
    "udiRootPath", "usersToImport",
))  # fmt: skip
# What may follow `module_NAME_`. Another, or another case, is ignored.
MODULE_KEYS = frozenset((
    "conflict", "copyPath", "enabled", "roothook", "siteEnv", "siteEnvAppend", "siteEnvPrepend",
    "siteEnvUnset", "siteFs", "userhook",
))  # fmt: skip
# Programs that Shifter wants to exist before it starts, though it may never call them.
_TOOLS = ("modprobe", "insmod", "cp", "mv", "chmod", "dd")


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """The module's lines, the staging script, and a whole file for the first start of a Shifter."""
    name = facts.name or facts.label
    place = f"{COPIED}/{name}" if facts.form == "copy" else BOUND
    made = staged(facts, "shifter", place, binds_files=False, gpu=True)
    module = conf(_module(facts, made, name))
    hook = premount(facts)
    where = "run it as root on every node, or once where the folder is shared"
    given = [
        ExportFile(
            "module.conf", _head(facts, made, name) + module, "append it to udiRoot.conf, as root"
        ),
        stage_script(facts, made, f"module `{name}` of Shifter", where),
        ExportFile(
            "udiRoot.conf",
            _whole_head() + conf(_whole(facts, name, bool(hook))) + "\n" + module,
            "a whole file, to bring up a Shifter that has none: root's, not writable by others",
        ),
    ]
    if hook:
        goes = f"{CONF}/premount.sh, root's, not writable by others"
        given.append(ExportFile("premount.sh", hook, goes, 0o755))
    return tuple(given)


def conf(pairs: Iterable[tuple[str, str]]) -> str:
    """Lines of ``udiRoot.conf``.

    Raises:
        FairleadError: Shifter would misread one.
    """
    lines = []
    for key, value in pairs:
        if wrong := _wrong(key, value):
            raise unfit(f"{key}={value}"[:120], value, wrong, "udiRoot.conf")
        lines.append(f"{key}={value}\n")
    return "".join(lines)


def _wrong(key: str, value: str) -> str:
    """What Shifter would make of a line that it does not take as it is meant; empty when it does."""
    part = key
    if key.startswith("module_"):
        _, _, rest = key.partition("_")
        name, _, part = rest.rpartition("_")
        if not re.fullmatch(r"[A-Za-z0-9.-]+", name):
            return "the name of a module ends at the first `_`, and is one word"
        if part not in MODULE_KEYS:
            return f"modules have {', '.join(sorted(MODULE_KEYS))}; anything else is ignored"
    elif key not in KEYS:
        return "an unknown key ends every Shifter of the node"
    if not value or re.search(r"[\x00-\x1f\x7f]", value):
        return "a value is one line, and not empty"
    if value != value.strip() or value.endswith("\\"):
        return "blanks around it are taken away, and a backslash at its end joins the next line"
    return _wrong_value(part, value)


def _wrong_value(part: str, value: str) -> str:
    """The same of a value, by the last part of its key."""
    if part in ("siteEnvUnset", "conflict"):
        return ""
    if part.startswith("siteEnv"):
        bad = [word for word in value.split(" ") if "=" not in word]
        return f"blanks separate variables: `{bad[0]}` would be one of its own" if bad else ""
    if part == "siteFs" and not all(map(_is_mount, value.split(";"))):
        return "siteFs is FROM:TO[:FLAGS], joined by `;`, absolute and without blanks"
    if " " in value and part in ("copyPath", "imagePath", "etcPath"):
        return "blanks are not safe in a path of this file"
    return ""


def _is_mount(item: str) -> bool:
    source, _, target = item.partition(":")
    return " " not in item and source.startswith("/") and target.startswith("/")


def _module(facts: Facts, made: Staged, name: str) -> list[tuple[str, str]]:
    def key(part: str) -> str:
        return f"module_{name}_{part}"

    own = _variables(made.env, name)
    lines = []
    mounts = _site_mounts(facts.here.binds)
    if facts.form == "copy":
        lines.append((key("copyPath"), made.folder))
    else:
        mounts = [(made.folder, BOUND, ""), *mounts]
    if mounts:
        text = ";".join(":".join(filter(None, mount)) for mount in mounts)
        lines.append((key("siteFs"), text))
    lines.append((key("siteEnvPrepend"), f"LD_LIBRARY_PATH={':'.join(made.search)}"))
    # For `python3 -m fairlead.prove`: the module may be there, and what it should bring not.
    lines.append((key("siteEnv"), " ".join([f"FAIRLEAD_EXPECTS={made.library}", *own])))
    if made.gpu:
        # Alone it does nothing good: --module=mpich,mpich-gpu.
        lines.append((f"module_{name}-gpu_siteEnv", " ".join(_variables(made.gpu, f"{name}-gpu"))))
    return lines


def _variables(env: Mapping[str, str], name: str) -> list[str]:
    for variable, value in env.items():
        if not value or re.search(r"\s", value):
            why = "its lists of variables end at a blank, and it has no quotes"
            raise unfit(f"{variable}={value}", value, why, f"module `{name}` of Shifter")
    return [f"{variable}={value}" for variable, value in sorted(env.items())]


def _site_mounts(paths: Iterable[str]) -> list[tuple[str, str, str]]:
    """``siteFs`` binds folders only; /dev, /sys and /proc are the host's in any case."""
    shown = [p for p in paths if not p.startswith(("/dev/", "/sys/", "/proc/", f"{MOUNT}/"))]
    return [(path, path, "rec") for path in dict.fromkeys(shown)]


def premount(facts: Facts) -> str:
    """The hook that makes folders for mounts that lie deeper than one level; empty without any."""
    deep = [t for _, t, _ in _site_mounts(facts.here.binds) if len(PurePosixPath(t).parts) > 2]
    if not deep:
        return ""
    lines = [f"mkdir -p '{path.lstrip('/')}'" for path in deep]
    return (
        "#!/bin/sh\n# Folders for mounts of the site; Shifter makes one level by itself. It calls this "
        "as root,\n# where the container's root will be.\nset -eu\n" + "\n".join(lines) + "\n"
    )


def _head(facts: Facts, made: Staged, name: str) -> str:
    floor = lowest(facts)
    lines = [
        f"fairlead {__version__}: {made.plan.planned_title} of {facts.node}, as Shifter's module `{name}`.",
        "First run stage.sh. Append these lines to udiRoot.conf, exactly: Shifter silently ignores a",
        "misspelt key of a module, and an image then runs on its own MPI.",
        f"Use: shifter --module={name} --image=…; prove it: … shifter --module={name} --image=… python3 -m fairlead.prove",
    ]
    if made.gpu:
        use = f"--module={name},{name}-gpu, with the site's own for GPUs."
        lines.append(f"Messages from GPU to GPU: {use}")
    if floor:
        lines.append(f"An image must have {floor}; `fairlead preflight IMAGE` says which does.")
    lines += [f"Not on {facts.node}, though its profile names it: {p}" for p in facts.here.absent]
    return "".join(f"# {line}\n" for line in lines)


def _whole_head() -> str:
    return (
        "# A whole udiRoot.conf for the first start, written by fairlead. Shifter reads it where its\n"
        "# build says; it must be root's and writable by nobody else. The folders that it names must\n"
        "# be there. An unknown key ends Shifter.\n"
    )


def _whole(facts: Facts, name: str, hook: bool) -> list[tuple[str, str]]:
    # What a machine does not have (no kernel modules in a container) is still looked for.
    nothing = facts.tools.get("true", "/bin/true")
    tools = [(f"{tool}Path", facts.tools.get(tool, nothing)) for tool in _TOOLS]
    lines = [
        ("system", re.sub(r"[^A-Za-z0-9.-]", "-", facts.site.name)),
        ("udiMount", "/var/udiMount"),
        ("loopMount", "/var/udiLoop"),
        ("imagePath", "/var/shifter/images"),
        ("udiRootPath", "/usr"),
        ("etcPath", f"{CONF}/etc_files"),
        *tools,
        ("rootfsType", "tmpfs"),
        ("mountUdiRootWritable", "1"),
        ("maxGroupCount", "31"),
        ("defaultImageType", "docker"),
        ("allowLocalChroot", "0"),
        ("allowLibcPwdCalls", "1"),
        ("populateEtcDynamically", "0"),
        ("gatewayTimeout", "120"),
        ("imageGateway", "http://127.0.0.1:5000"),
        ("siteFs", "/home:/home"),
        ("defaultModules", name),
    ]
    if hook:
        lines.append(("sitePreMountHook", f"{CONF}/premount.sh"))
    return lines


EXPORT = Target("udiRoot.conf: a module with the host's MPI, and the script that stages it", files)
