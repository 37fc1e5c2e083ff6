"""One rank of one peer: ``python3 -m benchmarks.peers.worker --config FILE``; rank 0 writes what all measured.

Every rank trains two networks of the same kind: one by the peer's way, one without any communication. They take turns,
some steps each, begun together, so that other load affects both. The answers are checked before:
after the first step the optimizer's momenta are that step's gradients, so those of the peer's way must be the mean of
those that the ranks have by themselves, added up by MPI.
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib.metadata
import json
import math
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import nets
from benchmarks.peers import placement as cluster
from benchmarks.peers.nets import MOMENTUM, Training
from benchmarks.peers.results import Block, Launch, WorkerConfig
from fairlead.base.errors import FairleadError, Finding, Severity
from fairlead.base.serde import to_json
from fairlead.ml.train.events import EventLog
from fairlead.perf.measure.program import read_settings, write_document
from fairlead.perf.measure.rank_control import RankControl, kernel_id

_BEFORE_EXIT_S, _GRACE_S = 0.5, 20.0
_LIBRARIES = ("tensorflow-cpu", "tensorflow", "torch", "horovod", "numpy", "mpi4py")


class Watch:
    """Ends this rank when its time is up, and reports the line that it was in."""

    def __init__(self, log: EventLog, seconds: float, name: str):
        self._log, self._seconds, self._name = log, seconds, name
        self._main = threading.main_thread().ident
        self._timer = threading.Timer(seconds, self._over)
        self._timer.daemon = True
        self._timer.start()
        # No Python thread runs while a library holds the interpreter, or when the exit itself hangs.
        faulthandler.dump_traceback_later(seconds + _GRACE_S, exit=True)
        self.doing = "start-up"

    def stop(self) -> None:
        self._timer.cancel()

    def _over(self) -> None:
        frame = sys._current_frames().get(self._main or 0)
        lines = traceback.format_stack(frame)[-1:] if frame else []
        where = " ".join("".join(lines).split())
        self._log.write(
            "error",
            what=f"`{self._name}` did not end within {self._seconds:g} s",
            where=f"{os.uname().nodename}, {self.doing}",
            why=where or "unknown line",
            remedy="give it longer with --limit; `ranks.log` in the output folder has what the ranks printed",
            check="bench-limit",
        )
        os._exit(1)


@dataclass(frozen=True)
class Placed:
    """Where this rank is among all.

    Attributes:
        hosts: names by rank.
        cores: how many each rank has.
        crowded: ranks share cores.
    """

    hosts: tuple[str, ...]
    cores: tuple[int, ...]
    crowded: bool


def place(control: RankControl, most: int) -> Placed:
    """Pins this rank, to at most so many cores unless that is 0. Collective."""
    kernel = kernel_id()
    known = control.world.allgather((kernel, tuple(sorted(os.sched_getaffinity(0)))))
    own = cluster.place_of(control.rank, known)[: most or None]
    cluster.pin(own)
    placed = control.world.allgather((os.uname().nodename, kernel, own))
    pinned = [(k, core) for _, k, cores in placed for core in cores]
    return Placed(
        tuple(host for host, _, _ in placed),
        tuple(len(cores) for _, _, cores in placed),
        len(set(pinned)) < len(pinned),
    )


class Servers:
    """Parameter servers, each the child of a rank."""

    def __init__(self, control: RankControl, count: int, hosts: Sequence[str], of: Path):
        """Starts them; collective. They run on any core that their rank may use. ``of`` only shows in `ps`."""
        self._control, self._hosts = control, cluster.names(hosts)
        self._holders = cluster.holders(hosts, count)
        mine = [number for number, rank in enumerate(self._holders) if rank == control.rank]
        words = [sys.executable, "-m", "benchmarks.peers.parameter_server"]
        self._own = {
            number: subprocess.Popen(
                [*words, str(number), str(of)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in mine
        }

    def cluster(self) -> dict[str, list[str]]:
        """HOST:PORT by job, with the servers running. Collective; after TensorFlow was imported."""
        world = self._control.world
        ports = {number: self._heard(number) for number in self._own}
        every = {n: port for part in world.allgather(ports) for n, port in part.items()}
        workers = world.allgather(cluster.free_port())
        addresses = {
            "worker": [f"{host}:{port}" for host, port in zip(self._hosts, workers, strict=True)],
            "ps": [f"{self._hosts[rank]}:{every[n]}" for n, rank in enumerate(self._holders)],
        }
        for number, process in self._own.items():
            assert process.stdin is not None
            process.stdin.write(json.dumps(addresses) + "\n")
            process.stdin.flush()
            self._heard(number)
        self._control.quiet_barrier()
        return addresses

    def _heard(self, number: int) -> str:
        process = self._own[number]
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            raise RuntimeError(
                f"parameter server {number} ended with {process.wait()}; its output is above"
            )
        return line

    def end(self) -> None:
        for process in self._own.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


class Rank:
    """What this process does for one launch of a peer. Every method is collective."""

    def __init__(self, config: WorkerConfig, control: RankControl, watch: Watch, log: EventLog):
        self._config, self._control, self._watch, self._log = config, control, watch, log
        self._servers: Servers | None = None
        self._ends: list[Callable[[], None]] = [control.close]
        self.backend = ""

    def run(self) -> Launch | None:
        """The whole launch, on rank 0; None elsewhere."""
        config, control = self._config, self._control
        begun = time.monotonic()
        if config.servers:  # before it is pinned: a server may use every core
            hosts = control.world.allgather(os.uname().nodename)
            self._servers = Servers(control, config.servers, hosts, config.out)
        placed = place(control, config.cores)
        if config.servers or config.way == "mirrored":
            cluster.require_names(placed.hosts)
        self._watch.doing = "building the networks"
        base, own = self._trainings(placed)
        self._watch.doing = "checking the answers"
        error, apart = self._answers(base, own)
        base.step()
        own.step()
        own.settle()
        blocks = self._blocks(base, own)
        self._watch.doing = "comparing the weights"
        control.quiet_barrier()
        digest = hashlib.sha256(b"".join(a.tobytes() for a in own.weights())).hexdigest()
        digests = control.world.gather(digest)
        updates = own.updates() if own.updates else None
        control.quiet_barrier()
        if digests is None:
            return None
        expected = self._steps_taken() * control.size if own.updates else None
        return Launch(
            blocks=blocks,
            error=error,
            apart=apart,
            alike=len(set(digests)) == 1,
            updates=updates,
            expected_updates=expected,
            hosts=placed.hosts,
            cores=placed.cores,
            crowded=placed.crowded,
            backend=self.backend,
            versions=_versions(),
            load=os.getloadavg()[0],
            seconds=time.monotonic() - begun,
        )

    def _steps_taken(self) -> int:
        """By each rank, of the peer's way: one that is checked, one to warm up, the blocks with a lead-in each."""
        return 2 + self._config.blocks * (1 + self._config.steps)

    def _trainings(self, placed: Placed) -> tuple[Training, Training]:
        """Without communication, and by the peer's way."""
        config, rank = self._config, self._control.rank
        key, task = config.model, nets.SIZES[config.size][config.model]
        cores = placed.cores[rank]
        if config.framework == "torch":
            return self._torch(key, task, cores)
        from benchmarks.peers import steps_tensorflow as steps

        steps.use_threads(cores)
        if config.way == "mirrored":
            hosts, world = cluster.names(placed.hosts), self._control.world
            ports = world.allgather(cluster.free_port())
            workers = [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]
            strategy = steps.mirrored_strategy(workers, rank)
            base = steps.alone(steps.Network(key, task, rank))
            return base, steps.mirrored(steps.Network(key, task, rank), strategy)
        base = steps.alone(steps.Network(key, task, rank))
        if config.way == "ps":
            from benchmarks.peers.parameter_server import Worker

            assert self._servers is not None
            worker = Worker(self._servers.cluster(), rank, cores)
            batch = steps.batch_of(task, rank)
            return base, worker.training(key, task, batch, base.weights())
        net = steps.Network(key, task, rank)
        if config.way in ("horovod", "horovod-grouped"):
            import horovod.tensorflow as hvd

            training = steps.horovod(net, grouped=config.way == "horovod-grouped")
            self._ends.insert(0, hvd.shutdown)
            return base, training
        if config.way == "none":
            return base, steps.alone(net)
        self._use_comm()
        ours = {"fairlead": steps.synchronous, "delayed": steps.delayed}
        return base, ours[config.way](net)

    def _torch(self, key: str, task: nets.Task, cores: int) -> tuple[Training, Training]:
        import torch

        from benchmarks.peers.steps_torch import training

        torch.set_num_threads(cores)
        rank, way = self._control.rank, self._config.way
        if way != "none":
            from fairlead.comm.torch import init_process_group

            self._use_comm()  # by which the ranks find each other; Gloo moves the gradients
            init_process_group()
        return training(key, task, "none", rank), training(key, task, way, rank)

    def _use_comm(self) -> None:
        from fairlead import comm

        self.backend = comm.init().backend
        self._ends = [self._control.world.Free, comm.finalize]  # which ends MPI

    def _answers(self, base: Training, own: Training) -> tuple[float | None, float | None]:
        """How far the first means are off, and how far apart the ranks' gradients are; as parts of the largest
        element. None: nothing was communicated."""
        import numpy as np

        world, size = self._control.world, self._control.size
        base.step()
        if size == 1 or self._config.way == "none":
            own.step()
            return None, None
        weights = [1.0 / size] * size
        if self._config.servers:
            # One after the other: what the servers have added up then is known.
            weights = [MOMENTUM ** (size - 1 - rank) for rank in range(size)]
            for turn in range(size):
                if turn == self._control.rank:
                    own.step()
                self._control.quiet_barrier()
        else:
            own.step()
            own.settle()
        error = apart = largest = 0.0
        for mine, got in zip(base.momenta(), own.momenta(), strict=True):
            part = np.asarray(mine, np.float64) * weights[self._control.rank]
            right = np.empty_like(part)
            world.Allreduce(np.ascontiguousarray(part), right)
            largest = max(largest, float(np.abs(right).max()))
            error = max(error, float(np.abs(right - got).max()))
            apart = max(apart, float(np.abs(right - mine).max()))
        errors = world.allgather((error / largest, apart / largest))
        return max(e for e, _ in errors), max(a for _, a in errors)

    def _blocks(self, base: Training, own: Training) -> tuple[Block, ...]:
        config, world = self._config, self._control.world
        blocks = []
        for number in range(config.blocks):
            self._watch.doing = f"block {number + 1} of {config.blocks}"
            first = number % 2 == 0
            times = {}
            for mine in (first, not first):
                times[mine] = self._block(own if mine else base)
            blocks.append((times[False], times[True]))
            if self._control.rank == 0:
                self._log.write("block", block=number + 1, blocks=config.blocks)
        every = world.allgather(blocks)
        return tuple(
            Block(tuple(one[n][0] for one in every), tuple(one[n][1] for one in every))
            for n in range(config.blocks)
        )

    def _block(self, training: Training) -> float:
        """Seconds of a step of this rank, the mean of some, after one that leads in."""
        self._control.quiet_barrier()
        losses = [training.step()]
        begun = time.perf_counter()
        losses += [training.step() for _ in range(self._config.steps)]
        seconds = (time.perf_counter() - begun) / self._config.steps
        training.settle()
        if not all(map(math.isfinite, losses)):
            raise RuntimeError(f"the loss is {losses}")
        return seconds

    def end(self) -> None:
        """Ends servers and libraries; nothing can be computed afterwards."""
        self._watch.doing = "the end"
        if self._servers is not None:
            self._servers.end()
        for end in self._ends:
            end()


