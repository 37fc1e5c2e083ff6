"""Apptainer: which options it needs on this machine, and the command line that runs a plan.

Facts behind the options: a root that lacks CAP_SYS_RESOURCE (a container's or a VM's root) is
refused by Apptainer unless that capability is dropped or a user namespace is made; unprivileged
Apptainer makes a user namespace *a rank*, and then no rank may look into another's memory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from fairlead.base.paths import data_dir
from fairlead.base.system import View
from fairlead.base.timeboxed import first, settings
from fairlead.engines.model import Call, Config, Driver, Engine, Words, find_program, prefix_of
from fairlead.engines.rank_shell import BASH, KEEPER

CAP_SYS_RESOURCE = 24
_ORDINARY_UID = 1000  # any but root's
# Each option of Apptainer's has a variable.
_APART = tuple(f"{p}_{o}" for p in ("APPTAINER", "SINGULARITY") for o in ("USERNS", "FAKEROOT"))
_YES = ("1", "t", "true")
_NO = ("", "0", "f", "false")
# Options that part the ranks of a node.
_PARTING = {
    "--contain -c": "a private /dev/shm for each rank: the ranks would wait for each other and hang",
    "--containall -C": "a private /dev/shm, PID and IPC namespace for each rank",
    "--pid -p": "a PID namespace for each rank: the MPI cannot attach to its neighbours",
    "--ipc -i": "an IPC namespace for each rank: System V shared memory is not shared",
    "--cleanenv -e": "the launcher's variables do not reach the ranks: each would run alone",
}
# Options after which one container serves all ranks of a node, and variables after which it does not.
_OF_A_NODE = frozenset((
    "--bind", "-B", "--mount", "--nv", "--rocm", "--no-home", "--userns", "-u", "--underlay",
))  # fmt: skip
_OWN = tuple(
    f"{p}_{o}"
    for p in ("APPTAINER", "SINGULARITY")
    for o in (
        "WRITABLE_TMPFS", "OVERLAY", "OVERLAYIMAGE", "WRITABLE", "COMPAT", "FAKEROOT", "NVCCLI", "UNSQUASH",
        "MEMORY", "MEMORY_RESERVATION", "MEMORY_SWAP", "CPUS", "CPU_SHARES", "CPUSET_CPUS", "CPUSET_MEMS",
        "BLKIO_WEIGHT", "PIDS_LIMIT", "APPLY_CGROUPS",
    )
)  # fmt: skip
# With these, Apptainer makes a control group for a container that others can join, and moves what joins there: out of the
# job's. Source: CanUseCgroups of its internal/pkg/cgroups.
_KEPT = ("env", "-u", "DBUS_SESSION_BUS_ADDRESS", "-u", "XDG_RUNTIME_DIR")
_SYSTEMD = "/run/systemd/system"
# The image is to stay mounted for ranks that save. libfuse leaves signals alone that are ignored, and Go does not hand that
# down, so Apptainer finds these first on its PATH. One that it brings itself, next to its starter, ends.
_LASTING = r"""
run=$0
read -r host </proc/sys/kernel/hostname
for name in squashfuse_ll squashfuse fuse-overlayfs; do
  real=$(command -v "$name") && mkdir -p "$run/lasting.$host" || continue
  printf '#!/bin/sh\ntrap "" HUP INT TERM USR1 USR2\nexec "%s" "$@"\n' "$real" >"$run/lasting.$host/$name"
  chmod 700 "$run/lasting.$host/$name"
  "$run/lasting.$host/$name" </dev/null >/dev/null 2>&1
  [ $? -ne 126 ] || rm "$run/lasting.$host/$name" # a file system that starts no programs
