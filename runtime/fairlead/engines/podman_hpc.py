"""podman-hpc: NERSC's wrapper of Podman, whose words are Podman's.

Its own modules (``--mpi``) bring the site's MPI by a hook; here the swap is fairlead's, so none is
asked for. A node's ranks share host namespaces, as its ``--mpi`` does: shared memory and PMI need it.
Source: NERSC/podman-hpc, podman_hpc/podman_hpc.py and etc/modules.d; podman-run(1).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fairlead.base.system import View
from fairlead.base.timeboxed import clear, first, settings
from fairlead.engines.find import named_or_on_path
from fairlead.engines.model import Call, Config, Driver, Engine, Takes, Words, prefix_of
from fairlead.engines.unfit import unfit_bind

_SHARED = ("--network=host", "--ipc=host", "--pid=host")
# What launchers say to their ranks.
LAUNCHERS = ("PMI_*", "PMIX_*", "PALS_*", "SLURM_*", "OMPI_*", "MPI_*", "HYDI_*", "PMIX_MCA_*")


class PodmanHpc(Driver):
    """NERSC's podman-hpc."""

    kind = "podman-hpc"
    title = "podman-hpc"
    programs = ("podman-hpc",)
    processes = ("podman", "conmon", "runc", "crun")

    def detect(self, environ: Mapping[str, str] = os.environ) -> Engine | None:
        """podman-hpc, where it is on PATH."""
        path = named_or_on_path("FAIRLEAD_PODMAN_HPC", "podman-hpc", environ)
        if path is None:
            return None
        why = "ranks of a node find each other by shared memory and process ids"
        return Engine(
            "podman-hpc", str(path), True, _SHARED, ((" ".join(_SHARED), why),), takes=Takes.FOLDER
        )

    def words(self, engine: Engine, call: Call) -> Words:
        """``podman-hpc run``; a folder is started by ``--rootfs``, a name from podman-hpc's store.

        Raises:
            FairleadError: exit code 121; a path has a colon.
        """
        words = [engine.path, "run", "--rm", *engine.options]
        for source, target, read_only in call.binds:
            for path in (source, target):
                if ":" in path:
                    raise unfit_bind("podman-hpc", path, "a `:` ends a path in --volume")
            words.append(f"--volume={source}:{target}" + (":ro" if read_only else ""))
        words += [f"--env={pattern}" for pattern in LAUNCHERS]
        folder = call.image.startswith("/")
        for name, value in {
            **(call.image_env if folder else {}),
            **call.env,
            **call.literal,
        }.items():
            words.append(f"--env={name}={value}")
        if call.workdir:
            words.append(f"--workdir={call.workdir}")
        image = ("--rootfs", call.image) if folder else (call.image,)
        return Words((*words, *call.extra, *image, *call.command), {})

    def configuration(self, view: View, real: str) -> Config | None:
        path = first(
            view,
            *filter(None, [view.environ.get("PODMAN_HPC_CONFIG", "")]),
            "/etc/podman_hpc/podman_hpc.yaml",
            f"{prefix_of(real)}/etc/podman_hpc/podman_hpc.yaml",
        )
        if not path:
            return None
        keys = (
            "podman_bin",
            "mount_program",
            "modules_dir",
            "shared_run",
            "shared_run_exec_args",
            "graph_root",
            "run_root",
            "squash_dir",
            "use_default_args",
        )
        found = {k: clear(v) for k, v in settings(view.read(path) or "", keys, ":").items() if v}
        folder = found.get("modules_dir", f"{path.rpartition('/')[0]}/modules.d")
        modules = [n.removesuffix(".yaml") for n in view.listdir(folder) if n.endswith(".yaml")]
        if modules:
            found["modules"] = ", ".join(modules)
        return Config(path, found)


ENGINE = PodmanHpc()
