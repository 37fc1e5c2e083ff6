"""A process that launches trials: it has the plan, and forks once for each trial.

``launch_proved`` is for one launch at a time in a process. This process is a fork of the tuner without its threads; it
reads one JSON line for each trial that is to start or end, and writes one for each that is over. It ends with the tuner,
however that ends, and its trials end with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, Finding, Severity
from fairlead.base.paths import atomic_write
from fairlead.base.process import tied_to
from fairlead.base.serde import from_json
from fairlead.launch import launch as launching
from fairlead.launch.run_folder import exits
from fairlead.launchers.registry import LAUNCHERS
from fairlead.proof.verdict import Proof
from fairlead.session.model import LaunchOptions, Prepared
from fairlead.session.run import launch_proved
from fairlead.swap.model import Bind
from fairlead.tune.figures import OUTPUT, REPORTS

OUTCOME = "outcome.json"
LOCK = "lock"
_GRACE_S = 15.0  # for a launch to take down what it has started
# For ranks whose tuner has died, to come to the end that they may be at: a trial that has ended runs no second time.
_END_S = 2.0
_RECORD_S = 5.0  # for a launch whose ranks have all ended


@dataclass(frozen=True)
class Order:
    """One launch of a trial.

    Attributes:
        folder: of the trial.
        cores: of this machine that it is bound to; empty for all.
        binds: folders that the container sees at their own paths.
        hosts: that it runs on, by name; empty where the launcher chooses.
        again: nodes have been lost, and the scheduler may count their processors as used.
    """

    number: int
    folder: str
    command: tuple[str, ...]
    ranks: int
    env: dict[str, str]
    binds: tuple[str, ...]
    cores: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    again: bool = False
    watchdog: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How a trial's launch has ended.

    Attributes:
        code: 0 when every rank ended well.
        why: what went wrong; empty when nothing did.
        seconds: of the whole launch.
        proof: what was proved, in words.
        host: that is to blame, where one is.
    """

    code: int
    why: str = ""
    check: str = ""
    seconds: float = 0.0
    proof: str = ""
    host: str = ""


def outcome_of(folder: Path) -> Outcome | None:
    """How the trial in a folder has ended; None where that is not known."""
    try:
        known = bounded_json.loads((folder / OUTCOME).read_bytes())
        return Outcome(**{name: known[name] for name in Outcome.__dataclass_fields__})
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _settled(folder: Path) -> bool:
    """Waits until no process of an earlier attempt is left; whether that has come to a good end.

    A failure may be that of the job that both tuner and trial were in.
    """
    until = time.monotonic() + 2 * _GRACE_S
    with (folder / LOCK).open("ab") as lock:
        while time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:  # a file system without flock(2)
                time.sleep(_END_S + _RECORD_S)
                break
    outcome = outcome_of(folder)
    if outcome is not None and outcome.code:
        (folder / OUTCOME).unlink(missing_ok=True)
        return False
    return outcome is not None


