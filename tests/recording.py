"""A machine's answers in one file, so that it can be asked where one is not on it.

``python3 -m tests.recording > NAME.toml`` records the machine that it runs on: every file, folder,
link and program that the probes and the profiles look at. :class:`Played` answers from such a file.
``tests/recorded/sites/NAME.toml`` are of this kind; some are written by hand, from what is public of a
machine, and say so.
"""

from __future__ import annotations

import fnmatch
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from fairlead.base.process import Ran
from fairlead.base.serde import from_json, to_json
from fairlead.detect.machine import MpiMachine
from fairlead.detect.probes.nccl import fact as plugin_fact
from fairlead.elf.facts import AbiFamily, Elf, MpiLibrary
from fairlead.launchers.model import Launcher
from fairlead.mpi.host import HostMpi
from fairlead.nccl import model as nccl
from fairlead.nccl.model import HostNccl, HostNetwork


@dataclass(frozen=True)
class Program:
    """What a program says. One that is not listed is not found: code 127."""

    argv: str
    code: int = 0
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class Mpi:
    """An MPI, by what detection tells of it."""

    vendor: str
    version: str
    family: str
    level: str
    soname: str
    prefix: str
    path: str
    found_by: str
    launcher: str = ""
    launcher_family: str = "unknown"
    launcher_title: str = ""
    closure: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    below: str = ""  # found only when this folder is asked for, not by itself


@dataclass(frozen=True)
class NetPlugin:
    """A network plugin of NCCL, by what detection tells of it."""

    path: str
    found_by: str
    release: str = ""
    name: str = ""
    runtime: str = ""
    interfaces: tuple[int, ...] = ()
    tuner: tuple[int, ...] = ()
    libfabric: str = ""
    providers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recording:
    """What is known of a machine.

    Attributes:
        about: which machine, when.
        sources: what is from where.
        made_up: what nobody has said of it.
        files: their texts.
        present: devices, folders, libraries: what is there, without content.
        closed: what is there and may not be read.
        links: where links lead.
        modes: of root's files whose permissions matter, as octal digits.
        programs: paths of what is on PATH, by name.
        free: bytes, by folder.
    """

    about: str
    hostname: str
    uid: int
    user: str
    kernel: str
    machine: str
    cores: int
    sources: tuple[str, ...] = ()
    made_up: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    present: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)
    run: tuple[Program, ...] = ()
    mpi: tuple[Mpi, ...] = ()
    net_plugin: tuple[NetPlugin, ...] = ()


class Played:
    """A recorded machine: the view of a file."""

    def __init__(self, recording: Recording):
        self.recording = recording
        self.uid, self.user = recording.uid, recording.user
        self.environ = recording.environ
        self.hostname = recording.hostname
        self.kernel = (recording.kernel, recording.machine)
        named = (*recording.files, *recording.present, *recording.closed, *recording.modes)
        leaves = {*named, *recording.links, *recording.programs.values()}
        self._paths = {
            str(p) for leaf in leaves for p in (PurePosixPath(leaf), *PurePosixPath(leaf).parents)
        }

    def real(self, path: str) -> str:
        for _ in range(20):
            for link, target in self.recording.links.items():
                if path == link or path.startswith(link + "/"):
                    rest = path[len(link) :]
                    path = os.path.normpath(PurePosixPath(link).parent / target) + rest
                    break
            else:
                return path
        return path

    def read(self, path: str) -> str | None:
        return self.recording.files.get(self.real(path))

    def access(self, path: str, mode: int) -> bool:
        real = self.real(path)
        return real in self._paths and not (mode & os.R_OK and real in self.recording.closed)

    def which(self, program: str) -> str | None:
        return self.recording.programs.get(program)

    def free_bytes(self, folder: str) -> int:
        return self.recording.free.get(folder, 0)

    def ask(self, argv: Sequence[str], timeout_s: float = 2.0) -> Ran:
        shown = " ".join(argv)
        names = {path: name for name, path in self.recording.programs.items()}
        short = " ".join((names.get(argv[0], argv[0]), *argv[1:]))
        for program in self.recording.run:
            if program.argv in (shown, short):
                return Ran(tuple(argv), program.code, program.stdout, program.stderr)
        return Ran(tuple(argv), 127, stderr=f"{argv[0]}: not recorded")

    def host_mpis(self) -> tuple[HostMpi, ...]:
        return tuple(_host_mpi(mpi) for mpi in self.recording.mpi if not mpi.below)

    def net_plugins(self) -> HostNccl:
        return HostNccl(tuple(map(_network, self.recording.net_plugin)))

    def mpis_below(self, prefix: str, reason: str) -> tuple[HostMpi, ...]:
        real = self.real(prefix.rstrip("/"))
        return tuple(_host_mpi(m) for m in self.recording.mpi if real in (m.below, m.prefix))

    def matching(self, pattern: str) -> tuple[str, ...]:
        """As the file system would: links on the way are followed, and found under their own names."""
        found = {"/"}
        for part in PurePosixPath(pattern).parts[1:]:
            found = {
                f"{folder.rstrip('/')}/{name}"
                for folder in found
                for name in self._names(folder)
                if fnmatch.fnmatchcase(name, part) and (part[0] == "." or name[0] != ".")
            }
        return tuple(sorted(path for path in found if self.access(path, os.F_OK)))

    def _names(self, folder: str) -> set[str]:
        above = self.real(folder).rstrip("/") + "/"
        return {
            path[len(above) :].split("/")[0]
            for path in self._paths
            if path.startswith(above) and path != above
        }

    def listdir(self, folder: str) -> tuple[str, ...]:
        return tuple(sorted(self._names(folder)))

    def owner_mode(self, path: str) -> tuple[int, int] | None:
        real = self.real(path)
        if real not in self._paths:
            return None
        return 0, int(self.recording.modes.get(real, "755"), 8)

    def cores(self) -> int:
        return self.recording.cores


