"""How ranks can find each other here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import answers, failed, settings
from fairlead.detect.model import PmiFact, Unknown
from fairlead.launchers.srun import pmi_listed
from fairlead.schedulers.slurm import slurm_conf

# Of a rank: what its launcher has set.
_VARIABLES = (
    ("PMIX_NAMESPACE", "pmix"),
    ("PALS_RANKID", "cray"),
    ("HYDI_CONTROL_FD", "hydra"),
    ("PMI_FD", "pmi1"),
)
_PLUGINS = (("cray_shasta", "cray"), ("cray", "cray"), ("pmi2", "pmi2"), ("pmix", "pmix"))


def probe(world: View) -> dict[str, Any]:
    facts = [PmiFact(f, "of this very rank", f"${v}") for v, f in _VARIABLES if v in world.environ]
    unknown: list[Unknown] = []
    if srun := world.which("srun"):
        ran = answers(world, {"": (srun, "--mpi=list")})[""]
        if plugins := pmi_listed(f"{ran.stdout}\n{ran.stderr}"):
            facts += _of_slurm(world, plugins)
        else:
            why = failed(ran) if ran.returncode else "`srun --mpi=list` names none"
            unknown.append(Unknown("PMI plugins of Slurm", why))
    facts += _of_cray(world)
    first = {fact.flavour: fact for fact in reversed(facts)}
    return {
        "pmi": tuple(fact for fact in facts if fact is first[fact.flavour]),
        "unknown": tuple(unknown),
    }


def _of_slurm(world: View, plugins: tuple[str, ...]) -> Iterator[PmiFact]:
    # Slurm comes with the plugin for Cray's PMI everywhere.
    cray = bool(world.access("/opt/cray", 0))
    conf = slurm_conf(world)
    default = settings((conf and world.read(conf)) or "", ("MpiDefault",)).get("MpiDefault", "")
    for prefix, flavour in _PLUGINS:
        if flavour == "cray" and not cray:
            continue
        names = [n for n in plugins if n == prefix or n.startswith(f"{prefix}_v")]
        if names:
            detail, evidence = ", ".join(names), "`srun --mpi=list`"
            if default in names:
                detail, evidence = f"{detail}, the default", f"{evidence}, {conf}"
            yield PmiFact(flavour, detail, evidence)


def _of_cray(world: View) -> Iterator[PmiFact]:
    for path in ("/var/run/palsd", "/run/palsd"):
        if world.access(path, 0):
            yield PmiFact("cray", "PALS", path)
    folders = ("/opt/cray/pe/pmi/*/lib", "/opt/cray/pe/lib64")
    if libraries := next(filter(None, (world.matching(f"{f}/libpmi.so*") for f in folders)), ()):
        yield PmiFact("cray", "Cray PMI's library", libraries[-1])
