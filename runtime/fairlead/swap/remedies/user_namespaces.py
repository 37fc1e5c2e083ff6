"""Ranks in separate user namespaces may not read each other's memory or file descriptors: they share one, or do without."""

from __future__ import annotations

from fairlead.swap.model import Line
from fairlead.swap.reach import parted_by
from fairlead.swap.remedies.model import Changes, Draft, Phase, Remedy

# By vendor: variables without which the MPI tries cross-memory attach, and fails or hangs.
_MPICH = {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "UCX_POSIX_USE_PROC_LINK": "n"}
_SETTINGS = {
    **dict.fromkeys(("MPICH", "MVAPICH", "Cray MPICH", "unknown"), _MPICH),
    "Intel MPI": {"I_MPI_SHM_CMA": "0"},
    "Open MPI": {"OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_smsc": "^cma"},
}


class UserNamespaces(Remedy):
    name = "user-namespaces"
    title = "lets ranks of a node share a user namespace, or switches off cross-memory attach"
    phase = Phase.RUNNING

    def applies(self, draft: Draft) -> bool:
        parted = draft.inputs.engine.userns_per_rank or parted_by(
            draft.inputs.facts, draft.inputs.request
        )
        return bool(parted) and draft.mapped is not None

    def change(self, draft: Draft) -> Changes:
        assert draft.mapped is not None
        settings = _SETTINGS.get(draft.mapped.vendor, {})
        if how := parted_by(draft.inputs.facts, draft.inputs.request):
            why = f"`{how}` gives each rank a namespace of its own, so the kernel refuses cross-memory attach"
        elif draft.inputs.engine.joins:
            why = "in one user namespace the kernel allows cross-memory attach, and the image is mounted once"
            return Changes(apart=settings, lines=(Line("engine", "one container a node", why),))
        else:
            why = (
                "each rank has a separate user namespace, so the kernel refuses cross-memory attach"
            )
        lines = tuple(Line("env", f"{name}={value}", why) for name, value in settings.items())
        return Changes(env=settings, lines=lines)


REMEDY = UserNamespaces()
