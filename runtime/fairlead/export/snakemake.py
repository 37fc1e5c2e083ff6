"""Snakemake: a profile under which every rule runs in its image, on the host's MPI and proved.

The resource ``shell_exec`` is the program that Snakemake gives a rule's command to, as ``PROGRAM -c COMMAND``; for a rule with
``container:`` the command begins with ``apptainer exec``. The exported program starts both by ``fairlead run``.
Source: snakemake 9, snakemake/shell.py, snakemake/deployment/singularity.py, docs/snakefiles/rules.rst ("Resources", "MPI").
"""

from __future__ import annotations

import json
import re

from fairlead import __version__
from fairlead.export.model import ExportFile, Facts, Target, check_path

_RULE = '''\
#!/usr/bin/env python3
"""Runs the command of a rule in its image, by `fairlead run`. Written by fairlead @VERSION@ for @SITE@.

Snakemake calls it as `fairlead-rule -c COMMAND`. A command that starts ranks, as `mpiexec -n 4 python3 train.py` or
`{resources.mpi} -n {resources.tasks} python3 train.py`, runs here with mpiexec, mpirun and srun meaning
`fairlead run`; any other is one process in the image.
"""

import os
import shlex
import sys

FAIRLEAD = @FAIRLEAD@
OPTIONS = @OPTIONS@
IMAGE = @IMAGE@  # of rules that name none
LAUNCHERS = ("mpiexec", "mpirun", "srun")
RANKS = """\
ranks() {
    local -a launch=()
    while [ $# -gt 0 ]; do
        case $1 in
        -n|-np|-N|--ntasks|--nodes) launch+=("${1/--ntasks/-n}" "$2"); shift 2 ;;
        --ntasks=*|--nodes=*) launch+=("${1/--ntasks/--ranks}"); shift ;;
        -*) echo "error: fairlead-rule does not know the option $1 of a launcher; it knows -n and -N" >&2; return 2 ;;
        *) break ;;
        esac
    done
    %s "${launch[@]}" %s -- "$@"
}
"""


def refuse(what, where, why, remedy):
    sys.exit(f"error: {what}\\nwhere: {where}\\nwhy:   {why}\\nnext:  {remedy}")


def contained(words):
    """The image, options for `fairlead run`, and the command of `apptainer exec`'s words; None if they are none."""
    while words and "=" in words[0]:
        words = words[1:]
    own = os.path.basename(sys.argv[0])
    if not words or words[0] not in ("apptainer", "singularity") or "exec" not in words or words[-3:-1] != [own, "-c"]:
        return None
    options, given = [], iter(words[words.index("exec") + 1 : -4])
    for word in given:
        name, equals, value = word.partition("=")
        if name in ("--home", "-H", "--bind", "-B", "--pwd"):
            value = value if equals else next(given)
            kept = {"--bind": "--bind", "-B": "--bind", "--pwd": "--workdir"}.get(name)
            options += [kept, value] if kept else []
        else:
            options.append(f"--engine-arg={word}")
    return words[-4], options, words[-1]


def main():
    command = sys.argv[-1]
    image, more, inner = contained(shlex.split(command)) or (IMAGE, [], command)
    if not image:
        refuse(
            "this rule has no image",
            command.strip().splitlines()[0] if command.strip() else "an empty command",
            "under fairlead's profile each rule runs in a container, and it names none",
            'add `container: "IMAGE"` to the rule; for a command of the host, `resources: shell_exec="bash"`',
        )
    start = [*FAIRLEAD, "run", *OPTIONS, *more]
    strict = "set -euo pipefail; "
    try:
        words = shlex.split(inner, comments=True)
    except ValueError:  # a shell may read what shlex does not
        words = inner.split()
    if not any(os.path.basename(word) in LAUNCHERS for word in words):
        words = [*start, "-n", "1", image, "--", "bash", "-c", strict + inner]
    else:
        ranks = RANKS % (shlex.join(start), shlex.quote(image))
        named = "".join(f'{name}() {{ ranks "$@"; }}\\n' for name in LAUNCHERS)
        words = ["bash", "-c", ranks + named + strict + inner]
    try:
        os.execvp(words[0], words)
    except FileNotFoundError:
        refuse("fairlead is not installed", words[0], "it is not on the PATH", "install it, or export the profile again")


main()
'''


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """``config.yaml`` and ``fairlead-rule``."""
    rule = f"{facts.folder}/fairlead-rule"
    check_path(rule, r"[\s'\"$]", "Snakemake evaluates it as an expression", "Snakemake")
    cluster = facts.site.scheduler.kind == "slurm"
    where = ["executor: slurm", "jobs: 20"] if cluster else ["cores: all"]
    config = [
        f"# Rules in containers, on the host's MPI and proved. Written by fairlead {__version__} for {facts.site.name}.",
        *where,
        "software-deployment-method: apptainer",
        "rerun-incomplete: true",
        "default-resources:",
        f"  - shell_exec='{rule}'",
        *(["  - tasks=1"] if cluster else []),
    ]
    values = {
        "VERSION": __version__,
        "SITE": facts.site.name,
        "FAIRLEAD": json.dumps(list(facts.fairlead)),
        "OPTIONS": json.dumps(facts.options),
        "IMAGE": json.dumps(facts.image.path if facts.image else ""),
    }
    text = re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], _RULE)
    return (
        ExportFile("config.yaml", "\n".join(config) + "\n", f"snakemake --profile {facts.folder}"),
        ExportFile("fairlead-rule", text, "stays there: config.yaml names it", 0o755),
    )


EXPORT = Target("a profile whose rules run in their images, for Snakemake", files)
