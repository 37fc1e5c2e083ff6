"""TACC's ``ibrun``. Grammar: TACC's user guides (Frontera, Stampede3), "Launching one MPI application":
``ibrun``, or ``ibrun -n RANKS -o OFFSET`` for a part of the job's slots."""

from __future__ import annotations

from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot


class Ibrun(Driver):
    """It takes nodes and ranks from the job, and knows the site's MPIs."""

    kind = "ibrun"
    programs = ("ibrun",)
    title = "ibrun"
    version_arguments = ()  # it reads them in another way

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        for option, value in (
            ("--cores-per-rank", shape.cores),
            ("--gpus-per-rank", shape.gpus),
            ("--bind-to", shape.bind),
            ("--hosts", shape.hosts),
        ):
            if value:
                raise cannot(
                    launcher,
                    option,
                    "ibrun takes nodes, ranks and binding from the job",
                    f"leave out {option}; `fairlead script` says it to the scheduler",
                )
        argv = (launcher.path, *launcher.options, *shape.extra, "-n", str(shape.ranks), "-o", "0")
        return Words((*argv, *inner))


LAUNCHER = Ibrun()
