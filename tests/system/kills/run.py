"""A training of a bundled model under a real Slurm, killed at random again and again: does it end as if nothing had been?

``python -m tests.system.kills.run --kills 50 --out FILE`` as root; a FILE that exists is added to. Four nodes, each with a network, a /dev/shm and
processes of its own; the training has two ranks on two of them, and one node to spare. A failure comes a random time
after a training has got on. Each is recorded: what it was, what named it and when, where the training went on.

A node is killed with all that runs on it. Cables are pulled, and nodes die, where fairlead itself does not run, or else
Slurm's own requeue starts it again: then nothing is left to name the node but Slurm.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.system import hosts, netns, slurm
from tests.system.netns import Host
from tests.system.slurm import Cluster, waited

EVERY = 20  # steps between two checkpoints
NAMED_S = 30.0
_SETTINGS = """
FirstJobId={first}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL PriorityTier=10
"""
_EACH = 12  # kills of one training
_LIMIT_S = 480.0  # for a training to get on again; Slurm waits 2 minutes with a job whose first node has died


@dataclass
class Kill:
    """One failure.

    Attributes:
        kind, node: what failed, and where.
        step: the last step that was done before.
        resumed: from which step the training went on; None when it was not seen to.
        lost: steps done twice.
        named: the sentence that named it.
        named_s, resumed_s: seconds until it was named, and until the training was at work again.
        finished: the training was through before it was seen to go on.
    """

    kind: str
    node: str
    step: int
    resumed: int | None = None
    lost: int | None = None
    named: str = ""
    named_s: float | None = None
    resumed_s: float | None = None
    requeued: bool = False
    finished: bool = False


class Training:
    """A job that trains, as its files show it."""

    def __init__(self, cluster: Cluster, folder: Path, model: str, epochs: int):
        self.cluster, self.folder = cluster, folder
        self.log = folder / "log"
        self._events = folder / "out/run/train.events.jsonl"
        train = (
            sys.executable, "-m", "fairlead", "train", model, "-N", "2", "-n", "2", "--spares", "1", "--restarts", "99",
            "--exclude-failed", "--requeue", "8", "--resume", "--checkpoint-steps", str(EVERY), "--train-samples", "1000",
            "--batch", "8", "--epochs", str(epochs), "--max-seconds", "10000", "-o", folder / "out",
            "--image", hosts.image("tensorflow"),
        )  # fmt: skip
        script = folder / "job.sh"
        words = " ".join(map(str, train))
        script.write_text(
            "#!/bin/sh\n#SBATCH --nodes=3 --ntasks=3 --requeue --no-kill --open-mode=append\n"
            f"#SBATCH --output={self.log} --chdir={folder}\nexec {words}\n"
        )
        self.number = cluster.said("sbatch", "--parsable", script).strip()

    def events(self) -> list[dict[str, Any]]:
        found = []
        with suppress(OSError):
            for line in self._events.read_text().splitlines():
                with suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def steps(self) -> tuple[int, int]:
        """Where the present launch began, and how far it is; -1 where it has not begun."""
        begin = step = -1
        for event in self.events():
            if event["event"] == "setup":
                begin = step = -1
            elif event["event"] == "start":
                begin = step = event["begin"]
            elif event["event"] == "step":
                step = event["step"]
        return begin, step

    def launch(self) -> int:
        """Distinguishes the launches: for each the configuration is written anew, after the events are removed."""
        with suppress(OSError):
            return self._events.with_name("train.config.json").stat().st_mtime_ns
        return 0

    def text(self) -> str:
        with suppress(OSError):
            return self.log.read_text(errors="replace")
        return ""

    def job(self) -> dict[str, str]:
        return self.cluster.job(self.number)

    def over(self) -> bool:
        return self.job()["JobState"] in (
            "COMPLETED",
            "FAILED",
            "NODE_FAIL",
            "TIMEOUT",
            "CANCELLED",
        )

    def ranks(self) -> dict[str, int]:
        """The processes of the ranks, by the name of their node."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, StopIteration):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                config = bytes(self.folder / "out/run/train.config.json")
                if words[1:3] != [b"-m", b"fairlead.ml.train.worker"] or config not in words:
                    continue
                space = (entry / "ns/uts").readlink()
                for node, daemon in self.cluster.nodes.items():
                    if _child_space(daemon.pid, "uts") == space:
                        found[node] = int(entry.name)
        return found

    def batch_host(self) -> str:
        return self.job()["BatchHost"]


