"""Slurm's ``srun``: a step of the current allocation, or a separate job.

Grammar: srun(1). What is said here wins over what sbatch or the user's shell left in SLURM_* variables.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, clock, given
from fairlead.launchers.pmi import connects, slurm_pmi

_BIND = {"none": "none", "core": "cores", "socket": "sockets", "numa": "ldoms"}
STEP = "step"  # the file of a run's folder that names its step
# What the first rank does before anything else, so that the step can be cancelled by its name.
NOTE_STEP = (
    '[ "${SLURM_PROCID:-}" = 0 ] && echo "$SLURM_JOB_ID.$SLURM_STEP_ID" >"$1/' + STEP + '"; '
)
_PROBE_S = 10.0


class Srun(Driver):
    """Slurm's own launcher."""

    kind = "srun"
    programs = ("srun",)
    title = "Slurm"
    prologue = NOTE_STEP
    scheduler = "slurm"

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

    def cancel(self, program: str, folder: Path, environ: Mapping[str, str]) -> None:
        cancel(program, folder, environ)

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


def answer(
    words: Sequence[str], environ: Mapping[str, str] | None = None, limit_s: float = _PROBE_S
) -> subprocess.CompletedProcess[str] | None:
    """What one of Slurm's programs says, however it ends; None when it does not in time, or is not there."""
    try:
        return subprocess.run(
            words,
            env=None if environ is None else dict(environ),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def pmi_offered(srun: str) -> tuple[str, ...]:
    """The kinds that ``srun --mpi=list`` names; empty when it does not answer in time."""
    done = answer((srun, "--mpi=list"))
    return pmi_listed(done.stdout + done.stderr) if done else ()


def pmi_listed(said: str) -> tuple[str, ...]:
    r"""What such a list names. Versions before 20 print ``srun: `` before every line, others a tab.

    >>> pmi_listed("MPI plugin types are...\n\tpmix\n\tpmi2\nspecific pmix plugin versions available: pmix_v4")
    ('pmix', 'pmi2', 'pmix_v4')
    """
    found = []
    for line in said.splitlines():
        line = line.removeprefix("srun: ").strip()
        if line.startswith("specific pmix"):
            found += re.findall(r"pmix_v\d+", line)
        elif re.fullmatch(r"[a-z][a-z0-9_]*", line):
            found.append(line)
    return tuple(dict.fromkeys(found))


def pmix_folders(srun: str) -> tuple[str, ...]:
    """Where Slurm's PMIx server keeps what ranks read: below slurmd's spool folder, and where mpi.conf says."""
    scontrol = Path(srun).with_name("scontrol")
    words = [str(scontrol) if scontrol.exists() else "scontrol", "show", "config"]
    done = answer(words)
    return pmix_configured(done.stdout) if done else ()


def pmix_configured(said: str) -> tuple[str, ...]:
    r"""The same, from what ``scontrol show config`` prints. A name for each node (``%n``, ``%h``) is left off.

    >>> pmix_configured("SlurmdSpoolDir          = /var/spool/slurm/%n\nPMIxCliTmpDirBase = (null)")
    ('/var/spool/slurm',)
    """
    found = re.findall(r"^(?:SlurmdSpoolDir|PMIxCliTmpDirBase)\s*= (/\S*)$", said, re.MULTILINE)
    whole = [re.sub(r"/[^/]*%.*", "", folder) or "/" for folder in found]
    return tuple(dict.fromkeys(folder for folder in whole if folder != "/"))


def cancel(srun: str, folder: Path, environ: Mapping[str, str]) -> None:
    """Ends what is left of a step whose first rank has noted its name in ``folder``."""
    with suppress(OSError, subprocess.TimeoutExpired):
        step = (folder / STEP).read_text().strip()
        if re.fullmatch(r"\d+\.\d+", step):
            scancel = Path(srun).with_name("scancel")
            words = [str(scancel) if scancel.exists() else "scancel", "--signal=KILL", step]
            subprocess.run(
                words, env=dict(environ), capture_output=True, timeout=_PROBE_S, check=False
            )
