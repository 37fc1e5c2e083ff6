"""Apptainer: what ``fairlead run`` would do, as variables for those who type ``apptainer exec``.

A file to source and a modulefile say the same. Apptainer reads APPTAINER_BINDPATH at each start, and
hands APPTAINERENV_NAME on as NAME.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from fairlead import __version__
from fairlead.export.lmod import lua
from fairlead.export.model import ExportFile, Facts, Target, unfit
from fairlead.export.plugin import carried
from fairlead.export.staged import Staged, lowest, stage_script, staged

_BINDPATH = 'export APPTAINER_BINDPATH="${APPTAINER_BINDPATH:+$APPTAINER_BINDPATH,}"'
# Options that have a variable, by which they reach an `apptainer exec` typed by the user.
_OPTIONS = {"--userns": "APPTAINER_USERNS", "--fakeroot": "APPTAINER_FAKEROOT"}


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """The file to source, the modulefile, and the staging script."""
    made = staged(facts, "apptainer")
    binds, env = _binds(facts, made), _variables(facts, made)
    name = facts.name or "fairlead-mpi"
    floor = lowest(facts)
    about = [
        f"fairlead {__version__}: {made.plan.planned_title} of {facts.node} in place of an image's MPI.",
        f"First run stage.sh; it makes {made.folder}.",
        *([f"An image must have {floor}."] if floor and not facts.image else []),
    ]
    lines = [
        *(f"# {line}" for line in about),
        "# Source it; then: mpiexec -n 2 apptainer exec IMAGE …",
    ]
    joined = ",".join(binds)
    lines.append(_BINDPATH + shlex.quote(joined))
    lines += [f"export {variable}={shlex.quote(value)}" for variable, value in env.items()]
    module = [
        *(f"-- {line}" for line in about),
        f"help({lua(' '.join(about))})",
        f"whatis({lua(f'Description: {made.plan.planned_title} for Apptainer containers')})",
        f"conflict({lua(name)})",
        *(f'append_path("APPTAINER_BINDPATH", {lua(bind)}, ",")' for bind in binds),
        *(f"setenv({lua(variable)}, {lua(value)})" for variable, value in env.items()),
    ]
    return (
        ExportFile("environment.sh", "\n".join(lines) + "\n", "source it in a job script"),
        ExportFile(
            f"{name}/{_version(made)}.lua",
            "\n".join(module) + "\n",
            "a folder of MODULEPATH, for Lmod",
        ),
        stage_script(facts, made, "Apptainer", "run it where the ranks run"),
    )


def nccl(facts: Facts) -> tuple[ExportFile, ...]:
    """The file to source, with NCCL's plugin, and the staging script."""
    made = carried(facts)
    binds = [f"{made.folder}:{made.place}:ro"]
    _check_binds(binds)
    option = {"nvidia": " --nv", "amd": " --rocm"}.get(facts.site.gpu.vendor, "")
    lines = [
        f"# fairlead {__version__}: NCCL's network plugin, {made.title}.",
        f"# First run stage.sh; it makes {made.folder}.",
        f"# Source it in the job; then: srun apptainer exec{option} IMAGE …",
        *made.comment.splitlines(),
        _BINDPATH + shlex.quote(",".join(binds)),
        *(_exported(n, v) for n, v in sorted(made.env.items())),
    ]
    if made.nodes:
        sets = [_exported(n, v) for n, v in sorted(made.nodes.items())]
        lines += [
            "# On several nodes NCCL must find this network, or end with an error; on one the site wants it unset.",
            "fairlead_nodes=${SLURM_JOB_NUM_NODES:-}",
            'if [ -z "$fairlead_nodes" ] && [ -r "${PBS_NODEFILE:-}" ]; then',
            '    fairlead_nodes=$(sort -u "$PBS_NODEFILE" | wc -l)',
            "fi",
            'if [ "${fairlead_nodes:-1}" -gt 1 ]; then',
            *(f"    {line}" for line in sets),
            "fi",
            "unset fairlead_nodes",
        ]
    return (
        ExportFile("environment.sh", "\n".join(lines) + "\n", "source it in a job script"),
        stage_script(facts, made, "Apptainer", "run it where the ranks run"),
    )


def _exported(name: str, value: str) -> str:
    """A variable of containers; what another file, such as the MPI's, has for the loader follows."""
    variable = f"APPTAINERENV_{name}"
    more = f'"${{{variable}:+:${variable}}}"' if name == "LD_LIBRARY_PATH" else ""
    return f"export {variable}={shlex.quote(value)}{more}"


def _version(made: Staged) -> str:
    return re.sub(r"[^0-9A-Za-z.]+", "-", made.plan.planned_title).strip("-").lower() or "1"


def _binds(facts: Facts, made: Staged) -> list[str]:
    binds = [f"{made.folder}:{made.place}:ro", *(f"{s}:{t}:ro" for s, t in made.over)]
    binds += facts.here.binds
    _check_binds(binds)
    return binds


def _check_binds(binds: Iterable[str]) -> None:
    for bind in binds:
        if re.search(r"[,\s\\]", bind) or bind.count(":") > 2:
            why = "`,` and `:` separate, and a module cannot tell"
            raise unfit(bind, bind, why, "APPTAINER_BINDPATH")


def _variables(facts: Facts, made: Staged) -> dict[str, str]:
    variables = {f"APPTAINERENV_{name}": value for name, value in sorted(made.variables.items())}
    options = facts.engine.options if facts.engine and facts.engine.kind == "apptainer" else ()
    words = iter(options)
    for word in words:
        if word == "--drop-caps":
            variables["APPTAINER_DROP_CAPS"] = next(words, "")
        elif word in _OPTIONS:
            variables[_OPTIONS[word]] = "1"
    return variables


EXPORT = Target("APPTAINER_BINDPATH and APPTAINERENV_… for `apptainer exec`", files, nccl)