done
PATH=$run/lasting.$host:$PATH exec "$@"
"""
# --sharens names the container after the process that starts Apptainer, and notes it below a folder that can be named.
_JOIN = KEEPER.strip() + "\n" + Path(__file__).with_name("apptainer_join.sh").read_text("utf-8")


class Apptainer(Driver):
    """Apptainer and SingularityCE."""

    kind = "apptainer"
    title = "Apptainer"
    programs = ("apptainer", "singularity")
    variable = "FAIRLEAD_APPTAINER"
    processes = (
        "starter",
        "appinit",
        "apptainer",
        "singularity",
        "squashfuse",
        "fuse",
        "fusermount",
    )
    userns_options = ("--fakeroot", "-f", "--userns", "-u")
    parting_options = MappingProxyType(
        {option: why for options, why in _PARTING.items() for option in options.split()}
    )
    no_overlay = "--underlay"
    needed = "/dev/shm/sharens_instance_"
    inside_variables = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
    inside_files = ("/.singularity.d",)
    config_keys = (
        "allow setuid", "user bind control", "mount hostfs", "mount home", "mount tmp", "mount dev",
        "mount proc", "mount sys", "enable overlay", "enable underlay", "enable fusemount",
        "max loop devices", "sessiondir max size", "limit container owners", "limit container groups",
        "limit container paths", "allow container squashfs", "allow container sif", "allow container dir",
        "bind path", "root default capabilities", "always use nv", "always use rocm",
    )  # fmt: skip

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        path = find_apptainer(environ)
        return describe(path, os.geteuid(), _capabilities(), environ) if path else None

    def ordinary(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        path = find_apptainer(environ)
        theirs = {name: value for name, value in environ.items() if name not in _APART}
        return describe(path, _ORDINARY_UID, 0, theirs) if path else None

    def words(self, engine: Engine, call: Call) -> Words:
        """``apptainer exec``. Variables go by the environment, since ``--env A=1,b`` splits at commas."""
        # Quiet: a line of INFO a rank about optional helpers is noise; warnings still come through.
        words = [engine.path, "--quiet", "exec", *engine.options]
        for source, target, read_only in call.binds:
            words += ["--bind", f"{_bind(source)}:{_bind(target)}" + (":ro" if read_only else "")]
        if call.workdir:
            words += ["--pwd", call.workdir]
        return Words(
            (*words, *call.extra, call.image, *call.command),
            _environment(engine, call.env, call.literal),
        )

    def can_join(self, engine: Engine, extra: Sequence[str], environ: Mapping[str, str]) -> bool:
        """Since Apptainer 1.3, by its ``--sharens``; a layer to write to is for one rank."""
        theirs, ours = (
            {word.partition("=")[0] for word in words if word.startswith("-")}
            for words in (extra, engine.options)
        )
        options = theirs | (ours - {"--drop-caps"})  # of what joins, as its user has them
        own = any(environ.get(name, "").lower() not in _NO for name in _OWN)
        if own or not options <= _OF_A_NODE or (os.geteuid() == 0 and _groups_of_root(engine)):
            return False
        return _version(engine.path) >= (1, 3)

    def kept(self, engine: Engine, call: Call, run: str) -> Words:
        words = self.words(engine, replace(call, extra=("--sharens", *call.extra)))
        lasting = ("/bin/sh", "-c", _LASTING.strip(), run)
        own = (*_KEPT, f"APPTAINER_CONFIGDIR={run}/apptainer")
        return replace(words, argv=(*lasting, *own, *words.argv))

    def joining(self, engine: Engine, call: Call, run: str) -> Words:
        words = (*BASH, _JOIN, "fairlead-join", run, engine.path, call.workdir)
        environ = _environment(engine, call.env, call.literal)
        return Words((*words, *call.command), environ)

    def locate(self, view: View) -> str:
        named = view.environ.get(self.variable), str(private_apptainer(view.environ))
        return super().locate(view) or next((p for p in named if p and view.access(p, 1)), "")

    def setuid_files(self, view: View, real: str) -> tuple[str, ...] | None:
        prefix, name = prefix_of(real), real.rpartition("/")[2]
        starter = f"{prefix}/libexec/{name}/bin/starter-suid"
        return (starter, *view.matching(f"{prefix}/lib/*/{name}/bin/starter-suid"))

    def configuration(self, view: View, real: str) -> Config | None:
        names = dict.fromkeys((real.rpartition("/")[2], "apptainer", "singularity"))
        folders = (f"{prefix_of(real)}/etc", "/etc", "/usr/local/etc")
        path = first(view, *(f"{folder}/{n}/{n}.conf" for n in names for folder in folders))
        if not path:
            return None
        text = view.read(path)
        if text is None:
            return Config(path, {"": "not readable"})
        values = settings(text, self.config_keys)
        if binds := re.findall(r"^\s*bind path\s*=\s*(\S+)", text, re.MULTILINE):
            values["bind path"] = ", ".join(binds)
        known = ((key, values.get(key)) for key in self.config_keys)
        return Config(path, {key: value for key, value in known if value and value != "NULL"})


ENGINE = Apptainer()


def private_apptainer(environ: Mapping[str, str] = os.environ) -> Path:
    """The program of fairlead's own Apptainer; ``current`` points at a whole installation.

    :mod:`fairlead.doctor.install.apptainer` creates it if the distribution has no Apptainer.
    """
    return data_dir(environ) / "apptainer" / "current" / "bin" / "apptainer"


def find_apptainer(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The Apptainer (or Singularity) program to use; None when there is none.

    Order: ``$FAIRLEAD_APPTAINER``, ``apptainer`` then ``singularity`` on PATH, the private prefix.

    Raises:
        FairleadError: exit code 2; the variable names something that cannot be executed.
    """
    called = "an apptainer executable"
    private = private_apptainer(environ)
    path = find_program(Apptainer.variable, Apptainer.programs, environ, called)
    return path or (private if os.access(private, os.X_OK) else None)


