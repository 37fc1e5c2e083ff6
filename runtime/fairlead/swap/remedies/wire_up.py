"""What ranks need to find each other under srun: Intel MPI's PMI setting, and the files of Slurm's PMIx.

Intel MPI uses PMI-1 unless I_MPI_PMI is set, and Slurm's plugin supports only PMI-2."""

from __future__ import annotations

from pathlib import PurePosixPath

from fairlead.swap.model import Bind, Line
from fairlead.swap.remedies.model import Changes, Draft, Phase, Remedy


class WireUp(Remedy):
    name = "wire-up"
    title = "sets Intel MPI's PMI under srun, and shows the folders of Slurm's PMIx"
    phase = Phase.RUNNING

    def applies(self, draft: Draft) -> bool:
        return bool(draft.inputs.launcher.folders) or self._intel_by_srun(draft)

    def change(self, draft: Draft) -> Changes:
        launcher = draft.inputs.launcher
        # Every engine binds /tmp.
        folders = [f for f in launcher.folders if PurePosixPath(f).parts[:2] != ("/", "tmp")]
        why = "Slurm's PMIx keeps files there that ranks read"
        lines = [Line("bind", f"{folder} -> {folder}", why) for folder in folders]
        env = {}
        if self._intel_by_srun(draft):
            env["I_MPI_PMI"] = launcher.pmi
            why = "selects the PMI by which srun connects the ranks"
            lines.append(Line("env", f"I_MPI_PMI={launcher.pmi}", why))
        return Changes(tuple(Bind(f, f) for f in folders), env, tuple(lines))

    @staticmethod
    def _intel_by_srun(draft: Draft) -> bool:
        launcher = draft.inputs.launcher
        intel = draft.mapped is not None and draft.mapped.vendor == "Intel MPI"
        return intel and launcher.kind == "srun" and bool(launcher.pmi)


REMEDY = WireUp()