def _child_space(pid: int, kind: str) -> Path:
    """A namespace of what a node's outermost process has started."""
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not children:
            return Path(f"/proc/{pid}/ns/{kind}").readlink()
        pid = int(children[0])
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name in ("slurmd", "sh"):
            return Path(f"/proc/{pid}/ns/{kind}").readlink()


class Failures:
    """The kinds of failure. Each method inflicts one, and returns the node and what puts it right again."""

    KINDS = ("rank", "stop", "node", "link", "warning", "preemption")

    def __init__(self, cluster: Cluster, nodes: dict[str, Host], dice: random.Random):
        self._cluster, self._nodes, self._dice = cluster, nodes, dice

    def rank(self, training: Training) -> tuple[str, Callable[[], None]]:
        return self._signalled(training, signal.SIGKILL)

    def stop(self, training: Training) -> tuple[str, Callable[[], None]]:
        return self._signalled(training, signal.SIGSTOP)

    def _signalled(self, training: Training, number: int) -> tuple[str, Callable[[], None]]:
        node, pid = self._dice.choice(sorted(training.ranks().items()))
        os.kill(pid, number)
        return node, lambda: None

    def node(self, training: Training) -> tuple[str, Callable[[], None]]:
        node = self._dice.choice(sorted(training.ranks()))
        self._cluster.fail(node)
        return node, lambda: self._cluster.start(node)

    def link(self, training: Training) -> tuple[str, Callable[[], None]]:
        others = sorted(set(training.ranks()) - {training.batch_host()})
        node = self._dice.choice(others)
        self._nodes[node].link("down")
        return node, lambda: self._nodes[node].link("up")

    def warning(self, training: Training) -> tuple[str, Callable[[], None]]:
        self._cluster.said("scancel", "--batch", "--signal=USR1", training.number)
        return "", lambda: None

    def preemption(self, training: Training) -> tuple[str, Callable[[], None]]:
        words = ("--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null")
        number = self._cluster.said("sbatch", "--parsable", *words, "--wrap", "sleep 2").strip()
        return "", lambda: self._cluster.ended(number, 120) and None


def killed(
    training: Training, kind: str, failures: Failures, dice: random.Random, show: Callable[[str], None]
) -> Kill | None:  # fmt: skip
    """Inflicts a failure once the training has got on, and follows it until it is at work again.

    Returns:
        None when the training was over before.
    """
    least = dice.randint(1, 2 * EVERY)

    def ripe() -> bool:
        begin, step = training.steps()
        return training.over() or (
            begin >= 0 and step >= begin + least and len(training.ranks()) == 2
        )

    waited(ripe, _LIMIT_S, f"the training does not get on: {training.text()[-2000:]}")
    if training.over():
        return None
    before, restarts = training.text(), int(training.job()["Restarts"])
    _, step = training.steps()
    launch, begun = training.launch(), time.monotonic()
    node, right = getattr(failures, kind)(training)
    kill = Kill(kind, node, step)
    show(f"{kind} {node} after step {step}")

    def again() -> bool:
        text = training.text()[len(before) :]
        said = re.search(
            r"(?:after: (.*)|\[(?:node-lost|rank-\w+)\]: (.*)|(job \d+ is requeued))", text
        )
        if said and not kill.named:
            kill.named = next(filter(None, said.groups()))
            kill.named_s = round(time.monotonic() - begun, 1)
        job = training.job()
        kill.requeued = int(job.get("Restarts", "0")) > restarts
        is_new = training.launch() != launch
        begin, now = training.steps()
        if training.over():
            return True
        if is_new and 0 <= begin < now and (kill.named or kill.requeued):
            kill.resumed, kill.lost = begin, max(kill.step - begin, 0)
            return True
        return False

    if kind == "preemption":
        right()
    try:
        waited(again, _LIMIT_S, f"{kind} {node}: it does not go on")
    except AssertionError:
        show(training.text()[-3000:])
        training.cluster.said("scancel", training.number)
    if kind != "preemption":
        right()  # a node that comes back too soon is not known to have failed
    kill.resumed_s = round(time.monotonic() - begun, 1) if kill.resumed is not None else None
    show(f"  {json.dumps(asdict(kill))}")
    return kill


