"""The compiled parts of fairlead, one entry each. The build hook of the wheel reads this file too, without the package."""

from __future__ import annotations

from typing import NamedTuple


class Library(NamedTuple):  # a dataclass needs its module, which the build hook does not import
    """One library before it is compiled. None links another, so one file runs in every image.

    Attributes:
        name: of its file.
        language: ``c`` or ``c++``.
        core: its files are in the collective core's folder; else next to this one.
        sources, headers: patterns in that folder; what is compiled, and what that includes.
        flags: a file there, with flags of one command that compiles and links.
        more: flags that tell it from another library of the same source.
        include: a folder of headers there.
        check: that findings about it belong to.
        failed: the message where it cannot be compiled.
    """

    name: str
    language: str
    core: bool
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    flags: str
    check: str
    failed: str
    more: tuple[str, ...] = ()
    include: str = ""

    @property
    def stem(self) -> str:
        return self.name.removesuffix(".so")


CORE = Library(
    "libfairlead_comm.so",
    "c++",
    core=True,
    sources=("src/*.cpp",),
    headers=("src/*.h", "src/*.inc", "include/fairlead_comm.h"),
    flags="flags",
    check="comm-core",
    failed="native-core-failed",
    include="include",
)
# The core's operation, of TensorFlow's C interface: none is needed to compile it.
TENSORFLOW = CORE._replace(
    name="libfairlead_tensorflow.so",
    sources=("tensorflow/operation.cpp",),
    headers=("src/platform.h", "include/fairlead_comm.h"),
)
WITNESS = Library(
    "witness.so",
    "c",
    core=False,
    sources=("witness.c",),
    headers=(),
    flags="witness.flags",
    check="witness",
    failed="native-witness-failed",
)
# For an MPI whose handles are not known: see witness.c.
WITNESS_OF_CALLS = WITNESS._replace(name="witness-calls.so", more=("-DCALLS",))
# It proves plugins of NCCL.
WIRE = WITNESS._replace(
    name="wire.so",
    sources=("wire.c",),
    flags="wire.flags",
    check="nccl-wire",
    failed="native-wire-failed",
)


def witness(*, calls: bool) -> Library:
    """The witness of a launch: for an MPI whose handles are not known, or for any other."""
    return WITNESS_OF_CALLS if calls else WITNESS


LIBRARIES = (CORE, TENSORFLOW, WITNESS, WITNESS_OF_CALLS, WIRE)
