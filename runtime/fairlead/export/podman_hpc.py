"""podman-hpc: a module (``--fairlead-mpich-5-0-2``) for its ``modules.d``, and the script that stages the MPI.

Each argument is a single word: podman-hpc hands the list on as it is, so ``-e NAME`` in one item would be
one argument with a blank in it. Folders and files go by ``--volume`` and ``--device``: a module's own ``bind`` needs
podman-hpc's hook, which a fresh installation does not configure.
Source: NERSC/podman-hpc, podman_hpc/siteconfig.py (read_site_modules, get_cmd_extensions),
podman_hpc/hook_tool.py (resolve_src_and_dest), etc/modules.d/mpich.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from fairlead import __version__
from fairlead.engines.podman_hpc import LAUNCHERS
from fairlead.export.model import ExportFile, Facts, Target, check_name, check_path
from fairlead.export.plugin import carried
from fairlead.export.staged import stage_script, staged

# What podman-hpc reads of a module; it ignores anything else.
KEYS = frozenset(
    ("name", "help", "cli_arg", "env", "conflicts", "depends_on", "shared_run", "additional_args")
) | {"annotation", "copy", "bind"}
# Modules that bring an MPI of their own, by their names at NERSC.
_OTHERS = ("mpich", "cuda-mpi", "openmpi-pmi2", "openmpi-pmix")


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """The module and the staging script."""
    made = staged(facts, "podman-hpc", gpu=True)
    name = facts.name or f"fairlead-{facts.label}".replace(".", "-")
    why = "it becomes an option: small letters, digits and `-`"
    check_name(name, r"[a-z][a-z0-9-]*", why, "podman-hpc")
    volumes = [(made.folder, made.place, ":ro"), *((s, t, ":ro") for s, t in made.over)]
    volumes += [(path, path, "") for path in facts.here.binds]
    module: dict[str, object] = {
        "name": name,
        "cli_arg": name,
        "help": f"{made.plan.planned_title} of the host in place of the image's",
        "env": f"ENABLE_{name.upper().replace('-', '_')}",
        "conflicts": list(_OTHERS),
        # One container per node, which the ranks enter: only Slurm gives a rank what that needs.
        "shared_run": facts.site.scheduler.kind == "slurm",
        "additional_args": [
            *(f"--env={pattern}" for pattern in LAUNCHERS),
            *(f"--env={n}={v}" for n, v in sorted(made.variables.items())),
            *(f"--volume={_path(s)}:{_path(t)}{flags}" for s, t, flags in volumes),
            *(f"--device={_path(device)}" for device in facts.here.devices),
            "--ipc=host",
            "--network=host",
            "--pid=host",
        ],
    }
    head = (
        f"# fairlead {__version__}: {made.plan.planned_title} of {facts.node}. First run stage.sh.\n"
        f"# Use: podman-hpc run --{name} IMAGE COMMAND\n"
    )
    goes = "/etc/podman_hpc/modules.d, or the modules_dir of podman_hpc.yaml"
    where = "run it where the ranks run, as a user who can write there"
    for_gpus: tuple[ExportFile, ...] = ()
    if made.gpu:
        more: dict[str, object] = {
            "name": f"{name}-gpu",
            "cli_arg": f"{name}-gpu",
            "help": f"Messages from GPU to GPU, with --{name} and the site's option for GPUs",
            "env": f"{module['env']}_GPU",
            "conflicts": list(_OTHERS),
            "depends_on": [name],
            "additional_args": [f"--env={n}={v}" for n, v in sorted(made.gpu.items())],
        }
        for_gpus = (ExportFile(f"modules.d/{name}-gpu.yaml", head + yaml(more), goes),)
    return (
        ExportFile(f"modules.d/{name}.yaml", head + yaml(module), goes),
        *for_gpus,
        stage_script(facts, made, f"podman-hpc's --{name}", where),
    )


def nccl(facts: Facts) -> tuple[ExportFile, ...]:
    """The module with NCCL's plugin, one more for jobs on several nodes, and the staging script."""
    made = carried(facts)
    name = facts.name or "fairlead-nccl"
    check_name(
        name,
        r"[a-z][a-z0-9-]*",
        "it becomes an option: small letters, digits and `-`",
        "podman-hpc",
    )
    variable = f"ENABLE_{name.upper().replace('-', '_')}"
    module: dict[str, object] = {
        "name": name,
        "cli_arg": name,
        "help": f"NCCL's network plugin, {made.title}",
        "env": variable,
        "conflicts": ["nccl"],  # NERSC's own
        "additional_args": [
            *(f"--env={n}={v}" for n, v in sorted(made.env.items())),
            f"--volume={_path(made.folder)}:{_path(made.place)}:ro",
            *(f"--device={_path(device)}" for device in made.devices),
            "--ipc=host",
            "--network=host",
        ],
    }
    several: dict[str, object] = {
        "name": f"{name}-nodes",
        "cli_arg": f"{name}-nodes",
        "help": f"With --{name}, in jobs on several nodes: without its network NCCL ends with an error",
        "env": f"{variable}_NODES",
        "depends_on": [name],
        "additional_args": [f"--env={n}={v}" for n, v in sorted(made.nodes.items())],
    }
    more = f" --{name}-nodes" if made.nodes else ""
    head = (
        f"# fairlead {__version__}: NCCL's network plugin, {made.title}. First run stage.sh.\n"
        f"# Use: podman-hpc run --gpu --{name}{more} IMAGE COMMAND\n{made.comment}"
    )
    goes = "/etc/podman_hpc/modules.d, or the modules_dir of podman_hpc.yaml"
    modules = (module, several) if made.nodes else (module,)
    return (
        *(ExportFile(f"modules.d/{m['name']}.yaml", head + yaml(m), goes) for m in modules),
        stage_script(
            facts,
            made,
            f"podman-hpc's --{name}",
            "run it where the ranks run, as a user who can write there",
        ),
    )


def _path(path: str) -> str:
    check_path(path, ":", "`:` separates the parts of --volume and --device", "podman-hpc")
    return path


def yaml(document: Mapping[str, object]) -> str:
    """A flat YAML document; its words are quoted as JSON's, which are YAML's too."""
    lines = []
    for key, value in document.items():
        assert key in KEYS
        if isinstance(value, Sequence) and not isinstance(value, str):
            lines.append(f"{key}:" if value else f"{key}: []")
            lines += [f"  - {json.dumps(item, ensure_ascii=False)}" for item in value]
        else:
            lines.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


EXPORT = Target("modules.d/*.yaml", files, nccl)
