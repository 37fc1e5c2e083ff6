"""``flux run``. Grammar: flux-run(1), doc/man1 of flux-core: per-task options, shell options."""

from __future__ import annotations

from pathlib import Path

from fairlead.base.system import View
from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot, given

_AFFINITY = {"none": "off", "core": "per-task"}


class Flux(Driver):
    kind = "flux"
    rank_in = ("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID")
    programs = ("flux",)
    title = "Flux"
    version_arguments = ("version",)
    version_after = "commands:"
    scheduler = "flux"

    def describe(
        self, program: str, speaks: AbiFamily, pmi: str, preferred_pmi: tuple[str, ...] = ()
    ) -> Launcher:
        pmi = pmi or ("pmix" if speaks is AbiFamily.OPENMPI else "")
        return Launcher(program, speaks, Path(program).name, self.kind, pmi)

    def is_present(self, view: View, text: str) -> bool:
        return "flux-core" in text or "FLUX_URI" in view.environ  # other programs have that name

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        if shape.bind in ("socket", "numa"):
            raise cannot(
                launcher,
                f"to bind to a {shape.bind}",
                "its shell option cpu-affinity knows off, on and per-task",
                "use --bind-to core with --cores-per-rank",
            )
        argv = [launcher.path, "run", *launcher.options, *allocation_words(shape)]
        if launcher.pmi:
            argv += ["-o", f"pmi={launcher.pmi}"]
        if shape.bind:
            argv += ["-o", f"cpu-affinity={_AFFINITY[shape.bind]}"]
        if shape.gpus:
            argv += ["-o", "gpu-affinity=per-task"]
        argv += given(("--requires=hosts:{}", ",".join(shape.hosts)))
        return Words((*argv, *shape.extra, *inner))


def allocation_words(shape: Shape, slots: str = "--ntasks", cores: str = "per-task") -> list[str]:
    """The options of a job's size, which ``flux batch`` and ``flux alloc`` say of slots."""
    return given(
        (slots + "={}", shape.ranks),
        ("--nodes={}", shape.filled),
        (f"--cores-{cores}={{}}", shape.cores),
        (f"--gpus-{cores}={{}}", shape.gpus),
        ("--time-limit={}s", shape.time_s),
        ("--bank={}", shape.account),
        ("--queue={}", shape.partition),
    )


LAUNCHER = Flux()
