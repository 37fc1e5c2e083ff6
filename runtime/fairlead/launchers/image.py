"""The launcher that an image brings along: it starts the ranks within one container, so on one node.

What an MPI of no known family needs is known to its own launcher alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot

_NAMES = ("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi")


class OfImage(Driver):
    kind = "image"
    programs = ()
    title = "the image's own launcher"
    in_profiles = False
    in_image = True

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        placed = shape.hosts or shape.per_node or shape.nodes > 1
        if placed or shape.cores or shape.gpus or shape.bind:
            raise cannot(
                launcher,
                "where ranks go",
                "it runs within one container on this node, and -n is all that every one of them takes",
                "give its own words, each by --launcher-arg, or name a launcher of this machine",
            )
        return Words(
            (launcher.path, *launcher.options, *shape.extra, "-n", str(shape.ranks), *inner)
        )


LAUNCHER = OfImage()


def own_launcher(library: str, programs: Mapping[str, str]) -> Launcher | None:
    """The launcher that belongs to an MPI of an image: in ``bin`` of the prefix that the library is in.

    Args:
        library: its path in the image.
        programs: those of the image, by path.
    """
    for folder in PurePosixPath(library).parents:
        for name in _NAMES:
            if (path := str(folder / "bin" / name)) in programs:
                title = f"{name} of the image"
                return Launcher(path, AbiFamily.UNKNOWN, title, OfImage.kind)
    return None