def _versions() -> dict[str, str]:
    versions = {}
    for name in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def main(words: Sequence[str]) -> None:
    config = read_settings(WorkerConfig, words)
    os.environ |= config.env
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    cluster.without_proxies()
    log = EventLog(config.events)
    watch = Watch(log, config.limit_s, config.peer)
    try:
        rank = Rank(config, RankControl(), watch, log)
        launch = rank.run()
        if launch is not None:
            write_document(config.out, to_json(launch))
        rank.end()
    except BaseException as exc:
        log.write("error", **_words(exc, watch.doing))
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # others wait in a collective: nothing is to be finalized
    watch.stop()
    # It ends as any program does: MPICH reports to its launcher from an exit handler that this rank is done, and a rank
    # that leaves by _exit would have the others killed.
    if config.way == "mirrored" and launch is not None:
        time.sleep(_BEFORE_EXIT_S)  # the others' clients watch this rank's service


def _words(exc: BaseException, doing: str) -> dict[str, Any]:
    """What an error says, as :mod:`fairlead.ml.train.host` reads it."""
    lines = [line for line in str(exc).strip().splitlines() if line.strip()]
    own = Finding(
        Severity.ERROR,
        f"a rank failed: {type(exc).__name__}",
        f"{os.uname().nodename}, {doing}",
        "\n".join(lines[:6]) or "it gave no reason",
        "see what the ranks printed: `ranks.log` in the output folder",
        "bench-rank",
    )
    finding = exc.findings[0] if isinstance(exc, FairleadError) else own
    return {k: getattr(finding, k) for k in ("what", "where", "why", "remedy", "check")}


if __name__ == "__main__":
    main(sys.argv[1:])
