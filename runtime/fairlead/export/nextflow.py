"""Nextflow: a configuration whose shell for scripts of processes is ``fairlead run``.

Nextflow starts a process as ``SHELL .command.sh`` in its folder. Its own containers stay off: they would start one process.
Source: nextflow, docs: "Process directives" (shell, beforeScript), "Configuration" (process scope).
"""

from __future__ import annotations

import shlex

from fairlead import __version__
from fairlead.export.model import ExportFile, Facts, Target, check_path

_SHELL = """\
#!/bin/sh
# Runs the script of a process in its image, by `fairlead run`. Written by fairlead {version} for {site}.
image=${{FAIRLEAD_IMAGE:-{image}}}
if [ -z "$image" ]; then
    echo "error: this process has no image" >&2
    echo "where: $PWD" >&2
    echo "why:   FAIRLEAD_IMAGE is not set, and the export names none" >&2
    echo "next:  beforeScript = 'export FAIRLEAD_IMAGE=IMAGE' for the process, or export again with --image IMAGE" >&2
    exit 1
fi
exec {start} -n "${{FAIRLEAD_RANKS:-1}}" "$image" -- bash -ue "$@"
"""
_CONFIG = """\
// Processes in containers, on the host's MPI and proved. Written by fairlead {version} for {site}.
process {{
    executor = '{executor}'
    shell = ['{shell}']
    // Every rank runs the whole script. Of one process:
    // withName: 'train' {{
    //     beforeScript = 'export FAIRLEAD_IMAGE=tensorflow FAIRLEAD_RANKS=4'
    //     cpus = 4
    // }}
}}
"""
_EXECUTORS = {"slurm": "slurm", "pbs": "pbspro", "lsf": "lsf", "flux": "flux", "gridengine": "sge"}


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """``nextflow.config`` and ``fairlead-process``."""
    shell = f"{facts.folder}/fairlead-process"
    check_path(shell, r"[\s'\\$]", "it is a word of a command without quotes", "Nextflow")
    start = [*facts.fairlead, "run", *facts.options]
    values = {
        "version": __version__,
        "site": facts.site.name,
        "executor": _EXECUTORS.get(facts.site.scheduler.kind, "local"),
        "shell": shell,
        "start": shlex.join(start),
        "image": shlex.quote(facts.image.path) if facts.image else "",
    }
    return (
        ExportFile(
            "nextflow.config", _CONFIG.format(**values), "nextflow run -c, or includeConfig"
        ),
        ExportFile(
            "fairlead-process",
            _SHELL.format(**values),
            "stays there: nextflow.config names it",
            0o755,
        ),
    )


EXPORT = Target("a configuration whose processes run in images, for Nextflow", files)
