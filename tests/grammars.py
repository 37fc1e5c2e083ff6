"""What launchers and schedulers accept, by their documentation: words in, values out, or an error.

Only options that the sources name are here, so a word that fairlead makes up is an error. Each parser gives the
words of the command, which must follow the options, as ``inner``. Sources:

* srun, sbatch, salloc: the manual pages of Slurm 22.05 (the tests of tests/system run the real ones).
* mpiexec of Hydra: mpiexec(1) of MPICH. mpirun: mpirun(1) of Open MPI 5.0.
* PALS: ALCF's user guides, "Running Jobs" of Polaris and Crux: -n, --ppn, --depth, --cpu-bind, --hosts.
* aprun: aprun(1) of CLE, as in ALCF's "Running Jobs on XC40": -n, -N, -d, -j, -cc, -L.
* jsrun: "jsrun command", IBM Job Step Manager 10.1; OLCF's jsrun quick start guide.
* flux: flux-run(1) and flux-batch(1) of flux-core; RFC 36 for the directives.
* ibrun: TACC's user guides.
* qsub of PBS: qsub(1B) of OpenPBS. qsub of Cobalt: ALCF's "Cobalt Job Control" and "Running Jobs on XC40".
* bsub: bsub(1) of LSF 10.1, "span string", "affinity string"; -nnodes: OLCF's batch script examples.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from typing import Any


class Refused(Exception):
    """What a parser says of words that are not in its grammar."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Refused(f"{self.prog}: {message}")


def _matching(pattern: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} is not {pattern}")
        return text

    return check


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def _parser(name: str, *rows: tuple[Any, ...]) -> _Parser:
    made = _Parser(prog=name, add_help=False, allow_abbrev=False)
    for *flags, kind in rows:
        if kind is None:
            made.add_argument(*flags, action="store_true")
        else:
            made.add_argument(*flags, type=kind)
    return made


HOST = r"[\w.-]+"
HOSTS = _matching(rf"{HOST}(,{HOST})*")
COUNTED = _matching(rf"{HOST}:\d+(,{HOST}:\d+)*")
NAME = _matching(r"[\w.@+:/-]+")
_SLURM = (
    ("-n", "--ntasks", _count),
    ("-N", "--nodes", _count),
    ("--ntasks-per-node", _count),
    ("-c", "--cpus-per-task", _count),
    ("--gpus-per-task", _count),
    ("-t", "--time", _matching(r"(\d+-)?\d+:\d\d:\d\d")),
    ("-A", "--account", NAME),
    ("-p", "--partition", NAME),
)
LAUNCHERS: dict[str, _Parser] = {
    "srun": _parser(
        "srun", *_SLURM, ("--export", NAME), ("--mpi", NAME), ("-w", "--nodelist", HOSTS),
        ("--cpu-bind", _matching("none|cores|sockets|ldoms|threads")),
    ),
    "hydra": _parser(
        "mpiexec", ("-n", _count), ("-ppn", _count), ("-hosts", COUNTED),
        ("-bind-to", _matching(r"none|(core|socket|numa|hwthread)(:\d+)?")),
    ),
    "openmpi": _parser(
        "mpirun", ("-n", _count), ("--host", COUNTED),
        ("--map-by", _matching(r"(ppr:\d+:node|slot|core|node)(:PE=\d+)?")),
        ("--bind-to", _matching("none|core|package|numa|hwthread")),
    ),
    "pals": _parser(
        "mpiexec", ("-n", _count), ("--ppn", _count), ("--depth", _count), ("--hosts", HOSTS),
        ("--cpu-bind", _matching("none|core|socket|numa|thread|depth")),
    ),
    "aprun": _parser(
        "aprun", ("-n", _count), ("-N", _count), ("-d", _count), ("-j", _count), ("-L", HOSTS),
        ("-cc", _matching("none|cpu|numa_node|depth")),
    ),
    "jsrun": _parser(
        "jsrun", ("-n", _count), ("-a", _count), ("-c", _count), ("-g", _matching(r"\d+")),
        ("-r", _count), ("-b", _matching(r"none|rs|packed:\d+")),
    ),
    "flux": _parser(
        "flux run", ("-n", "--ntasks", _count), ("-N", "--nodes", _count),
        ("-c", "--cores-per-task", _count), ("-g", "--gpus-per-task", _count),
        ("-t", "--time-limit", _matching(r"\d+(\.\d+)?(ms|s|m|h|d)?")), ("-B", "--bank", NAME),
        ("-q", "--queue", NAME), ("--requires", _matching(rf"hosts?:{HOST}(,{HOST})*")),
    ),
    "image": _parser("mpiexec", ("-n", _count)),  # what every one of them takes
    "ibrun": _parser("ibrun", ("-n", _count), ("-o", _matching(r"\d+"))),
}  # fmt: skip
LAUNCHERS["flux"].add_argument(
    "-o",
    dest="options",
    action="append",
    type=_matching(
        "pmi=(simple|pmix|off)|cpu-affinity=(on|off|per-task)|gpu-affinity=(on|off|per-task)"
    ),
)
for _made in LAUNCHERS.values():
    _made.add_argument("inner", nargs=argparse.REMAINDER)

