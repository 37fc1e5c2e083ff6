"""What is declared of a library that a container can get from the host while it keeps its own MPI."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CarriedLibrary:
    """A library below the MPI that knows the host's network.

    Assign one to the ``LIBRARY`` of a module of this package, or of another distribution with an entry point of the
    group ``fairlead.elf.carried``.

    Attributes:
        title: for messages.
        sonames: its files, which belong together; the first is the one that programs need.
        versions: prefix of its symbol versions, ``FABRIC``; empty if it has none.
        variable: names the folder of its modules.
        folders: patterns of the host's folders where vendors install one that knows the network.
    """

    title: str
    sonames: tuple[str, ...]
    versions: str = ""
    variable: str = ""
    folders: tuple[str, ...] = ()
