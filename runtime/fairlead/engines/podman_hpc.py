"""podman-hpc: NERSC's wrapper of Podman, whose words are Podman's.

Its own modules (``--mpi``) bring the site's MPI by a hook; here the swap is fairlead's, so none is
asked for. A node's ranks share host namespaces, as its ``--mpi`` does: shared memory and PMI need it.
Source: NERSC/podman-hpc, podman_hpc/podman_hpc.py and etc/modules.d; podman-run(1).
"""

from __future__ import annotations

from fairlead.base.system import View
from fairlead.base.timeboxed import clear, settings
from fairlead.engines.model import Call, Config, Driver, Engine, Takes, Words

_SHARED = ("--network=host", "--ipc=host", "--pid=host")
# What launchers say to their ranks.
LAUNCHERS = ("PMI_*", "PMIX_*", "PALS_*", "SLURM_*", "OMPI_*", "MPI_*", "HYDI_*", "PMIX_MCA_*")


class PodmanHpc(Driver):
    kind = "podman-hpc"
    title = "podman-hpc"
    programs = ("podman-hpc",)
    variable = "FAIRLEAD_PODMAN_HPC"
    processes = ("podman", "conmon", "runc", "crun")
    takes = Takes.FOLDER
    userns_per_rank = True
    options = _SHARED
    reasons = (
        (" ".join(_SHARED), "ranks of a node find each other by shared memory and process ids"),
    )
    config_files = ("/etc/podman_hpc/podman_hpc.yaml", "{prefix}/etc/podman_hpc/podman_hpc.yaml")
    config_keys = (
        "podman_bin", "mount_program", "modules_dir", "shared_run", "shared_run_exec_args", "graph_root",
        "run_root", "squash_dir", "use_default_args",
    )  # fmt: skip
    bind_limit = (":", "a `:` ends a path in --volume")

    def words(self, engine: Engine, call: Call) -> Words:
        """``podman-hpc run``; a folder is started by ``--rootfs``, a name from podman-hpc's store."""
        words = [engine.path, "run", "--rm", *engine.options]
        for source, target, read_only in self.binds_of(call):
            words.append(f"--volume={source}:{target}" + (":ro" if read_only else ""))
        words += [f"--env={pattern}" for pattern in (*LAUNCHERS, *call.passes)]
        folder = call.image.startswith("/")
        env = {**(call.image_env if folder else {}), **call.env, **call.literal}
        words += [f"--env={name}={value}" for name, value in env.items()]
        words += ["--interactive", "--tty"] if call.terminal else []
        if call.workdir:
            words.append(f"--workdir={call.workdir}")
        image = ("--rootfs", call.image) if folder else (call.image,)
        return Words((*words, *call.extra, *image, *call.command), {})

    def configuration(self, view: View, real: str) -> Config | None:
        named = view.environ.get("PODMAN_HPC_CONFIG", "")
        if named and view.access(named, 0):
            return Config(named, self.settings(view, named, view.read(named) or ""))
        return super().configuration(view, real)

    def settings(self, view: View, path: str, text: str) -> dict[str, str]:
        values = {k: clear(v) for k, v in settings(text, self.config_keys, ":").items() if v}
        names = view.listdir(values.get("modules_dir", f"{path.rpartition('/')[0]}/modules.d"))
        modules = [name.removesuffix(".yaml") for name in names if name.endswith(".yaml")]
        return {**values, "modules": ", ".join(modules)} if modules else values


ENGINE = PodmanHpc()
