"""Launches that begin again after a failure, without the nodes that failed.

A restart is a launch of its own, in a folder of its own and proved again. What the ranks have saved is theirs to find:
``FAIRLEAD_RESTART`` counts the restarts for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from fairlead.base.errors import ExitCode, FairleadError, Finding, fail, info
from fairlead.base.paths import cache_dir
from fairlead.launch import launch as launching
from fairlead.launch import node_history
from fairlead.launch.guard import guarded
from fairlead.launch.node_history import short
from fairlead.launch.nodes import unreachable
from fairlead.launch.requeue import Requeue
from fairlead.launchers.model import Shape
from fairlead.launchers.registry import LAUNCHERS
from fairlead.schedulers.model import Allocation
from fairlead.schedulers.registry import down, find_allocation
from fairlead.session.model import Launched, LaunchOptions, Prepared
from fairlead.session.run import launch_proved

COUNT = "FAIRLEAD_RESTART"  # how many restarts there were before this launch, in the container
_SAME_JOB_S = 14 * 86400.0  # numbers of jobs are used again
_PAUSE_S = 1.0  # for the scheduler, to take back what the launch had
# Of the finding that ended a launch: another attempt would end with the same.
_HOPELESS = (ExitCode.USAGE, ExitCode.PREFLIGHT_REFUSED, ExitCode.PROOF_FAILED)
_NOT_FOUND = (126, 127)  # of a shell: the command is not there, or no program


@dataclass(frozen=True)
class Restarts:
    """How a launch outlives failures.

    Attributes:
        times: how many restarts there may be.
        exclude_failed: restarts leave out the node of the rank that failed first, too, not only nodes that are lost.
        spares: nodes of the allocation that wait for one to fail.
        requeue_s: requeue the job after the scheduler's warning, which comes so long before its end; 0 for never.
    """

    times: int = 0
    exclude_failed: bool = False
    spares: int = 0
    requeue_s: float = 0.0


class Launches(Protocol):
    """What launches a command, as :meth:`Attempts.launch` does."""

    def launch(self, command: Sequence[str], ranks: int, options: LaunchOptions) -> Launched: ...


class Placement:
    """The nodes of a launch and of its restarts.

    Attributes:
        left_out: nodes that are not used, by name, each with the reason.
    """

    def __init__(
        self,
        prepared: Prepared,
        allocation: Allocation | None,
        restarts: Restarts,
        left_out: Mapping[str, str],
        environ: Mapping[str, str] = os.environ,
    ):
        """
        Args:
            left_out: nodes not to use from the start, each with the reason.
        Raises:
            FairleadError: exit code 2; there are not as many nodes as ranks and spares need.
        """
        self.left_out: dict[str, str] = dict(left_out)
        self._last: list[str] = []  # nodes to use only where no others are left
        self._prepared, self._restarts = prepared, restarts
        self._allocation, self._environ = allocation, environ
        shape = prepared.plan.request.shape
        self._hosts = shape.hosts or (allocation.hosts if allocation else ())
        nodes = shape.nodes or max(len(self._hosts) - restarts.spares, 0)
        self._nodes = min(nodes, shape.ranks)
        self._job = allocation.job if allocation else ""
        self._chosen: tuple[str, ...] = ()
        if restarts.spares and self._nodes + restarts.spares > len(self._hosts):
            have = len(self._hosts)
            raise fail("restart-spares", nodes=self._nodes, spares=restarts.spares, have=have)
        if restarts.exclude_failed and self._job:
            for failure in node_history.failures(cache_dir()):
                if failure.job == self._job and time.time() - failure.time < _SAME_JOB_S:
                    self._use_last(failure.host)
        if restarts.spares or self.left_out or self._last:
            self._choose()

    @property
    def prepared(self) -> Prepared:
        """The plan with the nodes of the next launch."""
        if not self._chosen:
            return self._prepared
        plan = self._prepared.plan
        shape: Shape = replace(plan.request.shape, hosts=self._chosen, nodes=len(self._chosen))
        request = replace(plan.request, shape=shape)
        return replace(self._prepared, plan=replace(plan, request=request))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Their names; empty where the launcher chooses."""
        return self._chosen or self._prepared.plan.request.shape.hosts

    @property
    def unused(self) -> tuple[str, ...]:
        """Nodes that have failed and are not used."""
        failed = (*self.left_out, *self._last)
        return tuple(host for host in self._hosts if host in failed and host not in self._chosen)

    def note(self, failure: Finding) -> None:
        """Adds a failure to the history of its node; not what fails on somebody's own machine."""
        if failure.host and (self._job or failure.check == "node-lost"):
            node_history.note(cache_dir(), failure, self._job)

    def replace(self, failure: Finding) -> None:
        """Takes a node that is lost, or is to be left out, from the next launch.

        Raises:
            FairleadError: exit code 123; no node is left in its place.
        """
        if failure.check == "node-lost":
            self._leave_out(failure.host, failure.what)
            for host, why in self._gone().items():
                self._leave_out(host, why)
        elif failure.host and self._restarts.exclude_failed:
            self._use_last(failure.host)
        if self.left_out or self._last:
            self._choose()

    def _gone(self) -> dict[str, str]:
        """The nodes to which there is no way, and those that the scheduler counts as failed, spare ones too."""
        hosts = self.hosts or self._hosts
        out = unreachable(hosts, unresolved=False)
        return {**out, **down(self._allocation, self._environ, self._hosts)}

    def _named(self, host: str) -> str:
        """As the scheduler names it; empty where it is none of the job's."""
        return next((h for h in self._hosts if short(h) == short(host)), "")

    def _leave_out(self, host: str, why: str) -> None:
        if named := self._named(host):
            self.left_out.setdefault(named, why)

    def _use_last(self, host: str) -> None:
        if named := self._named(host):
            self._last = [*(other for other in self._last if other != named), named]

    def _choose(self) -> None:
        last = [host for host in self._last if host not in self.left_out]
        first = [host for host in self._hosts if host not in (*self.left_out, *last)]
        left = (*first, *last)  # of the last, the one that failed the longest ago comes first
        if len(left) < self._nodes:
            gone = ", ".join(f"{host} ({why})" for host, why in self.left_out.items())
            raise fail("restart-no-node", gone=gone, nodes=self._nodes, left=len(left))
        chosen = {*left[: self._nodes]}
        # In the scheduler's order, which some launchers rely on.
        self._chosen = tuple(host for host in self._hosts if host in chosen)


