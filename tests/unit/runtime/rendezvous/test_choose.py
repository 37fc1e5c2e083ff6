"""Which variables a command gets, and which commands are refused."""

from __future__ import annotations

import shlex

import pytest

from fairlead.base.errors import Severity
from fairlead.rendezvous import dead_ends
from fairlead.rendezvous.choose import frameworks
from fairlead.rendezvous.registry import FRAMEWORKS, modes

PLAIN = ("jax", "tf", "torch")


@pytest.mark.parametrize(
    ("mode", "command", "python", "names"),
    [
        ("auto", "python3 train.py", True, PLAIN),
        ("auto", "./train.sh", True, PLAIN),
        ("auto", "", True, PLAIN),
        ("auto", "./solver", False, ()),
        ("auto", "torchrun train.py", True, ("torchrun",)),
        ("auto", "/opt/venv/bin/torchrun train.py", True, ("torchrun",)),
        ("auto", "python3.11 -u -m torch.distributed.run train.py", True, ("torchrun",)),
        ("auto", "python3 torchrun", True, PLAIN),
        ("torch", "python3 train.py", True, ("torch",)),
        ("jax", "./train.sh", False, ("jax",)),
        ("none", "python3 train.py", True, ()),
        ("none", "torchrun train.py", True, ()),
    ],
)
def test_frameworks_of_a_command(
    mode: str, command: str, python: bool, names: tuple[str, ...]
) -> None:
    chosen = frameworks(mode, shlex.split(command), python=python)
    assert tuple(f.name for f in chosen) == names


def test_modes_are_those_of_the_issue() -> None:
    assert modes() == ("auto", "jax", "tf", "torch", "none")


def refused(command: str, ranks: int, nodes: int) -> str:
    """The line that is offered; empty when nothing is refused."""
    found = list(dead_ends.refused("image", shlex.split(command), ranks, nodes))
    assert len(found) < 2
    return found[0].remedy if found else ""


@pytest.mark.parametrize(
    ("command", "ranks", "nodes", "line"),
    [
        ("torchrun train.py", 2, 2, ""),
        ("torchrun --nproc-per-node 4 train.py", 1, 1, ""),
        ("torchrun train.py", 4, 0, ""),  # only the launcher knows where they run
        ("python3 train.py", 4, 1, ""),
        ("accelerate config", 2, 1, ""),
        ("accelerate launch train.py", 1, 1, ""),
        (
            "torchrun --nproc_per_node=2 --nnodes 2 train.py --lr 1", 8, 2,
            "fairlead run -N 2 --ranks-per-node 1 image -- torchrun --nproc-per-node=4 train.py --lr 1",
        ),
        (
            "python3 -m torch.distributed.run train.py", 2, 1,
            "fairlead run -N 1 --ranks-per-node 1 image -- python3 -m torch.distributed.run --nproc-per-node=2 train.py",
        ),
        (
            "accelerate launch --num_processes 2 train.py --lr 1", 2, 2,
            "fairlead run -n 2 image -- python3 train.py --lr 1",
        ),
        ("deepspeed --num_gpus 4 train.py", 4, 1, "fairlead run -n 4 image -- python3 train.py"),
        ("horovodrun -np 2 python train.py", 2, 1, "fairlead run -n 2 image -- python3 train.py"),
        ("python3 -m accelerate.commands.launch train.py", 2, 1, "fairlead run -n 2 image -- python3 train.py"),
        ("mpiexec -n 4 ./a.out -x", 2, 1, "fairlead run -n 4 image -- ./a.out -x; by the image's launcher: --launcher image"),
        ("/usr/bin/mpirun -np 4 python3 a.py", 1, 1, "fairlead run -n 4 image -- python3 a.py; by the image's launcher: --launcher image"),
        ("mpiexec.hydra -ppn 2 -n4 a.out", 2, 1, "fairlead run -n 4 image -- PROGRAM; by the image's launcher: --launcher image"),
        ("srun --ntasks=4 a.out", 2, 1, "fairlead run -n 4 image -- PROGRAM; by the image's launcher: --launcher image"),
        ("mpirun.openmpi -n 4 a.out", 2, 1, "fairlead run -n 4 image -- a.out; by the image's launcher: --launcher image"),
        ("mpiexec -n 1 a.out", 2, 1, ""),  # alone it may be: the proof decides
        ("mpiexec --version", 2, 1, ""),
        ("mpiexec", 2, 1, ""),
        ("mpiexec -n", 2, 1, ""),
        ("python3 -n 4", 2, 1, ""),
    ],
)  # fmt: skip
def test_launcher_of_a_framework_is_refused_where_it_would_start_its_own_world(
    command: str, ranks: int, nodes: int, line: str
) -> None:
    assert refused(command, ranks, nodes) == line


@pytest.mark.parametrize(
    ("text", "ranks", "severities"),
    [
        ("mpirun -n 4 solver in.txt", 1, ["error"]),
        ("mpirun -n 4 solver; srun -n 2 check", 2, ["error", "error"]),
        ("prepare; mpirun -n 4 solver", 2, ["warning"]),  # a condition may choose
        ("torchrun --nproc-per-node 4 train.py", 2, ["error"]),
        ("accelerate launch train.py", 2, ["error"]),
        ("mpirun solver", 2, ["warning"]),
        ("mpirun solver", 1, []),
        ("mpiexec -n 1 solver", 2, ["warning"]),
        ("mpirun --version", 2, []),
        ("flux resource list", 2, []),
        ("solver", 2, []),
    ],
)
def test_launcher_in_a_script_is_reported_and_refused_where_it_is_all_that_runs(
    text: str, ranks: int, severities: list[str]
) -> None:
    texts = [[shlex.split(line) for line in text.split(";")]]
    found = list(dead_ends.within("image", texts, ranks, 1))
    assert [f.severity for f in found] == severities
    assert all(f.what and f.where and f.why and "fairlead run" in f.remedy for f in found)


def test_launcher_that_a_text_names_is_a_warning_for_more_than_one_rank() -> None:
    [found] = dead_ends.named("image", {"/opt/app/mb": "mpirun"}, 2)
    assert found.severity is Severity.WARNING and found.where == "/opt/app/mb"
    assert found.what.startswith("mpirun ") and "fairlead run -n 2 image" in found.remedy
    assert list(dead_ends.named("image", {"/opt/app/mb": "mpirun"}, 1)) == []


def test_declarations_are_whole() -> None:
    for framework in FRAMEWORKS:
        assert framework.title and framework.why and framework.variables


def test_line_without_fairlead_comes_with_what_it_lacks() -> None:
    command = ("python3", "train.py", "--name", "a b")
    found = dead_ends.bare("auto", command, 2, ("PMI_RANK", "MPI_LOCALRANKID"), python=True)
    assert found and found.severity is Severity.INFO and "PyTorch" in found.what
    line = shlex.split(found.remedy.partition("as the command: ")[2])
    assert line[:2] == ["sh", "-c"]
    assert line[2].startswith(
        "RANK=$PMI_RANK WORLD_SIZE=2 LOCAL_RANK=$MPI_LOCALRANKID MASTER_ADDR="
    )
    assert shlex.split(line[2].partition(" exec ")[2]) == list(command)


@pytest.mark.parametrize(("mode", "ranks", "python"), [("none", 2, True), ("auto", 1, True), ("auto", 2, False)])  # fmt: skip
def test_line_without_frameworks_lacks_nothing(mode: str, ranks: int, python: bool) -> None:
    assert dead_ends.bare(mode, ("true",), ranks, ("", ""), python=python) is None
