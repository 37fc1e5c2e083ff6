"""How ranks can find each other here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import answers, failed, settings
from fairlead.detect.model import PmiFact, Unknown
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
    found: dict[str, PmiFact] = {}
    unknown: list[Unknown] = []
    for fact in _of_this_rank(world):
        found.setdefault(fact.flavour, fact)
    if srun := world.which("srun"):
        ran = answers(world, {"": (srun, "--mpi=list")})[""]
        plugins = parse_list(f"{ran.stdout}\n{ran.stderr}")
        if not plugins:
            unknown.append(
                Unknown(
                    "PMI plugins of Slurm",
                    failed(ran) if ran.returncode else "`srun --mpi=list` names none",
                )
            )
        for fact in _of_slurm(world, plugins):
            found.setdefault(fact.flavour, fact)
    for fact in _of_cray(world):
        found.setdefault(fact.flavour, fact)
    return {"pmi": tuple(found.values()), "unknown": tuple(unknown)}


def parse_list(text: str) -> tuple[str, ...]:
    """The plugins that ``srun --mpi=list`` names; it has written them in several ways, on either stream.

    >>> parse_list("srun: MPI types are...\\nsrun: cray_shasta\\nsrun: none")
    ('cray_shasta', 'none')
    >>> parse_list("MPI plugin types are...\\n\\tpmi2\\nspecific pmix plugin versions available: pmix_v4")
    ('pmi2', 'pmix_v4')
    """
    _, header, rest = text.partition("types are...")
    found: list[str] = []
    for line in rest.splitlines() if header else ():
        line = re.sub(r"^(srun:\s*)?(mpi/)?", "", line.strip())
        if "available:" in line:
            line = line.partition("available:")[2]
            found += [name for name in line.replace(",", " ").split() if re.fullmatch(r"\w+", name)]
        elif re.fullmatch(r"\w+", line):
            found.append(line)
    return tuple(dict.fromkeys(found))


def _of_this_rank(world: View) -> Iterator[PmiFact]:
    for variable, flavour in _VARIABLES:
        if variable in world.environ:
            yield PmiFact(flavour, "of this very rank", f"${variable}")


def _of_slurm(world: View, plugins: tuple[str, ...]) -> Iterator[PmiFact]:
    # Slurm comes with the plugin for Cray's PMI everywhere.
    cray = bool(world.access("/opt/cray", 0))
    conf = slurm_conf(world)
    default = (
        settings(world.read(conf) or "", ("MpiDefault",)).get("MpiDefault", "") if conf else ""
    )
    for prefix, flavour in _PLUGINS:
        if flavour == "cray" and not cray:
            continue
        names = [n for n in plugins if n == prefix or n.startswith(f"{prefix}_v")]
        if names:
            detail = ", ".join(names) + (", the default" if default in names else "")
            yield PmiFact(
                flavour, detail, "`srun --mpi=list`" + (f", {conf}" if default in names else "")
            )


def _of_cray(world: View) -> Iterator[PmiFact]:
    for path in ("/var/run/palsd", "/run/palsd"):
        if world.access(path, 0):
            yield PmiFact("cray", "PALS", path)
    libraries = world.matching("/opt/cray/pe/pmi/*/lib/libpmi.so*") or world.matching(
        "/opt/cray/pe/lib64/libpmi.so*"
    )
    if libraries:
        yield PmiFact("cray", "Cray PMI's library", libraries[-1])