_ARRAY = r"\d+-\d+(:\d+)?(%\d+)?"
_CHUNK = r"\d+(:(ncpus|mpiprocs|ngpus|ompthreads)=\d+)*"
DIRECTIVES: dict[str, _Parser] = {
    "slurm": _parser(
        "sbatch", *_SLURM, ("-J", "--job-name", NAME), ("-a", "--array", _matching(_ARRAY)),
        ("--requeue", None), ("--no-requeue", None), ("-o", "--output", str), ("-C", "--constraint", str),
        ("--exclusive", None), ("-q", "--qos", NAME), ("--signal", _matching(r"(B:)?USR1@\d+")), ("--no-kill", None),
    ),
    "pbs": _parser(
        "qsub", ("-N", _matching(r"[A-Za-z][\w.+-]{0,229}")), ("-A", NAME), ("-q", NAME),
        ("-J", _matching(_ARRAY)), ("-r", _matching("y|n")), ("-j", _matching("oe|eo|n")), ("-o", str),
    ),
    "lsf": _parser(
        "bsub", ("-J", _matching(r"[A-Za-z0-9_.-]+(\[\d+-\d+(:\d+)?\](%\d+)?)?")),
        ("-n", _count), ("-nnodes", _count), ("-W", _matching(r"\d+:[0-5]\d")), ("-P", NAME), ("-q", NAME),
        ("-r", None), ("-rn", None), ("-o", str), ("-alloc_flags", str),
        ("-gpu", _matching(r"num=\d+(/(task|host))?")),
    ),
    "flux": _parser(
        "flux batch", ("-n", "--nslots", _count), ("-N", "--nodes", _count),
        ("-c", "--cores-per-slot", _count), ("-g", "--gpus-per-slot", _count),
        ("-t", "--time-limit", _matching(r"\d+(\.\d+)?(ms|s|m|h|d)?")), ("-B", "--bank", NAME),
        ("-q", "--queue", NAME), ("--job-name", NAME), ("--output", str),
    ),
    "cobalt": _parser(
        "qsub", ("-n", _count), ("-t", _matching(r"\d+|\d+:\d\d:\d\d")), ("-A", NAME), ("-q", NAME),
        ("-O", str), ("--jobname", NAME), ("--attrs", _matching(r"\w+=[\w,]+(:\w+=[\w,]+)*")),
    ),
}  # fmt: skip
DIRECTIVES["pbs"].add_argument(
    "-l",
    dest="resources",
    action="append",
    type=_matching(
        rf"select={_CHUNK}(\+{_CHUNK})*|place=(scatter|pack|free)|walltime=\d+:\d\d:\d\d|filesystems=[\w:]+"
    ),
)
DIRECTIVES["lsf"].add_argument(
    "-R",
    dest="requirements",
    action="append",
    type=_matching(r"span\[(ptile=\d+|hosts=1)\]|affinity\[core\(\d+\)\]"),
)
SENTINELS = {
    "slurm": "#SBATCH",
    "pbs": "#PBS",
    "lsf": "#BSUB",
    "flux": "# flux:",
    "cobalt": "#COBALT",
}


def launcher(kind: str, words: tuple[str, ...]) -> argparse.Namespace:
    """The values of a launcher's command line, without its program.

    Raises:
        Refused: it is not in the grammar.
    """
    if kind == "flux":
        if words[:1] != ("run",):
            raise Refused("flux: no `run`")
        words = words[1:]
    return LAUNCHERS[kind].parse_args(list(words))


def directives(kind: str, script: str) -> argparse.Namespace:
    """The values of a script's directives, read as that scheduler reads them: the lines with its sentinel,
    up to the first line that is not a comment; LSF's everywhere.

    Raises:
        Refused: one is not in the grammar, or stands where it is not read.
    """
    sentinel, words, over = SENTINELS[kind], list[str](), False
    for line in script.splitlines()[1:]:
        if line.startswith(sentinel):
            if over and kind != "lsf":
                raise Refused(f"{line!r} comes after a command and is not read")
            words += shlex.split(line.removeprefix(sentinel), comments=kind == "flux")
        elif line.strip() and not line.startswith("#"):
            over = True
    found = DIRECTIVES[kind].parse_args(words)
    if kind == "slurm" and found.requeue and found.no_requeue:
        raise Refused("both --requeue and --no-requeue")
    return found
