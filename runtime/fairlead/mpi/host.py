"""The host's MPI: where it is, what it needs, and which launcher starts its ranks.

A :class:`HostMpi` contains only facts: the library, its dependencies (the *closure*, resolved as the
host's loader resolves it), the plugins that it opens at run time, and its launcher.
:mod:`fairlead.swap.plan` decides which of these go into a container.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.exposure import open_to_others
from fairlead.base.paths import atomic_write, cache_dir, data_dir
from fairlead.base.serde import from_json, to_json
from fairlead.elf import reader as elf_file
from fairlead.elf.facts import AbiFamily, Elf, MpiLibrary
from fairlead.elf.loader import Loader, system_folders
from fairlead.elf.mpi_symbols import GLIBC_PIECES, RUNTIME_PIECES, is_binding, read_mpi
from fairlead.elf.reader import NotElf, version_key
from fairlead.launchers.identify import identify
from fairlead.launchers.model import Launcher
from fairlead.site.model import Site
from fairlead.site.resolved_paths import matches


@dataclass(frozen=True)
class Plugins:
    """Modules that a library opens at run time; NEEDED does not list them.

    Attributes:
        variable: the variable that names their folder.
        folder: their folder on the host.
        files: their paths on the host.
    """

    variable: str
    folder: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Places:
    """Places with libraries of the MPI that the loader does not search on its own.

    Attributes:
        folders: searched last.
        files: libraries that the MPI opens by name.
        gpu: libraries for messages from GPU to GPU.
    """

    folders: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    gpu: tuple[Path, ...] = ()


NOWHERE_ELSE = Places()


def places_of(site: Site | None, environ: Mapping[str, str], root: Path = Path("/")) -> Places:
    """The places that a profile names for its MPI's dependencies, as far as they exist on this machine."""
    if site is None:
        return NOWHERE_ELSE

    def real(*patterns: str) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(p.resolve() for p in matches(patterns, environ, root)))

    return Places(
        tuple(matches(site.dependencies.folders, environ, root)),
        real(*site.dependencies.files),
        real(site.gpu.transport) if site.gpu.transport else (),
    )


@dataclass(frozen=True)
class HostMpi:
    """An MPI of this host, with everything that a run needs of it.

    Attributes:
        prefix: its installation prefix.
        closure: dependencies of the library, without itself and glibc; real paths on the host.
        companions: its Fortran and C++ bindings.
        data: folders that the library reads, relative to the prefix (Intel MPI's tuning tables).
        missing: ``(library, needed by)`` for each dependency that the host's loader does not find.
        found_by: why discovery considered it, for ``explain``.
        glibc: the files of the C library that it runs on, including the loader.
        root: root folder of the host's file system; not ``/`` if that system is mounted elsewhere.
        shared_folder: it is in a system library folder, together with unrelated libraries.
        optional: dependencies of its modules; the MPI skips a module whose dependencies are missing.
        symbols: what the library, its companions and its closure define beyond the MPI standard, by path; of
            the closure only files without symbol versions. Empty in facts of older versions: unknown.
        gpu_transport: libraries that carry messages from GPU to GPU; Cray MPICH needs one preloaded
            if MPICH_GPU_SUPPORT_ENABLED=1. Excludes the GPU libraries that these need.
    """

    library: MpiLibrary
    prefix: str
    closure: tuple[Elf, ...]
    companions: tuple[Elf, ...]
    plugins: tuple[Plugins, ...]
    data: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]
    launcher: Launcher | None
    found_by: str
    glibc: tuple[Elf, ...] = ()
    root: str = "/"
    shared_folder: bool = False
    gpu_transport: tuple[Elf, ...] = ()
    optional: tuple[Elf, ...] = ()
    symbols: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[Elf, ...]:
        """Every ELF file to stage."""
        return (self.library.elf, *self.closure, *self.companions)


def discover(
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    site: Site | None = None,
    patience_s: float = 10.0,
) -> tuple[HostMpi, ...]:
    """Finds every MPI on this host, in order of preference.

    The order is: ``$FAIRLEAD_MPI``; the folders that the site's profile names; MPIs that ``fairlead
    doctor --fix`` installed; the prefix of each ``mpiexec`` on PATH; the system's library folders. Each
    library is listed once.

    Args:
        patience_s: seconds that a launcher may take to print its version. One of another user, in a place that a
            strange profile names, is not started.
    Raises:
        FairleadError: exit code 2; ``$FAIRLEAD_MPI`` names no MPI. Using another would be a surprise.
    """
    mpis: dict[str, HostMpi] = {}
    if named := environ.get("FAIRLEAD_MPI"):
        from_prefix(Path(named), environ, "FAIRLEAD_MPI", site)
    places = places_of(site, environ, root)
    for prefix, reason in _prefixes(environ, root, site):
        strange = site is not None and site.strange and reason == _by_profile(site)
        patience = 0.0 if strange and _of_another_user(prefix) else patience_s
        for mpi in in_prefix(prefix, reason, environ, places, patience):
            mpis.setdefault(mpi.library.path, mpi)
    return tuple(mpis.values())