class Launcher:
    """The tuner's side."""

    def __init__(self, prepared: Prepared):
        reads, orders = os.pipe()
        over, writes = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            _serve(prepared, parent, reads, writes)
        os.close(reads)
        os.close(writes)
        self._orders, self._over = orders, over
        self._rest = b""
        self._begun: dict[int, float] = {}

    def start(self, order: Order) -> None:
        """Starts a trial."""
        self._begun[order.number] = time.monotonic()
        self._send({"start": vars(order)})

    def left(self, folder: Path) -> bool:
        """Whether an earlier attempt of the trial in a folder has come to its end; waits for what is left of it."""
        return _settled(folder)

    def seconds(self, number: int) -> float:
        """For how long a trial has run."""
        return time.monotonic() - self._begun[number]

    def end(self, number: int) -> None:
        """Ends a trial early; it is over when :meth:`wait` says so."""
        self._send({"end": number})

    def _send(self, line: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # which wait() reports
            os.write(self._orders, json.dumps(line).encode() + b"\n")

    def wait(self, seconds: float) -> list[int]:
        """The trials that have ended, after at most ``seconds``.

        Raises:
            ChildProcessError: the process that launches trials is gone.
        """
        if not select.select([self._over], [], [], seconds)[0]:
            return []
        more = os.read(self._over, 65536)
        if not more:
            raise ChildProcessError(f"process {self._pid}")
        *lines, self._rest = (self._rest + more).split(b"\n")
        return [int(line) for line in lines]

    def close(self, keep: bool = False) -> None:
        """Ends all trials, and waits until nothing of them is left.

        Args:
            keep: of no meaning here: trials do not outlive this process.
        """
        os.close(self._orders)
        until = time.monotonic() + _GRACE_S + 5
        with suppress(ChildProcessError):
            while not os.waitpid(self._pid, os.WNOHANG)[0]:
                if time.monotonic() > until:
                    os.kill(self._pid, signal.SIGKILL)
                time.sleep(0.01)
        os.close(self._over)


def _serve(prepared: Prepared, parent: int, reads: int, writes: int) -> NoReturn:
    """The launching process, from its fork to its end."""
    try:
        os.setsid()
        tied_to(parent)()
        signal.signal(signal.SIGTERM, _ended)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in range(3, max(reads, writes) + 1):
            if number not in (reads, writes):
                with suppress(OSError):
                    os.close(number)  # a copy would keep the tuner's ends of the pipes open
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(null, number)
        # Another thread of the tuner may have been within the old ones.
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        _obey_all(prepared, reads, writes)
    finally:
        os._exit(0)


def _obey_all(prepared: Prepared, reads: int, writes: int) -> None:
    """Starts and ends trials as the tuner orders, until it closes its end."""
    running: dict[int, int] = {}  # number by process
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    reading = select.poll()
    reading.register(reads, select.POLLIN)
    reading.register(wakes, select.POLLIN)
    rest = b""
    try:
        while True:
            ready = {fd for fd, _ in reading.poll(1000)}
            if wakes in ready:
                os.read(wakes, 4096)
            for number in _reaped(running):
                os.write(writes, b"%d\n" % number)
            if reads not in ready:
                continue
            more = os.read(reads, 65536)
            if not more:
                return
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                _obey(bounded_json.loads(line), prepared, running)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        _end_all(running)


def _obey(asked: dict[str, Any], prepared: Prepared, running: dict[int, int]) -> None:
    if "end" in asked:
        for pid in [pid for pid, number in running.items() if number == asked["end"]]:
            os.kill(pid, signal.SIGTERM)
        return
    order = from_json(Order, asked["start"])
    parent = os.getpid()
    # Between the fork and the handler of its own, a signal would end the child as it ends this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    pid = os.fork()
    if pid:
        running[pid] = order.number
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGHUP})
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        orphaned = _Orphaned(order.ranks)
        signal.signal(signal.SIGHUP, orphaned.begin)
        signal.signal(signal.SIGALRM, orphaned.look)
        signal.signal(signal.SIGTERM, _ended)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tied_to(parent, signal.SIGHUP)()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGHUP})
        run_order(prepared, order, orphaned.started)
        code = 0
    except KeyboardInterrupt:
        code = 130
    finally:
        os._exit(code)


class _Orphaned:
    """Ends a trial whose tuner has died, unless its ranks are just ending by themselves."""

    def __init__(self, ranks: int):
        self._ranks, self._late = ranks, False
        self.folder: Path | None = None  # of the launch

    def begin(self, number: int, frame: object) -> None:
        """After the signal of the tuner's death."""
        signal.setitimer(signal.ITIMER_REAL, _END_S)

    def look(self, number: int, frame: object) -> None:
        """When the time is over."""
        ended = self.folder is not None and len(exits(self.folder)) >= self._ranks
        if self._late or not ended:
            raise KeyboardInterrupt
        self._late = True
        signal.setitimer(signal.ITIMER_REAL, _RECORD_S)

    def started(self, line: launching.CommandLine, folder: Path) -> None:
        """Notes the launch."""
        self.folder = folder