def _network(found: NetPlugin) -> HostNetwork:
    elf = Elf(found.path, "x64", found.path.rpartition("/")[2])
    plugin = nccl.NetPlugin(
        found.path, elf.soname, {"net": found.interfaces}, found.name, found.release, found.runtime, (), elf
    )  # fmt: skip
    tuner = replace(plugin, interfaces={"tuner": found.tuner}) if found.tuner else None
    behind = (Elf(found.libfabric, "x64", "libfabric.so.1"),) if found.libfabric else ()
    missing = tuple((name, found.path) for name in found.missing)
    return HostNetwork(plugin, behind, missing, found.providers, found.found_by, tuner=tuner)


def _host_mpi(mpi: Mpi) -> HostMpi:
    family = AbiFamily(mpi.family)
    library = MpiLibrary(
        Elf(mpi.path, "x64", mpi.soname), family, mpi.vendor, mpi.version, mpi.level
    )
    launcher = (
        Launcher(mpi.launcher, AbiFamily(mpi.launcher_family), mpi.launcher_title)
        if mpi.launcher
        else None
    )
    return HostMpi(
        library=library,
        prefix=mpi.prefix,
        closure=tuple(Elf(path, "x64", soname) for soname, path in mpi.closure.items()),
        companions=(),
        plugins=(),
        data=(),
        missing=tuple((name, mpi.path) for name in mpi.missing),
        launcher=launcher,
        found_by=mpi.found_by,
    )


def read(path: Path) -> Recording:
    """The recording in a file.

    Raises:
        ValueError: it is not a recording; the message names the field.
        OSError: it cannot be read.
    """
    return from_json(Recording, tomllib.loads(path.read_text()))


