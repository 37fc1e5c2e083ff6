"""Commands that cannot form one world when each rank starts them, known before the launch."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fairlead.base.errors import Finding, Severity, error, info, warning
from fairlead.launchers.registry import LAUNCHERS
from fairlead.rendezvous.choose import frameworks, launcher_called
from fairlead.rendezvous.registry import FRAMEWORKS

# They start the processes of a job themselves, by ssh or by files that only they know. Source: their --help, and
# accelerate/commands/launch.py, deepspeed/launcher/runner.py, horovod/runner/launch.py.
_STARTERS = {
    "accelerate": "Accelerate",
    "accelerate.commands.launch": "Accelerate",
    "deepspeed": "DeepSpeed",
    "deepspeed.launcher.runner": "DeepSpeed",
    "horovodrun": "Horovod",
}

# As Debian, and MPICH and Open MPI themselves, name them too.
_NAMES = {"mpirun", "mpirun.mpich", "mpirun.openmpi", "orterun", "prterun"}
# mpiexec(1), mpirun(1), srun(1), aprun(1), jsrun(1): -n is the ranks of a job for each.
_ASKS = {"--version", "-version", "-V", "--help", "-help", "-h", "-info", "--info"}
_COUNTS = ("-n", "-np", "--n", "--np", "--ntasks")


def refused(image: str, command: Sequence[str], ranks: int, nodes: int) -> Iterator[Finding]:
    """Errors with the line that works.

    Args:
        nodes: on which the ranks run; 0 if that is unknown.
    """
    called = launcher_called(command)
    shown = shlex.join(command)
    if is_launcher(called) and (count := _count(command)) > 1:
        program = command[3:] if command[1] in _COUNTS and command[3:4] else ()
        words = shlex.join(program) if program and not program[0].startswith("-") else "PROGRAM"
        line = f"fairlead run -n {count} {image} -- {words}"
        yield error("rendezvous-launcher", called=called, command=shown, count=count, line=line)
    if ranks < 2:
        return
    if called in _STARTERS and not (called == "accelerate" and "launch" not in command[1:2]):
        line = f"fairlead run -n {ranks} {image} -- python3 {script_of(command)}"
        yield error(
            "rendezvous-starter", title=_STARTERS[called], command=shown, ranks=ranks, line=line
        )
    elif any(called in f.launchers for f in FRAMEWORKS) and nodes and ranks > nodes:
        processes = -(-ranks // nodes)
        at = next(i for i, word in enumerate(command) if word.rpartition("/")[2] == called)
        words = shlex.join(
            [*command[: at + 1], f"--nproc-per-node={processes}", *_without(command[at + 1 :])]
        )
        line = f"fairlead run -N {nodes} --ranks-per-node 1 {image} -- {words}"
        yield error("rendezvous-per-node", called=called, ranks=ranks, nodes=nodes, line=line)


def is_launcher(name: str) -> bool:
    """Whether a program is an MPI's launcher, or a scheduler's."""
    return name in _NAMES or any(name in driver.programs for driver in LAUNCHERS)


def within(
    image: str, texts: Iterable[Sequence[Sequence[str]]], ranks: int, nodes: int
) -> Iterator[Finding]:
    """What :func:`refused` says of commands in texts that each rank runs.

    Of several commands it is not known which of them run: those are warnings.

    Args:
        texts: the commands of each.
    """
    for text in texts:
        errors = {tuple(words): tuple(refused(image, words, ranks, nodes)) for words in text}
        sure = all(errors.values())
        for words, findings in errors.items():
            yield from (f if sure else replace(f, severity=Severity.WARNING) for f in findings)
            if not findings and ranks > 1 and _starts_ranks(words):
                called, shown = launcher_called(words), shlex.join(words)
                given = {"called": called, "command": shown, "image": image, "ranks": ranks}
                yield warning("rendezvous-launcher-within", **given)


def named(image: str, launchers: Mapping[str, str], ranks: int) -> Iterator[Finding]:
    """Warnings on launchers that stand in texts of which it is not known what they run.

    Args:
        launchers: by where each is named.
    """
    for where, called in launchers.items() if ranks > 1 else ():
        given = {"called": called, "where": where, "image": image, "ranks": ranks}
        yield warning("rendezvous-launcher-named", **given)


def _starts_ranks(words: Sequence[str]) -> bool:
    """Whether a command is an MPI's launcher with a program, however many ranks it starts."""
    called = launcher_called(words)
    return (
        is_launcher(called)
        and (called in _NAMES or called.startswith("mpiexec"))
        and bool(words[1:])
        and not _ASKS.intersection(words)
    )


def _count(command: Sequence[str]) -> int:
    """How many ranks an MPI's launcher is asked for; 0 if that is unknown.

    >>> _count(("mpiexec", "-ppn", "2", "-np", "4", "a.out")), _count(("srun", "--ntasks=8", "a.out"))
    (4, 8)
    """
    for word, after in itertools.pairwise((*command, "")):
        option, equals, value = word.partition("=")
        number = value if equals else after
        if option in _COUNTS and number.isdecimal():
            return int(number)
        if glued := re.fullmatch(r"-(?:n|np)(\d+)", word):
            return int(glued[1])
    return 0


def bare(
    mode: str, command: Sequence[str], ranks: int, rank_in: tuple[str, str], *, python: bool
) -> Finding | None:
    """What a line without fairlead leaves out, and how to add it; None where frameworks have nothing to find.

    Args:
        mode: of ``--rendezvous``.
        rank_in: the launcher's variables of a rank's number, and of that on its node.
        python: the image has a Python.
    """
    chosen = frameworks(mode, command, python=python)
    if not chosen or ranks < 2:
        return None
    rank, local = rank_in
    given = [f"RANK=${rank or 'NUMBER'}", f"WORLD_SIZE={ranks}"]
    given += [f"LOCAL_RANK=${local}"] if local else []
    given += ["MASTER_ADDR=HOST-OF-RANK-0", "MASTER_PORT=PORT"]
    words = f"exec {shlex.join(command)}"
    line = shlex.join(["sh", "-c", " ".join([*given, words])])
    titles = ", ".join(f.title for f in chosen)
    return info("rendezvous-bare", titles=titles, line=line)


def script_of(command: Sequence[str]) -> str:
    """The script of a launcher's command with its arguments.

    >>> script_of(("accelerate", "launch", "--num_processes", "2", "train.py", "--lr", "1"))
    'train.py --lr 1'
    """
    at = next((i for i, word in enumerate(command[1:], 1) if word.endswith(".py")), 0)
    return shlex.join(command[at:]) if at else "SCRIPT"


def _without(words: Sequence[str]) -> list[str]:
    """``words`` without the option for the number of processes."""
    kept: list[str] = []
    skip = False
    for word in words:
        option = word.partition("=")[0].replace("_", "-")
        if skip:
            skip = False
        elif option in ("--nproc-per-node", "--nnodes"):
            skip = "=" not in word
        else:
            kept.append(word)
    return kept