def from_prefix(
    prefix: Path,
    environ: Mapping[str, str] = os.environ,
    by: str = "--mpi",
    site: Site | None = None,
) -> tuple[HostMpi, ...]:
    """The MPIs below a ``prefix`` given by ``--mpi PREFIX`` or a variable; at least one.

    One MPI may have two binary interfaces: MPICH 5 has libmpi.so.12 and libmpi_abi.so.1.

    Raises:
        FairleadError: exit code 2; the prefix contains no MPI.
    """
    mpi = in_prefix(prefix.absolute(), f"named by {by} {prefix}", environ, places_of(site, environ))
    if not mpi:
        raise fail(
            "host-mpi-no-library-below",
            prefix=prefix,
            by=by,
            remedy="" if by == "--mpi" else f"unset {by}, or ",
        )
    return mpi


def in_prefix(
    prefix: Path,
    reason: str,
    environ: Mapping[str, str] = os.environ,
    places: Places = NOWHERE_ELSE,
    patience_s: float = 10.0,
) -> tuple[HostMpi, ...]:
    """The MPIs of one installation prefix, MPICH ABI and Open MPI before MPI-5 ABI.

    Reading the files takes about 0.1 s, so the result is cached under the identity of every file it
    was read from.
    """
    libraries = _library_files(prefix)
    if not libraries:
        return ()
    cached = (
        cache_dir(environ) / "facts" / f"host-{_identity(prefix, libraries, environ, places)}.json"
    )
    with contextlib.suppress(OSError, ValueError):
        known = from_json(_Cached, json.loads(cached.read_text("utf-8")))
        if known.files == _files_of(known.mpis) and not any(m.missing for m in known.mpis):
            return tuple(replace(mpi, found_by=reason) for mpi in known.mpis)
    fresh = tuple(
        _describe(m, prefix, reason, environ, places, patience_s) for m in _identified(libraries)
    )
    if not patience_s or any(m.launcher and m.launcher.family is AbiFamily.UNKNOWN for m in fresh):
        return fresh  # the launcher was not started, or may only have been slow
    # A full or read-only cache costs time, not the answer.
    with contextlib.suppress(OSError), atomic_write(cached, "w") as stream:
        json.dump(to_json(_Cached(fresh, _files_of(fresh))), stream)
    return fresh


@dataclass(frozen=True)
class _Cached:
    mpis: tuple[HostMpi, ...]
    files: Mapping[str, str]


def _files_of(mpis: tuple[HostMpi, ...]) -> dict[str, str]:
    """Identities of the files that the facts were read from; an update may replace a file or retarget a link."""
    stamps = {}
    for mpi in mpis:
        elves = (*mpi.parts, *mpi.glibc, *mpi.gpu_transport, *mpi.optional)
        paths = [e.path for e in elves] + [path for p in mpi.plugins for path in p.files]
        for path in (*paths, *([mpi.launcher.path] if mpi.launcher else [])):
            status = Path(path).stat()
            stamps[path] = f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"
        # Detects a new module, or a new library that precedes another.
        folders = {p.folder for p in mpi.plugins} | {str(Path(e.path).parent) for e in mpi.parts}
        stamps |= {folder: str(Path(folder).stat().st_mtime_ns) for folder in folders}
    return stamps


def _by_profile(site: Site) -> str:
    return f"where the profile {site.name} looks for its MPI"


def _of_another_user(prefix: Path) -> bool:
    """Whether somebody else than root and this user has put a program there, or could."""
    paths = [prefix, prefix / "bin", *(prefix / "bin").glob("mpiexec*")]
    try:
        return any(open_to_others(path) for path in paths if path.exists())
    except OSError:
        return True


def _prefixes(
    environ: Mapping[str, str], root: Path, site: Site | None
) -> Iterator[tuple[Path, str]]:
    if value := environ.get("FAIRLEAD_MPI"):
        yield Path(value), "named by $FAIRLEAD_MPI"
    if site is not None:
        for place in matches(site.mpi.search, environ, root):
            yield place, _by_profile(site)
    installed = data_dir(environ) / "mpi"
    if installed.is_dir():
        for prefix in sorted(installed.iterdir(), key=_default_first):
            if prefix.is_dir() and not prefix.name.startswith("."):
                yield prefix, "installed by `fairlead doctor --fix`"
    for folder in environ.get("PATH", "").split(":"):
        program = Path(folder, "mpiexec")
        if folder and os.access(program, os.X_OK):  # also False without permission
            yield program.resolve().parent.parent, f"its mpiexec is on PATH: {program}"
    yield root / "usr", "in the system's library folders"