@contextmanager
def cluster() -> Iterator[tuple[Cluster, dict[str, Host]]]:
    """Slurm on four nodes with a network each, and its controller on a fifth."""
    with netns.switched(5) as every:
        *compute, control = every
        nodes = dict(zip(slurm.NODES, compute, strict=True))
        net = {host.name: ("nsenter", "--target", str(host.init), "--net", "--") for host in every}
        address = {host.name: f"10.77.0.{number}" for number, host in enumerate(every, 1)}
        where = {node: (address[host.name], net[host.name]) for node, host in nodes.items()}
        with slurm.slurm(
            net[control.name],
            address[control.name],
            where,
            settings=_SETTINGS.format(first=int(time.time()) % 60_000 * 1000),
        ) as made:
            yield made, nodes


def losses(folder: Path) -> list[tuple[int, float]]:
    """Step and loss of every step of a training that is through."""
    report = json.loads((folder / "out/run/train.result.json").read_text())
    return [(point["step"], point["loss"]) for point in report["loss"]]


def measure(
    kinds: list[str], seed: int, model: str, epochs: int, show: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:  # fmt: skip
    """One training without failures, and as many with them as the kinds need.

    Args:
        keep: called with the record after each training.
    Returns:
        The record: each failure, and whether each training's losses are those of the first.
    """
    dice = random.Random(seed)
    kills: list[Kill] = []
    equal: list[bool] = []
    kinds = list(kinds)

    def record() -> dict[str, Any]:
        return {
            "machine": {"cores": len(os.sched_getaffinity(0)), "system": os.uname().release},
            "model": model, "steps_between_checkpoints": EVERY, "seed": seed,
            "kills": [asdict(kill) for kill in kills], "trainings_equal": list(equal),
        }  # fmt: skip

    with cluster() as (made, nodes), tempfile.TemporaryDirectory(prefix="fairlead-kills-") as top:
        failures = Failures(made, nodes, dice)
        uncut = Path(top, "uncut")
        uncut.mkdir()
        training = Training(made, uncut, model, epochs)
        job = made.ended(training.number, 900)
        assert job["JobState"] == "COMPLETED", f"{job}: {training.text()}"
        show(f"uncut: {len(losses(uncut))} steps")
        number = 0
        while kinds:
            number += 1
            folder = Path(top, f"cut{number}")
            folder.mkdir()
            training = Training(made, folder, model, epochs)
            before = len(kills)
            for _ in range(min(_EACH, len(kinds))):
                kill = killed(training, kinds[0], failures, dice, show)
                if kill is None:
                    break
                kinds.pop(0)
                kills.append(kill)
                if kill.resumed is None:
                    break
            assert len(kills) > before, "the training was over before anything failed: --epochs"
            made.ended(training.number, 900)
            state = training.job()["JobState"]
            equal.append(state == "COMPLETED" and losses(folder) == losses(uncut))
            kills[-1].finished = kills[-1].resumed is None and state == "COMPLETED"
            keep(record())
            show(f"training {number}: {state}, losses {'equal' if equal[-1] else 'DIFFER'}")
            if not equal[-1]:
                show(training.text()[-6000:])
            made.idle(90)
    return record()


def chosen(count: int, seed: int) -> list[str]:
    """Kinds in random order, each about as often as the others."""
    dice = random.Random(seed)
    every = [Failures.KINDS[i % len(Failures.KINDS)] for i in range(count)]
    dice.shuffle(every)
    return every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="hepcnn")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--kinds", nargs="*", default=())
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    kinds = list(given.kinds) or chosen(given.kills, given.seed)
    before = json.loads(given.out.read_text()) if given.out and given.out.exists() else None

    def keep(record: dict[str, Any]) -> None:
        for key in ("kills", "trainings_equal") if before else ():
            record[key] = [*before[key], *record[key]]
        if given.out:
            given.out.write_text(json.dumps(record, indent=1) + "\n")

    measure(
        kinds, given.seed, given.model, given.epochs, lambda text: print(text, flush=True), keep
    )


if __name__ == "__main__":
    main()