class Recorder(MpiMachine):
    """The machine we are on, writing down what it is asked."""

    def __init__(self, environ: Mapping[str, str] = os.environ, root: Path = Path("/")):
        super().__init__(environ, root, patience_s=2.0)
        self.files: dict[str, str] = {}
        self.present: set[str] = set()
        self.closed: set[str] = set()
        self.links: dict[str, str] = {}
        self.modes: dict[str, str] = {}
        self.programs: dict[str, str] = {}
        self.free: dict[str, int] = {}
        self.ran: dict[str, Program] = {}
        self.mpis: dict[str, Mpi] = {}
        self.plugins: dict[str, NetPlugin] = {}

    def _there(self, path: str) -> None:
        self.present.add(path)
        real = super().real(path)
        if real != path and not path.startswith("/proc/"):  # self is another process each time
            self.links[path] = real
            self.present.add(real)

    def read(self, path: str) -> str | None:
        text = super().read(path)
        if text is not None:
            self._there(path)
            self.files[path if path.startswith("/proc/") else super().real(path)] = text
        return text

    def access(self, path: str, mode: int) -> bool:
        there = super().access(path, os.F_OK)
        allowed = super().access(path, mode)
        if there:
            self._there(path)
            if not allowed:
                self.closed.add(path)
        return allowed

    def which(self, program: str) -> str | None:
        path = super().which(program)
        if path:
            self.programs[program] = path
            self._there(path)
        return path

    def matching(self, pattern: str) -> tuple[str, ...]:
        found = super().matching(pattern)
        self.present.update(found)
        return found

    def listdir(self, folder: str) -> tuple[str, ...]:
        names = super().listdir(folder)
        self.present.update(f"{folder}/{name}" for name in names)
        return names

    def real(self, path: str) -> str:
        self._there(path)
        return super().real(path)

    def owner_mode(self, path: str) -> tuple[int, int] | None:
        found = super().owner_mode(path)
        if found is not None:
            self._there(path)
            self.modes[super().real(path)] = f"{found[1]:o}"
        return found

    def free_bytes(self, folder: str) -> int:
        self.free[folder] = super().free_bytes(folder)
        return self.free[folder]

    def ask(self, argv: Sequence[str], timeout_s: float = 2.0) -> Ran:
        ran = super().ask(argv, timeout_s)
        shown = " ".join(argv)
        if ran.returncode != 127:
            self.ran[shown] = Program(shown, ran.returncode, ran.stdout, ran.stderr)
        return ran

    def host_mpis(self) -> tuple[HostMpi, ...]:
        return self._kept(super().host_mpis(), "")

    def net_plugins(self) -> HostNccl:
        found = super().net_plugins()
        for one in map(plugin_fact, found.networks):
            self.plugins[one.path] = NetPlugin(
                one.path, one.seen.removeprefix(f"{one.path}, "), one.title.removeprefix("aws-ofi-nccl "),
                one.network, one.runtime, one.interfaces, one.tuner, one.libfabric, one.providers, one.missing,
            )  # fmt: skip
        return found

    def mpis_below(self, prefix: str, reason: str) -> tuple[HostMpi, ...]:
        return self._kept(super().mpis_below(prefix, reason), super().real(prefix))

    def _kept(self, mpis: tuple[HostMpi, ...], below: str) -> tuple[HostMpi, ...]:
        for mpi in mpis:
            library = mpi.library
            made = Mpi(
                library.vendor, library.version, library.family.value, library.level,
                library.soname, mpi.prefix, library.path, mpi.found_by,
                mpi.launcher.path if mpi.launcher else "",
                mpi.launcher.family.value if mpi.launcher else "unknown",
                mpi.launcher.title if mpi.launcher else "",
                {e.soname: e.path for e in mpi.closure if e.soname},
                tuple(name for name, _ in mpi.missing),
                below,
            )  # fmt: skip
            self.mpis.setdefault(library.path, made)
        return mpis

    def recording(self, about: str, variables: Sequence[str]) -> Recording:
        """What was asked so far.

        Args:
            variables: names of those that may be told; a person's environment is their own.
        """
        release, machine = self.kernel
        return Recording(
            about=about,
            hostname=self.hostname,
            uid=self.uid,
            user=self.user,
            kernel=release,
            machine=machine,
            cores=super().cores(),
            sources=("recorded on the machine itself",),
            environ={k: v for k, v in sorted(self.environ.items()) if k in variables},
            files=dict(sorted(self.files.items())),
            present=tuple(sorted(self.present - set(self.files) - set(self.links))),
            closed=tuple(sorted(self.closed)),
            links=dict(sorted(self.links.items())),
            modes=dict(sorted(self.modes.items())),
            programs=dict(sorted(self.programs.items())),
            free=dict(sorted(self.free.items())),
            run=tuple(self.ran[key] for key in sorted(self.ran)),
            mpi=tuple(self.mpis.values()),
            net_plugin=tuple(self.plugins.values()),
        )


def dumps(recording: Recording) -> str:
    """A recording as TOML."""
    import tomlkit

    document = tomlkit.document()
    for key, value in to_json(recording).items():
        if key == "run":
            value = tomlkit.aot()
            for program in recording.run:
                table = tomlkit.table()
                for name, text in to_json(program).items():
                    if text not in ("", 0):
                        table[name] = _text(text)
                value.append(table)
        elif key == "files":
            value = {path: _text(text) for path, text in value.items()}
        if value not in ([], {}, ""):
            document[key] = value
    return tomlkit.dumps(document)


def _text(value: object) -> object:
    import tomlkit

    if not isinstance(value, str) or "\n" not in value:
        return value
    return tomlkit.string(value, multiline=True)


# Variables that distinguish machines, in addition to those that profiles name.
_VARIABLES = ("SLURM_CLUSTER_NAME", "LMOD_SYSTEM_NAME", "NERSC_HOST", "SLURM_JOB_ID", "PBS_JOBID",
              "COBALT_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "SLURM_CONF", "SCRATCH", "PSCRATCH",
              "CRAYPE_NETWORK_TARGET", "CRAY_MPICH_DIR", "MPICH_DIR", "TMPDIR")  # fmt: skip


def record(environ: Mapping[str, str] = os.environ) -> Recording:
    """This machine, by all that detection asks of it."""
    from fairlead.detect.gather import gather
    from fairlead.site import all_sites
    from fairlead.site.match import match

    recorder = Recorder(environ)
    gather(recorder, limit_s=10)
    match(recorder, all_sites(environ).sites)
    named = {name for site in all_sites(environ).sites.values() for name in site.detect.environ}
    return recorder.recording(f"recorded on {recorder.hostname}", (*_VARIABLES, *sorted(named)))


if __name__ == "__main__":
    print(dumps(record()), end="")
