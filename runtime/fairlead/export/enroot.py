"""enroot, and pyxis over it: files for environ.d, mounts.d and hooks.d, and the staging script.

In /etc/enroot they hold for every container of the machine, in ~/.config/enroot for those of one user. The
hook hands the launcher's variables on: enroot gives a container nothing of the caller's environment.
Source: NVIDIA/enroot, doc/configuration.md, doc/image-format.md, src/runtime.sh,
conf/hooks/extra/50-slurm-pmi.sh; NVIDIA/pyxis, README.md.
"""

from __future__ import annotations

import shlex

from fairlead import __version__
from fairlead.export.model import ExportFile, Facts, Target, check_path, unfit
from fairlead.export.plugin import carried
from fairlead.export.staged import stage_script, staged

_HOOK = """\
#!/usr/bin/env bash
# What the launcher says to its ranks, for MPI in a container. fairlead @VERSION@.
set -euo pipefail
for name in $(compgen -e | grep -E '^(PMI|PMIX|PALS|SLURM|OMPI|HYDI)_' || :); do
    case ${!name} in
        *$'\\n'*) ;; # a line of the file is a variable
        *) printf '%s=%s\\n' "$name" "${!name}" >>"$ENROOT_ENVIRON" ;;
    esac
done
if [ -n "${PMIX_SERVER_TMPDIR-}" ]; then
    printf '%s x-create=dir,bind,rw,nosuid,noexec,nodev,private,nofail\\n' "$PMIX_SERVER_TMPDIR" >>"$ENROOT_MOUNTS"
fi
"""

_NODES = """\
#!/usr/bin/env bash
# What NCCL needs in jobs on several nodes: without its network it ends with an error. fairlead @VERSION@.
set -euo pipefail
if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then
@LINES@fi
"""


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """The files and the staging script."""
    made = staged(facts, "enroot")
    mounts = [
        (made.folder, made.place, "dir", ",ro"),
        *((s, t, "file", ",ro") for s, t in made.over),
    ]
    mounts += [(p, p, "auto", "") for p in (*facts.here.binds, *facts.here.devices)]
    name = facts.name or f"fairlead-{facts.label}"
    head = f"# fairlead {__version__}: {made.plan.planned_title} of {facts.node}. First run stage.sh.\n"
    into = "/etc/enroot/{} (every container), or ~/.config/enroot/{} (yours)"
    return (
        ExportFile(
            f"environ.d/50-{name}.env",
            "".join(_variable(n, v) for n, v in sorted(made.variables.items())),
            into.format("environ.d", "environ.d"),
        ),
        ExportFile(
            f"mounts.d/50-{name}.fstab",
            head + "".join(_mount(*mount) for mount in mounts),
            into.format("mounts.d", "mounts.d"),
        ),
        ExportFile(
            f"hooks.d/50-{name}-launcher.sh",
            _HOOK.replace("@VERSION@", __version__),
            into.format("hooks.d", "hooks.d") + "; enroot runs it only if it is executable",
            0o755,
        ),
        stage_script(facts, made, "enroot's mounts.d", "run it where the ranks run"),
    )


def nccl(facts: Facts) -> tuple[ExportFile, ...]:
    """The files with NCCL's plugin and the staging script."""
    made = carried(facts)
    name = facts.name or "fairlead-nccl"
    mounts = [(made.folder, made.place, "dir", ",ro"), *((d, d, "auto", "") for d in made.devices)]
    head = f"# fairlead {__version__}: NCCL's network plugin, {made.title}. First run stage.sh.\n"
    head += made.comment
    into = "/etc/enroot/{} (every container), or ~/.config/enroot/{} (yours)"
    several: tuple[ExportFile, ...] = ()
    if made.nodes:
        lines = "".join(
            f"    printf '%s\\n' {shlex.quote(_variable(n, v).rstrip())} >>\"$ENROOT_ENVIRON\"\n"
            for n, v in sorted(made.nodes.items())
        )
        script = _NODES.replace("@VERSION@", __version__).replace("@LINES@", lines)
        goes = into.format("hooks.d", "hooks.d") + "; enroot runs it only if it is executable"
        several = (ExportFile(f"hooks.d/51-{name}-nodes.sh", script, goes, 0o755),)
    return (
        ExportFile(
            f"environ.d/51-{name}.env",
            "".join(_variable(n, v) for n, v in sorted(made.env.items())),
            into.format("environ.d", "environ.d"),
        ),
        ExportFile(
            f"mounts.d/51-{name}.fstab",
            head + "".join(_mount(*mount) for mount in mounts),
            into.format("mounts.d", "mounts.d"),
        ),
        *several,
        stage_script(facts, made, "enroot's mounts.d", "run it where the ranks run"),
    )


def _variable(name: str, value: str) -> str:
    if "$" in value or "\n" in value:
        why = "`${…}` is the host's, and a line is a variable"
        raise unfit(f"{name}={value}", value, why, "environ.d")
    return f"{name}={value}\n"


def _mount(source: str, target: str, kind: str, more: str) -> str:
    for path in (source, target):
        why = "blanks separate the fields, `$` and `#` mean something"
        check_path(path, r"[\s$#]", why, "mounts.d")
    return f"{source} {target} none x-create={kind},rbind{more},nosuid,private 0 0\n"


EXPORT = Target("environ.d, mounts.d and hooks.d, also for pyxis", files, nccl)
