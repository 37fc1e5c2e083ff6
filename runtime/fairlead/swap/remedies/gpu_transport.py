"""Messages from GPU to GPU: the library that Cray MPICH needs preloaded if MPICH_GPU_SUPPORT_ENABLED=1."""

from __future__ import annotations

from pathlib import PurePosixPath

from fairlead.elf.facts import Elf
from fairlead.mpi.host import HostMpi
from fairlead.swap.model import MOUNT, Line, Request, StagedFile
from fairlead.swap.remedies.model import Changes, Draft, Parts, Phase, Remedy


class GpuTransport(Remedy):
    name = "gpu-transport"
    title = "preloads the host's GPU transport library, where the MPI is to send from GPU to GPU"
    phase = Phase.RUNNING

    def applies(self, draft: Draft) -> bool:
        return self._library(draft) is not None

    def stage(self, draft: Draft) -> Parts:
        library = self._library(draft)
        assert library is not None
        name = PurePosixPath(library.path).name
        line = Line("stage", name, "carries messages from GPU to GPU", library.path)
        return Parts((StagedFile(library.path, f"lib/{name}"),), (line,))

    def change(self, draft: Draft) -> Changes:
        library = self._library(draft)
        assert library is not None
        why = "the GPU transport library, which the MPI looks for when MPICH_GPU_SUPPORT_ENABLED=1"
        return Changes(preload=((f"{MOUNT}/lib/{PurePosixPath(library.path).name}", why),))

    @staticmethod
    def _library(draft: Draft) -> Elf | None:
        host, request = draft.inputs.swapped_in, draft.inputs.request
        return gpu_transport(host, request) if host and request.gpu else None


REMEDY = GpuTransport()


def gpu_transport(host: HostMpi, request: Request) -> Elf | None:
    """The host's library for messages from GPU to GPU, for the GPUs that the engine exposes."""
    kinds = {"--rocm": "hsa", "--nv": "cuda"}
    kind = next((kinds[option] for option in kinds if option in request.engine_args), "")
    matching = (e for e in host.gpu_transport if f"_gtl_{kind}" in PurePosixPath(e.path).name)
    return next(matching, None)