def run_order(
    prepared: Prepared,
    order: Order,
    on_start: Callable[[launching.CommandLine, Path], None] = lambda line, folder: None,
) -> None:
    """One launch, and the record of its end. The standard output of this process becomes the trial's."""
    if order.cores:
        os.sched_setaffinity(0, order.cores)
    folder = Path(order.folder)
    lock = (folder / LOCK).open("ab")
    with suppress(OSError):  # a file system without flock(2)
        fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends
    for name in (REPORTS, OUTPUT):
        (folder / name).unlink(missing_ok=True)
    begun = time.monotonic()
    notes: list[Finding] = []
    proofs: list[Proof] = []
    kind = prepared.plan.launcher.kind
    again = LAUNCHERS.get(kind).again if order.again and kind in LAUNCHERS else {}
    with (folder / OUTPUT).open("ab") as stream:
        null = os.open(os.devnull, os.O_RDWR)
        for number, fd in ((0, null), (1, stream.fileno()), (2, stream.fileno())):
            os.dup2(fd, number)
        options = LaunchOptions(
            on_proof=proofs.append, on_finding=notes.append, on_start=on_start, limit_s=order.watchdog,
            environ={**os.environ, **again}, binds=[Bind(path, path) for path in order.binds], env=order.env, stdout=stream,
            stderr=stream, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        outcome = _launched(prepared, order, options, proofs)
        for note in notes:
            stream.write(f"fairlead: {note.severity.value}: {note.what}; {note.why}\n".encode())
    with atomic_write(folder / OUTCOME, "w") as out:
        json.dump({**vars(outcome), "seconds": round(time.monotonic() - begun, 3)}, out)


def _launched(
    prepared: Prepared, order: Order, options: LaunchOptions, proofs: list[Proof]
) -> Outcome:
    try:
        prepared = _placed(prepared, order.hosts)
        done = launch_proved(prepared, order.command, order.ranks, options)
    except FairleadError as exc:
        first = exc.findings[0]
        return Outcome(
            int(exc.code) or 1, first.sentence, first.check, proof=_words(proofs), host=first.host
        )
    except OSError as exc:
        return Outcome(1, f"{exc.strerror}: {exc.filename}", "system", proof=_words(proofs))
    finding = launching.explain_exit(done.result)
    if finding is None and done.unproved and not done.worlds:
        doubt = done.unproved.doubt(order.command)
        if doubt and doubt.severity is Severity.ERROR:  # another MPI than the planned one
            return Outcome(int(done.result.code) or 122, doubt.what, doubt.check)
    why, check, host = (finding.what, finding.check, finding.host) if finding else ("", "", "")
    return Outcome(done.result.code, why, check, proof=_words(proofs), host=host)


def _placed(prepared: Prepared, hosts: tuple[str, ...]) -> Prepared:
    """The plan on these hosts."""
    if not hosts:
        return prepared
    plan = prepared.plan
    shape = replace(plan.request.shape, hosts=hosts, nodes=len(hosts))
    return replace(prepared, plan=replace(plan, request=replace(plan.request, shape=shape)))


def _words(proofs: list[Proof]) -> str:
    if not proofs:
        return ""
    proof = proofs[-1]
    first = proof.ranks[0] if proof.ranks else None
    return f"{len(proof.ranks)} ranks: {first.version}; {first.transport}" if first else ""


def _reaped(running: dict[int, int]) -> Iterator[int]:
    """The trials whose processes have ended."""
    while running:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if pid in running:
            yield running.pop(pid)


def _end_all(running: dict[int, int]) -> None:
    for pid in running:
        with suppress(OSError):
            os.kill(pid, signal.SIGHUP)
    until = time.monotonic() + _GRACE_S
    while running and time.monotonic() < until:
        for _ in _reaped(running):
            pass
        time.sleep(0.02)
    for pid in running:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _ended(number: int, frame: object) -> None:
    raise KeyboardInterrupt
