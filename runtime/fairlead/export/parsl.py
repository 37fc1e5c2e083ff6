"""Parsl: a module with a configuration, and the line of an app whose ranks run in an image.

Parsl's MPIExecutor gives each app some nodes of a block, and names them in variables of the app's process.
Source: parsl 2026.10, parsl/executors/high_throughput/mpi_executor.py, process_worker_pool.py, docs/userguide/mpi_apps.rst.
"""

from __future__ import annotations

import re

from fairlead import __version__
from fairlead.export.model import ExportFile, Facts, Target

_MODULE = '''\
"""Parsl apps whose ranks run in an image, on the host's MPI and proved. Written by fairlead @VERSION@ for @SITE@.

    import parsl
    from fairlead_parsl import config, launch

    @parsl.bash_app
    def run(line, parsl_resource_specification):
        return line

    with parsl.load(config()):
        line = launch("python3", "train.py", image="tensorflow")
        run(line, parsl_resource_specification={"num_nodes": 1, "ranks_per_node": 4}).result()
"""

import shlex

from parsl.config import Config
from parsl.executors import MPIExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import @PROVIDER@

FAIRLEAD = @FAIRLEAD@
OPTIONS = @OPTIONS@
IMAGE = @IMAGE@  # of apps that name none
_ENDS_WITH_PARENT = ["setpriv", "--pdeathsig", "TERM"]


def launch(*command, image=IMAGE, options=()):
    """The line of a bash_app that runs COMMAND on the ranks of its parsl_resource_specification.

    Args:
        options: of `fairlead run`.
    """
    if not image:
        raise ValueError("an app has no image: name one, launch(..., image=IMAGE), or export this module with --image")
    start = shlex.join([*_ENDS_WITH_PARENT, *FAIRLEAD, "run", *OPTIONS, *options])
    placed = '-n "$PARSL_NUM_RANKS" --hosts "$PARSL_MPI_NODELIST"'
    return f"exec {start} {placed} {shlex.quote(image)} -- {shlex.join(command)}"


def config(apps=1, run_dir="runinfo", **provider):
    """The site for `parsl.load`.

    Args:
        apps: that run at once in a block.
        provider: options of @PROVIDER@, as nodes_per_block or walltime.
    """
    executor = MPIExecutor(
        label="fairlead",
        max_workers_per_block=apps,
        mpi_launcher="@LAUNCHER@",
        # By this workers see that the interchange is gone, and end.
        heartbeat_period=2,
        heartbeat_threshold=10,
        provider=@PROVIDER@(**{@DEFAULTS@, **provider}),
    )
    # Parsl's own goes on when the script is killed, and with it all workers.
    executor.interchange_launch_cmd = [*_ENDS_WITH_PARENT, *executor.interchange_launch_cmd]
    return Config(executors=[executor], run_dir=run_dir)
'''
# MPIExecutor reads the nodes of a job; without a job, this machine is the only one.
_ALONE = 'export PBS_NODEFILE="$(mktemp)"; echo localhost >"$PBS_NODEFILE"'
_PROVIDERS = {"slurm": "SlurmProvider", "pbs": "PBSProProvider"}


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """The module ``fairlead_parsl``."""
    provider = _PROVIDERS.get(facts.site.scheduler.kind, "LocalProvider")
    defaults = ['"launcher": SimpleLauncher()', '"init_blocks": 1', '"max_blocks": 1']
    if provider == "LocalProvider":
        defaults.append(f'"worker_init": {_ALONE!r}')
    elif facts.site.scheduler.directives:
        defaults.append(f'"scheduler_options": {_directives(facts)!r}')
    values = {
        "VERSION": __version__,
        "SITE": facts.site.name,
        "PROVIDER": provider,
        "LAUNCHER": "srun" if provider == "SlurmProvider" else "mpiexec",
        "FAIRLEAD": repr(list(facts.fairlead)),
        "OPTIONS": repr(facts.options),
        "IMAGE": repr(facts.image.path if facts.image else ""),
        "DEFAULTS": ", ".join(defaults),
    }
    text = re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], _MODULE)
    return (ExportFile("fairlead_parsl.py", text, "next to your script, or in PYTHONPATH"),)


def _directives(facts: Facts) -> str:
    sign = "#SBATCH" if facts.site.scheduler.kind == "slurm" else "#PBS"
    return "\n".join(f"{sign} {words}" for words in facts.site.scheduler.directives)


EXPORT = Target("a configuration, and apps whose ranks run in an image, for Parsl", files)
