"""CSCS' Container Engine: an environment definition file (EDF), and the script that stages the MPI.

Without an image it is an environment to build others on: ``base_environment = ["NAME"]``.
Source: eth-cscs/cscs-docs, docs/software/container-engine/edf.md and resource-hook.md.
"""

from __future__ import annotations

import json
import re

from fairlead import __version__
from fairlead.engines.ce import edf
from fairlead.export.model import ExportFile, Facts, Target, check_name, unfit
from fairlead.export.plugin import Carried, carried
from fairlead.export.staged import stage_script, staged
from fairlead.nccl.selection import NET


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """The EDF and the staging script; only the EDF where the site itself exchanges libfabric."""
    name = facts.name or f"fairlead-{facts.site.name}"
    check_name(name, r"[A-Za-z0-9_.-]+", "it is a file's name", "srun --environment")
    head = (
        f"# fairlead {__version__}, for {facts.site.name}. Put it into ~/.edf or a folder of EDF_PATH.\n"
        f"# Use: srun --environment={name} COMMAND; not in an #SBATCH line.\n"
    )
    opened = image(facts.image.name, facts.image.path) if facts.image else ""
    if facts.site.mpi.replaces == "libfabric":
        return (ExportFile(f"{name}.toml", head + edf(opened, (), {}, cxi=True), "~/.edf"),)
    made = staged(facts, "ce")
    mounts = [(made.folder, made.place, True), *((s, t, True) for s, t in made.over)]
    mounts += [(path, path, False) for path in facts.here.binds]
    where = "run it where the ranks run; the folder must be on a file system that they see"
    return (
        ExportFile(
            f"{name}.toml",
            head + edf(opened, mounts, made.variables),
            "~/.edf, or a folder of EDF_PATH",
        ),
        stage_script(facts, made, f"the environment `{name}`", where),
    )


def image(name: str, path: str) -> str:
    """An image as an EDF names it: ``HOST#REPOSITORY:TAG``, or the path of a squashfs.

    Raises:
        FairleadError: it is a SIF, which the engine does not open.
    """
    if match := re.fullmatch(r"docker://([^/@]+)/([^@]+?)(@sha256:[0-9a-f]+)?", name):
        return f"{match[1]}#{match[2]}"
    if path.endswith((".squashfs", ".sqsh")):
        return path
    raise unfit(
        f"the image {name}",
        path,
        "it opens a squashfs (`fairlead build RECIPE --format squashfs`) or docker://HOST/REPOSITORY:TAG",
        "an EDF",
    )


def nccl(facts: Facts) -> tuple[ExportFile, ...]:
    """The EDF with the annotations of the site's own hook, where it has one; else with the staged plugin."""
    name = facts.name or f"fairlead-nccl-{facts.site.name}"
    check_name(name, r"[A-Za-z0-9_.-]+", "it is a file's name", "srun --environment")
    head = (
        f"# fairlead {__version__}, for {facts.site.name}. Put it into ~/.edf or a folder of EDF_PATH.\n"
        f"# Use: srun --environment={name} COMMAND; not in an #SBATCH line.\n"
    )
    opened = image(facts.image.name, facts.image.path) if facts.image else ""
    hook, goes = facts.site.nccl.annotations, "~/.edf, or a folder of EDF_PATH"
    if hook:
        variables = dict(facts.site.nccl.env)
        if not facts.site.nccl.single_node and variables.pop(NET, ""):
            head += f"# On several nodes also {NET}={facts.site.nccl.env[NET]}; on one the site wants none.\n"
        text = edf(opened, (), variables, cxi=True, annotations=hook)
        return (ExportFile(f"{name}.toml", head + text, goes),)
    made = carried(facts)
    mounts = [(made.folder, made.place, True), *((d, d, False) for d in made.devices)]
    files = edfs(name, head, edf(opened, mounts, made.env), made)
    where = "run it where the ranks run; the folder must be on a file system that they see"
    return (*files, stage_script(facts, made, f"the environment `{name}`", where))


def edfs(name: str, head: str, text: str, made: Carried) -> tuple[ExportFile, ...]:
    """An EDF, and one on top of it for jobs on several nodes, where those need more."""
    goes = "~/.edf, or a folder of EDF_PATH"
    base = ExportFile(f"{name}.toml", head + made.comment + text, goes)
    if not made.nodes:
        return (base,)
    about = f"# fairlead {__version__}: {name}, for jobs on several nodes.\n"
    env = "".join(f"{n} = {json.dumps(v, ensure_ascii=False)}\n" for n, v in made.nodes.items())
    more = f'{about}base_environment = ["{name}"]\n\n[env]\n{env}'
    return base, ExportFile(f"{name}-nodes.toml", more, goes)


EXPORT = Target("an environment definition file (EDF) of CSCS' Container Engine", files, nccl)