class Attempts:
    """The launches of one command, or of one training: each begins where the failures before it leave it. While it is
    entered, another node of the job watches this one."""

    def __init__(
        self,
        prepared: Prepared,
        restarts: Restarts,
        on_finding: Callable[[Finding], None],
        left_out: Mapping[str, str] = MappingProxyType({}),
        environ: Mapping[str, str] = os.environ,
    ):
        """
        Args:
            on_finding: called with each restart, and when the job is requeued.
            left_out: nodes not to use, each with the reason.
        Raises:
            FairleadError: exit code 2; there is no job to requeue, or it has too few nodes.
        """
        self._allocation = allocation = find_allocation(environ)
        self._restarts, self._on_finding, self._environ = restarts, on_finding, environ
        self._placement = Placement(prepared, allocation, restarts, left_out, environ)
        self._requeue = Requeue(allocation, restarts.requeue_s, environ, on_finding)
        self._failure: Finding | None = None
        self._hopeless = False
        self.count = 0
        self._guard = ExitStack()
        if restarts.requeue_s and not self._requeue.possible:
            where = allocation.title if allocation else "this shell is in no job"
            raise fail("requeue-impossible", where=where)

    @property
    def requeued(self) -> bool:
        """Whether the command goes on in another run of its job."""
        return self._requeue.done

    def __enter__(self) -> Attempts:
        if self._restarts.times:
            self._watch()
        return self

    def __exit__(self, *exc: object) -> None:
        self._guard.close()

    def _watch(self) -> None:
        """Starts the guard, on a node that has not failed."""
        self._guard.close()
        allocation = self._allocation
        if allocation:
            hosts = tuple(h for h in allocation.hosts if h not in self._placement.left_out)
            allocation = replace(allocation, hosts=hosts)
        self._guard.enter_context(guarded(allocation, self._environ))

    def launch(self, command: Sequence[str], ranks: int, options: LaunchOptions) -> Launched:
        """:func:`launch_proved`, on the nodes that are left.

        Raises:
            FairleadError: as that.
        """
        counted = {COUNT: str(self.count)} if self._restarts.times else {}
        env = {**options.env, **counted}
        prepared = self._placement.prepared
        kind = prepared.plan.launcher.kind
        driver = LAUNCHERS.get(kind) if kind in LAUNCHERS else None
        shares = driver is not None and (self.count or driver.inside(self._environ))
        environ = {**self._environ, **(driver.again if driver and shares else {})}
        options = replace(
            options, env=env, environ=environ, requeue=self._requeue, end_stopped=self._restarts.times > 0,
        )  # fmt: skip
        code = int(ExitCode.INTERRUPTED)
        try:
            launched = launch_proved(prepared, command, ranks, options)
        except FairleadError as exc:
            code, self._failure = exc.code, exc.findings[0]
            self._hopeless = exc.code in _HOPELESS
            raise
        else:
            code = launched.result.code
            self._failure = launching.explain_exit(launched.result)
            self._hopeless = launched.result.terminated or code in (ExitCode.USAGE, *_NOT_FOUND)
        finally:
            options.after(prepared.plan)
            self._requeue.after(code)
            if self._failure:
                self._placement.note(self._failure)
        return launched

    def again(self) -> bool:
        """Whether the launch that has failed is to begin again; the nodes are chosen for it.

        Where no node is left in the place of one that failed, the job is requeued if it may be.

        Raises:
            FairleadError: exit code 123; it may not.
        """
        failure, times = self._failure, self._restarts.times
        if failure is None or self._hopeless or self._requeue.done or self.count >= times:
            return False
        self.count += 1
        try:
            self._placement.replace(failure)
        except FairleadError:
            if not self._restarts.requeue_s or self._requeue.now().returncode:
                raise
            return False
        self._announce(failure)
        if failure.check == "node-lost":
            self._watch()
        time.sleep(_PAUSE_S)
        return True

    def _announce(self, failure: Finding) -> None:
        out, hosts = ", ".join(self._placement.unused), self._placement.hosts
        on = f"on {', '.join(hosts[:8])}" if hosts else "on the same nodes"
        earlier = len(node_history.of_host(cache_dir(), failure.host)) if failure.host else 0
        history = f"; {earlier} failures of {failure.host} are known" if earlier > 1 else ""
        self._on_finding(
            info(
                "restart", count=self.count, times=self._restarts.times, on=on, failure=failure, history=history,
                without=f", without {out}" if out else "",
            )
        )  # fmt: skip


def launch_again(
    command: Sequence[str], ranks: int, options: LaunchOptions, attempts: Attempts
) -> Launched:
    """The last of ``attempts``, which are as many as its failures call for and allow.

    Raises:
        FairleadError: as :func:`launch_proved`, from the last launch; or there is no node for another.
    """
    while True:
        try:
            launched = attempts.launch(command, ranks, options)
            if not launched.result.code or not attempts.again():
                return launched
        except FairleadError:
            if not attempts.again():
                raise
