"""Apptainer: which options it needs on this machine, and the command line that runs a plan.

Facts behind the options: a root that lacks CAP_SYS_RESOURCE (a container's or a VM's root) is
refused by Apptainer unless that capability is dropped or a user namespace is made; unprivileged
Apptainer makes a user namespace *a rank*, and then no rank may look into another's memory.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fairlead.base.system import View
from fairlead.base.timeboxed import first, settings
from fairlead.engines.apptainer_conf import last, parse, places
from fairlead.engines.find import VARIABLE, find_apptainer, private_apptainer
from fairlead.engines.model import Call, Config, Driver, Engine, Words, prefix_of

CAP_SYS_RESOURCE = 24
# Each option of Apptainer's has a variable.
_APART = tuple(f"{p}_{o}" for p in ("APPTAINER", "SINGULARITY") for o in ("USERNS", "FAKEROOT"))
_YES = ("1", "t", "true")
_KEYS = (
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
# Options that part the ranks of a node.
_PARTING = MappingProxyType(
    {
        "--contain": "a private /dev/shm for each rank: the ranks would wait for each other and hang",
        "-c": "a private /dev/shm for each rank: the ranks would wait for each other and hang",
        "--containall": "a private /dev/shm, PID and IPC namespace for each rank",
        "-C": "a private /dev/shm, PID and IPC namespace for each rank",
        "--pid": "a PID namespace for each rank: the MPI cannot attach to its neighbours",
        "-p": "a PID namespace for each rank: the MPI cannot attach to its neighbours",
        "--ipc": "an IPC namespace for each rank: System V shared memory is not shared",
        "-i": "an IPC namespace for each rank: System V shared memory is not shared",
        "--cleanenv": "the launcher's variables do not reach the ranks: each would run alone",
        "-e": "the launcher's variables do not reach the ranks: each would run alone",
    }
)


class Apptainer(Driver):
    """Apptainer and SingularityCE."""

    kind = "apptainer"
    title = "Apptainer"
    programs = ("apptainer", "singularity")
    processes = ("starter", "apptainer", "singularity", "squashfuse", "fuse", "fusermount")
    userns_options = ("--fakeroot", "-f", "--userns", "-u")
    parting_options = _PARTING
    inside_variables = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
    inside_files = ("/.singularity.d",)

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        """Apptainer, for this user.

        Raises:
            FairleadError: exit code 2; a variable names something that cannot be executed.
        """
        path = find_apptainer(environ)
        return describe(path, os.geteuid(), _capabilities(), environ) if path else None

    def words(self, engine: Engine, call: Call) -> Words:
        """``apptainer exec``. Variables go by the environment, since ``--env A=1,b`` splits at commas."""
        # Quiet: a line of INFO a rank about optional helpers is no news, warnings still come through.
        words = [engine.path, "--quiet", "exec", *engine.options]
        for source, target, read_only in call.binds:
            words += ["--bind", f"{_bind(source)}:{_bind(target)}" + (":ro" if read_only else "")]
        if call.workdir:
            words += ["--pwd", call.workdir]
        return Words(
            (*words, *call.extra, call.image, *call.command),
            _environment(engine, call.env, call.literal),
        )

    def locate(self, view: View) -> str:
        named = view.environ.get(VARIABLE), str(private_apptainer(view.environ))
        return super().locate(view) or next((p for p in named if p and view.access(p, 1)), "")

    def setuid_files(self, view: View, real: str) -> tuple[str, ...] | None:
        prefix, name = prefix_of(real), real.rpartition("/")[2]
        starter = f"{prefix}/libexec/{name}/bin/starter-suid"
        return (starter, *view.matching(f"{prefix}/lib/*/{name}/bin/starter-suid"))

    def configuration(self, view: View, real: str) -> Config | None:
        prefix, name = prefix_of(real), real.rpartition("/")[2]
        names = dict.fromkeys((name, "apptainer", "singularity"))
        places = [
            f"{folder}/{n}/{n}.conf"
            for n in names
            for folder in (f"{prefix}/etc", "/etc", "/usr/local/etc")
        ]
        path = first(view, *places)
        if not path:
            return None
        text = view.read(path)
        if text is None:
            return Config(path, {"": "not readable"})
        found = settings(text, _KEYS)
        binds = re.findall(r"^\s*bind path\s*=\s*(\S+)", text, re.MULTILINE)
        if binds:
            found["bind path"] = ", ".join(binds)
        return Config(path, {k: v for k in _KEYS if (v := found.get(k)) not in (None, "", "NULL")})


ENGINE = Apptainer()


def describe(
    path: Path, uid: int, capabilities: int, environ: Mapping[str, str] = MappingProxyType({})
) -> Engine:
    """How the Apptainer at ``path`` must be called by ``uid`` with an effective capability set."""
    config, values = _configuration(path, environ)
    options: tuple[str, ...] = ()
    why = ""
    apart = False
    if uid == 0:
        if not capabilities >> CAP_SYS_RESOURCE & 1:
            options = ("--drop-caps", "CAP_SYS_RESOURCE")
            why = "this root lacks that capability, and Apptainer refuses to start when it asks for it"
    elif unheeded := _not_setuid(path, config, values):
        options, apart = ("--userns",), True
        why = f"{unheeded}, so a user namespace stands in for root"
    return Engine(
        "apptainer",
        str(path),
        # The variable stands in for an option that the user did not give.
        apart or any(environ.get(name, "").lower() in _YES for name in _APART),
        options,
        ((" ".join(options), why),) if why else (),
        config=config,
        forbids_binds="user bind control = no" if last(values, "user bind control") == "no" else "",
        hides=tuple(
            (folder, f"{key} = {value}")
            for folder, key in (("/dev/shm", "mount dev"), ("/tmp", "mount tmp"))
            if (value := last(values, key)) in ("no", "minimal")
        ),
    )


def _configuration(
    path: Path, environ: Mapping[str, str]
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Its file and what stands in it; neither where it cannot be read."""
    for place in places(str(path.resolve()), environ):
        with contextlib.suppress(OSError):
            return place, parse(Path(place).read_text("utf-8", "replace"))
    return "", {}


