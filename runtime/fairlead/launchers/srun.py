"""Slurm's ``srun``: a step of the current allocation, or a separate job.

Grammar: srun(1). What is said here wins over what sbatch or the user's shell left in SLURM_* variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from fairlead.base.process import run
from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, clock, given
from fairlead.launchers.pmi import connects, slurm_pmi

_BIND = {"none": "none", "core": "cores", "socket": "sockets", "numa": "ldoms"}
STEP = "step"  # the file of a run's folder that names its step
# What the first rank does before anything else, so that the step can be cancelled by its name.
NOTE_STEP = f'[ "${{SLURM_PROCID:-}}" = 0 ] && echo "$SLURM_JOB_ID.$SLURM_STEP_ID" >"$1/{STEP}"; '
_PROBE_S = 10.0


class Srun(Driver):
    kind = "srun"
    rank_in = ("SLURM_PROCID", "SLURM_LOCALID")
    programs = ("srun",)
    title = "Slurm"
    prologue = NOTE_STEP
    scheduler = "slurm"
    # Slurm may keep a step for minutes when its first node has died, and its processors with it. Versions before 20.11
    # share them anyway, and ignore the variable.
    again = MappingProxyType({"SLURM_OVERLAP": "1"})

    def describe(
        self, program: str, speaks: AbiFamily, pmi: str, preferred_pmi: tuple[str, ...] = ()
    ) -> Launcher:
        pmi = pmi or slurm_pmi(speaks, pmi_offered(program), preferred_pmi)
        return Launcher(
            program,
            connects(pmi, speaks) if pmi else speaks,
            Path(program).name + (f" --mpi={pmi}" if pmi else ""),
            self.kind,
            pmi,
            folders=pmix_folders(program) if pmi.startswith("pmix") else (),
        )

    def inside(self, environ: Mapping[str, str]) -> bool:
        # Numbers from 2^32 - 8 on are of batch scripts, of salloc's shell and the like, which hold no processors.
        step = environ.get("SLURM_STEP_ID", "")
        return step.isdigit() and int(step) < 2**32 - 8

    def cancel(self, program: str, folder: Path, environ: Mapping[str, str]) -> None:
        """Ends what is left of a step whose first rank has noted its name in ``folder``."""
        with suppress(OSError):
            step = (folder / STEP).read_text("utf-8").strip()
            if re.fullmatch(r"\d+\.\d+", step):
                argv = (_program(program, "scancel"), "--signal=KILL", step)
                run(argv, environ=environ, timeout_s=_PROBE_S)

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        # A job script may have been sent with --export=NONE, and then srun passes nothing on.
        argv = [launcher.path, *launcher.options, "--export=ALL", *allocation_words(shape)]
        argv += given(("--mpi={}", launcher.pmi), ("--cpu-bind={}", _BIND.get(shape.bind)))
        return Words((*argv, *shape.extra, *inner))


LAUNCHER = Srun()


def allocation_words(shape: Shape) -> list[str]:
    """The options that srun, salloc and sbatch have in common."""
    return given(
        ("--ntasks={}", shape.ranks),
        ("--nodes={}", shape.nodes or len(shape.hosts)),
        ("--ntasks-per-node={}", shape.per_node),
        ("--cpus-per-task={}", shape.cores),
        ("--gpus-per-task={}", shape.gpus),
        ("--nodelist={}", ",".join(shape.hosts)),
        ("--time={}", clock(shape.time_s)),
        ("--account={}", shape.account),
        ("--partition={}", shape.partition),
    )


def pmi_offered(srun: str) -> tuple[str, ...]:
    """The kinds that ``srun --mpi=list`` names; empty when it does not answer in time."""
    ran = run((srun, "--mpi=list"), timeout_s=_PROBE_S)
    return pmi_listed(ran.stdout + ran.stderr)


def pmi_listed(text: str) -> tuple[str, ...]:
    r"""What ``srun --mpi=list`` names; its form has changed with its versions.

    >>> pmi_listed("srun: MPI types are...\nsrun: cray_shasta\nsrun: none")
    ('cray_shasta', 'none')
    >>> pmi_listed("MPI plugin types are...\n\tpmix\n\tpmi2\nspecific pmix plugin versions available: pmix_v4")
    ('pmix', 'pmi2', 'pmix_v4')
    """
    names: list[str] = []
    for line in text.partition("types are...")[2].splitlines():
        line = re.sub(r"^(srun:\s*)?(mpi/)?", "", line.strip())
        words = line.rpartition("available:")[2].replace(",", " ").split()
        names += words if "available:" in line or len(words) == 1 else ()
    return tuple(dict.fromkeys(name for name in names if re.fullmatch(r"\w+", name)))


def pmix_folders(srun: str) -> tuple[str, ...]:
    """Where Slurm's PMIx server keeps what ranks read: below slurmd's spool folder, and where mpi.conf says."""
    ran = run((_program(srun, "scontrol"), "show", "config"), timeout_s=_PROBE_S)
    return pmix_configured(ran.stdout)


def _program(srun: str, name: str) -> str:
    """Another of Slurm's programs: the one next to srun, else the one on PATH."""
    path = Path(srun).with_name(name)
    return str(path) if path.exists() else name


def pmix_configured(text: str) -> tuple[str, ...]:
    r"""The same, from what ``scontrol show config`` prints. A name for each node (``%n``, ``%h``) is left off.

    >>> pmix_configured("SlurmdSpoolDir          = /var/spool/slurm/%n\nPMIxCliTmpDirBase = (null)")
    ('/var/spool/slurm',)
    """
    folders = re.findall(r"^(?:SlurmdSpoolDir|PMIxCliTmpDirBase)\s*= (/\S*)$", text, re.MULTILINE)
    whole = [re.sub(r"/[^/]*%.*", "", folder) or "/" for folder in folders]
    return tuple(dict.fromkeys(folder for folder in whole if folder != "/"))