def conf_places(program: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where the configuration of an Apptainer or SingularityCE may be: below its prefix, or /etc.

    Args:
        program: its path, links resolved.
        environ: may name another file.
    """
    for variable in ("APPTAINER_CONFIG_FILE", "SINGULARITY_CONFIG_FILE"):
        if named := environ.get(variable):
            return (named,)
    prefix = str(Path(program).parent.parent)
    etc = "/etc" if prefix == "/usr" else f"{prefix}/etc"
    return tuple(f"{etc}/{name}/{name}.conf" for name in ("apptainer", "singularity"))


def parse_conf(text: str) -> dict[str, tuple[str, ...]]:
    """``key = value`` lines of an apptainer.conf; a key may come again."""
    values: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("#")[0].partition("=")
        if equals:
            name = " ".join(key.split()).lower()
            values[name] = (*values.get(name, ()), value.strip())
    return values


def last_value(values: Mapping[str, tuple[str, ...]], key: str) -> str:
    """The effective value of a key, in lower case; empty when it is not there."""
    return values.get(key, ("",))[-1].lower()


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
    bind_control = last_value(values, "user bind control")
    folders = last_value(values, "allow container dir")
    mounts = (("/dev/shm", "mount dev"), ("/tmp", "mount tmp"))
    return Engine(
        "apptainer",
        str(path),
        # The variable stands in for an option that the user did not give.
        apart or any(environ.get(name, "").lower() in _YES for name in _APART),
        options,
        ((" ".join(options), why),) if why else (),
        config=config,
        forbids_binds="user bind control = no" if bind_control == "no" else "",
        forbids_folders="allow container dir = no" if folders == "no" else "",
        hides=tuple(
            (folder, f"{key} = {value}")
            for folder, key in mounts
            if (value := last_value(values, key)) in ("no", "minimal")
        ),
        shows=_shows(values),
    )


def _shows(values: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What its configuration binds at the same place; all of the machine where that cannot be read."""
    if not values or last_value(values, "mount hostfs") == "yes":
        return ("/",)
    bound = (entry.split(":") for entry in values.get("bind path", ()))
    return tuple(source for source, *target in bound if target[:1] in ([], [source]))


def _configuration(
    path: Path, environ: Mapping[str, str]
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Its file and what stands in it; neither where it cannot be read."""
    for place in conf_places(str(path.resolve()), environ):
        with contextlib.suppress(OSError):
            return place, parse_conf(Path(place).read_text("utf-8", "replace"))
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
    if last_value(values, "allow setuid") == "no":
        return f"{config} says `allow setuid = no`"
    if os.statvfs(setuid[0]).f_flag & os.ST_NOSUID:
        return f"{setuid[0]} is setuid on a file system that is mounted nosuid"
    if re.search(r"^NoNewPrivs:\s*1", _status(), re.MULTILINE):
        return "no process may become root here (NoNewPrivs)"
    return ""


def _groups_of_root(engine: Engine) -> bool:
    """Whether root's containers that can be joined get a control group, which nothing prevents."""
    _, values = _configuration(Path(engine.path), {})
    return Path(_SYSTEMD).is_dir() or last_value(values, "systemd cgroups") == "no"


@functools.cache
def _version(path: str) -> tuple[int, ...]:
    """Of Apptainer; empty for SingularityCE, and where the program does not say."""
    text = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        text = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=False, timeout=10
        ).stdout
    match = re.match(r"apptainer version (\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else ()


def _capabilities() -> int:
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", _status(), re.MULTILINE)
    return int(match[1], 16) if match else 0


def _status() -> str:
    return Path("/proc/self/status").read_text("utf-8")


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
    variables = {prefix + name: value for name, value in {**values, **literal}.items()}
    # Apptainer runs `export A="value"`; the user's own APPTAINERENV_ variables may rely on it.
    if any(set(value) & set('$`"\\') for value in literal.values()):
        variables["SINGULARITY_NO_EVAL" if old else "APPTAINER_NO_EVAL"] = "1"
    return variables
