"""What ranks need to find each other under srun: Intel MPI's choice of PMI, and the files of Slurm's PMIx.

Intel MPI takes PMI-1 unless it is set, and Slurm's plugin speaks PMI-2 only."""

from __future__ import annotations

from pathlib import PurePosixPath

from fairlead.swap.model import Bind, Line
from fairlead.swap.remedies.model import Changes, Draft, Phase, Remedy


class WireUp(Remedy):
    """Variables and folders for PMI."""

    name = "wire-up"
    title = "sets Intel MPI's PMI under srun, and shows the folders of Slurm's PMIx"
    phase = Phase.RUNNING

    def applies(self, draft: Draft) -> bool:
        return bool(draft.inputs.launcher.folders) or self._intel_by_srun(draft)

    def change(self, draft: Draft) -> Changes:
        launcher = draft.inputs.launcher
        # Every engine shows /tmp.
        folders = [f for f in launcher.folders if PurePosixPath(f).parts[:2] != ("/", "tmp")]
        why = "Slurm's PMIx keeps files there that ranks read"
        lines = [Line("bind", f"{folder} -> {folder}", why) for folder in folders]
        env = {}
        if self._intel_by_srun(draft):
            env["I_MPI_PMI"] = launcher.pmi
            why = "Intel MPI must be told how srun lets ranks find each other"
            lines.append(Line("env", f"I_MPI_PMI={launcher.pmi}", why))
        return Changes(tuple(Bind(f, f) for f in folders), env, tuple(lines))

    @staticmethod
    def _intel_by_srun(draft: Draft) -> bool:
        launcher = draft.inputs.launcher
        intel = draft.mapped is not None and draft.mapped.vendor == "Intel MPI"
        return intel and launcher.kind == "srun" and bool(launcher.pmi)


REMEDY = WireUp()
