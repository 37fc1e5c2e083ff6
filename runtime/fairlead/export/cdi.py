"""CDI: a specification of the Container Device Interface, for `--device` of Podman, Apptainer and others.

A device carries mounts, variables and device nodes at once: ``--device fairlead/nccl=plugin``.
Source: cncf-tags/container-device-interface 05ae4b5, SPEC.md, schema/ and pkg/parser. Podman 4 reads 0.5.0 and nothing newer, so that
there are no annotations in it, for which 0.6.0 is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from fairlead.export.model import ExportFile, Facts, Target, check_name, unfit
from fairlead.export.plugin import carried
from fairlead.export.staged import stage_script, staged

_VERSION = "0.5.0"
_VENDOR = "fairlead"
_Mount = tuple[str, str, tuple[str, ...]]  # source, target, options
_INTO = "/etc/cdi, or /var/run/cdi; or a folder named by --cdi-spec-dir (Podman), --cdi-dirs (Apptainer)"
_SHOWN = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_WHERE = "run it where the ranks run"
# As the CDI's own parser has it.
_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """The specification with the MPI, and the staging script."""
    made = staged(facts, "cdi")
    name = facts.name or facts.label
    mounts: list[_Mount] = [(made.folder, made.place, _SHOWN)]
    mounts += [(source, target, _SHOWN) for source, target in made.over]
    mounts += [(p, p, ("nosuid", "nodev", "rbind", "rprivate")) for p in facts.here.binds]
    devices = {name: _edits(made.variables, mounts, facts.here.devices)}
    return (
        _specification("mpi", devices),
        stage_script(facts, made, f"the device {_VENDOR}/mpi={name}", _WHERE),
    )


def nccl(facts: Facts) -> tuple[ExportFile, ...]:
    """The specification with NCCL's plugin, one device more for jobs on several nodes, and the staging script."""
    made = carried(facts)
    name = facts.name or "plugin"
    mounts: list[_Mount] = [(made.folder, made.place, _SHOWN)]
    devices = {name: _edits(made.env, mounts, made.devices)}
    if made.nodes:
        devices[f"{name}-nodes"] = _edits({**made.env, **made.nodes}, mounts, made.devices)
    return (
        _specification("nccl", devices, made.job),
        stage_script(facts, made, f"the device {_VENDOR}/nccl={name}", _WHERE),
    )


def _edits(
    env: Mapping[str, str],
    mounts: Sequence[_Mount],
    devices: Sequence[str],
) -> dict[str, object]:
    for name, value in env.items():
        if re.search(r"[\0\n]", value):
            raise unfit(f"{name}={value}", value, "a variable is one line", "a CDI specification")
    edits: dict[str, object] = {
        "env": [f"{name}={value}" for name, value in sorted(env.items())],
        "mounts": [
            {"hostPath": source, "containerPath": target, "options": list(options)}
            for source, target, options in mounts
        ],
    }
    if devices:
        edits["deviceNodes"] = [{"path": path} for path in devices]
    return edits


def _specification(
    kind: str, devices: Mapping[str, Mapping[str, object]], job: Sequence[str] = ()
) -> ExportFile:
    for name in devices:
        why = "it begins and ends with a letter or a digit, with `_`, `-` and `.` between"
        check_name(name, _NAME, why, "CDI")
    document = {
        "cdiVersion": _VERSION,
        "kind": f"{_VENDOR}/{kind}",
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices.items()],
    }
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    more = f"; the job itself needs {' '.join(job)}" if job else ""
    return ExportFile(f"{_VENDOR}-{kind}.json", text, _INTO + more)


EXPORT = Target("a specification of the Container Device Interface, for `--device`", files, nccl)