def _default_first(prefix: Path) -> tuple[bool, list[int], str]:
    """Sort key: MPICH first, newest version first, then others that were installed for a trial."""
    name, _, version = prefix.name.partition("-")
    return (name != "mpich", [-part for part in version_key(version)], prefix.name)


def _library_files(prefix: Path) -> list[Path]:
    """Files that may be an MPI, judged by name only, which is cheap."""
    names = ["lib", "lib64", "lib/release", "lib-abi-mpich"]
    names += [f"lib/{p.name}" for p in sorted((prefix / "lib").glob("*-linux-gnu*")) if p.is_dir()]
    paths: dict[Path, None] = {}
    for name in [*names, "."]:
        for path in sorted((prefix / name).glob("libmp*.so*")):
            if re.match(r"lib(mpi|mpich)(_\w+)?\.so", path.name) and "ilp64" not in path.name:
                real = path.resolve()
                if real.is_file():
                    paths[real] = None
    return list(paths)


def _identified(files: list[Path]) -> list[MpiLibrary]:
    by_soname: dict[tuple[Path, str], MpiLibrary] = {}
    for path in files:
        try:
            library = read_mpi(path)
        except (ValueError, OSError):
            continue  # a linker script, a companion, or a stray file
        # Wheels cannot contain symlinks: `libmpi.so -> libmpi.so.12` becomes several equal files.
        key = (path.parent, library.soname)
        if key not in by_soname or path.name == library.soname:
            by_soname[key] = library
    last = {AbiFamily.MPI5: 1, AbiFamily.UNKNOWN: 2}
    return sorted(by_soname.values(), key=lambda m: (last.get(m.family, 0), m.path))


def _identity(prefix: Path, files: list[Path], environ: Mapping[str, str], places: Places) -> str:
    parts = [f"11 {prefix} {environ.get('LD_LIBRARY_PATH', '')} {places}"]
    for path in [*files, *(prefix / "bin").glob("mpiexec*")]:
        with contextlib.suppress(OSError):  # a link that leads nowhere, or is closed to this user
            status = path.stat()
            parts.append(f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:20]


def _describe(
    library: MpiLibrary,
    prefix: Path,
    reason: str,
    environ: Mapping[str, str],
    places: Places,
    patience_s: float,
) -> HostMpi:
    roots = [Path(library.path)]
    folder = roots[0].parent
    # Intel MPI opens libfabric by name instead of needing it.
    if library.vendor == "Intel MPI" and (folder / "libfabric.so.1").exists():
        roots.append((folder / "libfabric.so.1").resolve())
    companions = []
    for path in sorted(folder.iterdir()):
        if is_binding(path.name) and path.name.count(".so.") and path.is_file():
            companions.append(elf_file.read(path.resolve(), str(path.resolve())))
    root = _root_of(prefix)
    loader = Loader(environ.get("LD_LIBRARY_PATH", ""), root, places.folders)
    roots += [path for path in places.files if path not in roots]
    closure, missing = loader.closure(roots)
    plugins, optional = _opened(library, closure, loader)
    return HostMpi(
        library=library,
        prefix=str(prefix),
        closure=tuple(e for e in closure if e.path != library.path),
        companions=tuple({e.path: e for e in companions}.values()),
        plugins=plugins,
        optional=optional,
        data=tuple(d for d in ("opt/mpi/etc",) if (prefix / d).is_dir()),
        missing=tuple(missing),
        launcher=find_launcher(prefix, library.family, patience_s),
        found_by=reason,
        glibc=_glibc(library.elf, loader),
        root=str(root),
        shared_folder=folder in {f.resolve() for f in system_folders(root)},
        gpu_transport=tuple(_gpu_transport(folder, places)),
        symbols=_symbols([library.elf, *companions], closure),
    )


def _symbols(own: list[Elf], closure: list[Elf]) -> dict[str, tuple[str, ...]]:
    """See :class:`HostMpi`."""
    symbols = {}
    for elf in (*own, *closure):
        if elf.name not in RUNTIME_PIECES and elf.path not in symbols:
            known = elf_file.symbols(Path(elf.path))
            if elf in own or not known.versioned:
                symbols[elf.path] = tuple(sorted(known.defined))
    return symbols