def _not_setuid(path: Path, config: str, values: dict[str, tuple[str, ...]]) -> str:
    """Why an ordinary user's containers have user namespaces; empty when they need none.

    Checked in advance, since a setuid Apptainer that may not use setuid creates them silently, or fails.
    """
    real = path.resolve()
    starters = [
        real.parent.parent / "libexec" / real.name / "bin" / "starter-suid",
        *real.parent.parent.glob("lib/*/apptainer/bin/starter-suid"),
    ]
    setuid = [
        s for s in starters if s.exists() and s.stat().st_mode & 0o4000 and not s.stat().st_uid
    ]
    if not setuid:
        return "this Apptainer is not setuid"
    if last(values, "allow setuid") == "no":
        return f"{config} says `allow setuid = no`"
    if os.statvfs(setuid[0]).f_flag & os.ST_NOSUID:
        return f"{setuid[0]} is setuid on a file system that is mounted nosuid"
    if re.search(r"^NoNewPrivs:\s*1", _status(), re.MULTILINE):
        return "no process may become root here (NoNewPrivs)"
    return ""


def _capabilities() -> int:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", _status(), re.MULTILINE)
    return int(found[1], 16) if found else 0


def _status() -> str:
    return Path("/proc/self/status").read_text()


def _bind(path: str) -> str:
    """A path inside a --bind, where a comma begins the next bind and a colon the next field."""
    return re.sub(r"([,:])", r"\\\1", path)


def _environment(
    engine: Engine, values: Mapping[str, str], literal: Mapping[str, str]
) -> dict[str, str]:
    """``values`` as the engine takes them.

    SingularityCE knows the old prefix only; Apptainer's own `singularity` is a link to Apptainer.
    """
    old = Path(engine.path).resolve().name == "singularity"
    prefix = "SINGULARITYENV_" if old else "APPTAINERENV_"
    found = {prefix + name: value for name, value in {**values, **literal}.items()}
    # Apptainer runs `export A="value"`; the user's own APPTAINERENV_ variables may rely on it.
    if any(set(value) & set('$`"\\') for value in literal.values()):
        found["SINGULARITY_NO_EVAL" if old else "APPTAINER_NO_EVAL"] = "1"
    return found
