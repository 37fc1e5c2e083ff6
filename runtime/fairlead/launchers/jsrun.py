"""IBM's ``jsrun``: resource sets of one rank each.

Grammar: "jsrun command" in the documentation of IBM Job Step Manager 10.1 (-n, -a, -c, -g, -r, -b), and OLCF's
jsrun quick start guide.
"""

from __future__ import annotations

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot


class Jsrun(Driver):
    kind = "jsrun"
    rank_in = ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK")
    programs = ("jsrun",)
    title = "LSF jsrun"
    family = AbiFamily.OPENMPI

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        if shape.bind in ("socket", "numa") or shape.hosts:
            raise cannot(
                launcher,
                "which hosts to use" if shape.hosts else f"to bind to a {shape.bind}",
                "jsrun places resource sets itself and binds within one",
                "leave out --hosts" if shape.hosts else "use --bind-to core with --cores-per-rank",
            )
        cores = shape.cores or 1
        argv = [launcher.path, *launcher.options, "-n", str(shape.ranks), "-a", "1"]
        argv += ["-c", str(cores), "-g", str(shape.gpus)]
        if shape.each:
            argv += ["-r", str(shape.each)]
        argv += ["-b", "none" if shape.bind == "none" else f"packed:{cores}"]
        return Words((*argv, *shape.extra, *inner))


LAUNCHER = Jsrun()