def _gpu_transport(folder: Path, places: Places) -> Iterator[Elf]:
    """``libmpi_gtl_cuda`` or ``libmpi_gtl_hsa`` from the profile's path, the MPI's folder, or Cray's
    ``gtl/lib`` above it."""
    usual = [folder, *(above / "gtl/lib" for above in list(folder.parents)[:5])]
    paths = [path for place in usual for path in sorted(place.glob("libmpi_gtl_*.so*"))]
    for real in dict.fromkeys(path.resolve() for path in (*places.gpu, *paths)):
        if real.is_file():
            with contextlib.suppress(NotElf, OSError):
                yield elf_file.read(real, str(real))


def _root_of(prefix: Path) -> Path:
    """The root folder of the system that contains ``prefix``, which may be mounted below a folder."""
    for folder in prefix.resolve().parents:
        if (folder / "etc/ld.so.conf").is_file() and (folder / "usr").is_dir():
            return folder
    return Path("/")


def _glibc(by: Elf, loader: Loader) -> tuple[Elf, ...]:
    """The C library that the loader would give ``by``, with the other files of glibc."""
    libc = loader.find("libc.so.6", by)
    if libc is None:
        return ()
    versions = {}
    # A system library folder has thousands of other files.
    for path in sorted(p for p in libc.parent.iterdir() if GLIBC_PIECES.match(p.name)):
        real = loader.real(path)
        if real is not None and real.is_file():
            with contextlib.suppress(NotElf, OSError):  # a linker script of the development package
                elf = elf_file.read(real, str(real))
                versions[elf.soname or path.name] = elf
    return tuple(versions[name] for name in sorted(versions))


def _opened(
    library: MpiLibrary, closure: list[Elf], loader: Loader
) -> tuple[tuple[Plugins, ...], tuple[Elf, ...]]:
    """The modules that these libraries open, and what those need that is not there already.

    A module may bring a library that opens modules itself: Open MPI's for PMIx do.
    """
    plugins: dict[str, Plugins] = {}
    known = {elf.path: elf for elf in closure}
    behind: dict[str, Elf] = {}
    by_folder = {p.folder: p for p in modules_of([*closure, library.elf])}
    while by_folder:
        plugins.update(by_folder)
        modules = [Path(path) for p in by_folder.values() for path in p.files]
        more, _ = loader.closure(modules)
        inside = {str(path) for path in modules} | {str(path.resolve()) for path in modules}
        new = [e for e in more if e.path not in inside and e.path not in known]
        known |= {e.path: e for e in new}
        behind |= {e.path: e for e in new}
        by_folder = {p.folder: p for p in modules_of(new) if p.folder not in plugins}
    return tuple(plugins.values()), tuple(behind.values())


# A library's SONAME, the variable that names its modules' folder, where that may be, next to the library, and
# the modules' names.
_OPENERS = (
    ("libmpi.so.40", "OMPI_MCA_mca_base_component_path",
     ("openmpi", "openmpi/lib/openmpi3", "openmpi/lib/openmpi", "openmpi3"), "mca_*.so"),
    ("libpmix.so", "PMIX_MCA_mca_base_component_path", ("pmix",), "*mca_*.so"),
    ("libuct.so", "UCX_MODULE_DIR", ("ucx",), "libu*.so*"),
    ("libfabric.so", "FI_PROVIDER_PATH", ("libfabric", "prov", "."), "*-fi.so"),
)  # fmt: skip
MODULE_VARIABLES = tuple(variable for _, variable, _, _ in _OPENERS)


def modules_of(closure: Iterable[Elf]) -> Iterator[Plugins]:
    """The modules that libraries open at run time, for those that are known to."""
    for elf in closure:
        for start, variable, names, pattern in _OPENERS:
            for name in names if elf.soname.startswith(start) else ():
                folder = Path(elf.path).parent / name
                if files := sorted(folder.glob(pattern)):
                    yield Plugins(variable, str(folder), tuple(map(str, files)))
                    break


def find_launcher(prefix: Path, family: AbiFamily, patience_s: float = 10.0) -> Launcher | None:
    """The ``mpiexec`` that belongs to the MPI in ``prefix``."""
    names = ["mpiexec.hydra", "mpiexec.mpich", "mpiexec"]
    if family is AbiFamily.OPENMPI:
        names = ["mpiexec.openmpi", "mpiexec"]
    for name in names:
        program = prefix / "bin" / name
        if os.access(program, os.X_OK) and program.is_file():
            launcher = identify(program, patience_s)
            if launcher.family in (family, AbiFamily.UNKNOWN) or family is AbiFamily.MPI5:
                return launcher
    return None


def needs(parts: tuple[Elf, ...], prefix: str = "GLIBC") -> tuple[str, str]:
    """The highest ``prefix`` version that any of ``parts`` needs, and the path of that part."""
    best, who = "", ""
    for part in parts:
        version = part.needs.get(prefix, "")
        if version_key(version) > version_key(best):
            best, who = version, part.path
    return best, who
