"""A world: one launch of all ranks, in a process of its own that :mod:`fairlead.notebook.session` has forked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity, fail
from fairlead.base.process import tied_to
from fairlead.launch import launch as launching
from fairlead.notebook.settings import LET_GO, OUTCOME, PROOF, log_tail, write_private
from fairlead.proof.verdict import Proof
from fairlead.session.model import LaunchOptions, Prepared
from fairlead.session.run import launch_proved
from fairlead.swap.model import Bind

LOG = "ranks.log"
_GRACE_S = 15.0  # for a launch to take down what it has started


@dataclass
class World:
    """One launch.

    Attributes:
        folder: of the world, in that of the session.
    """

    number: int
    folder: Path
    _pid: int = 0

    def start(
        self, prepared: Prepared, ranks: int, binds: Sequence[Bind], env: Mapping[str, str], *,
        workdir: str, limit_s: float | None,
    ) -> None:  # fmt: skip
        """Launches the ranks from a fork of this process."""
        parent = os.getpid()
        handled = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        self._pid = os.fork()
        if self._pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
            return
        try:
            os.setsid()
            # A launch hands SIGTERM on to its ranks, and waits for them.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, _ended)
            tied_to(parent, signal.SIGHUP)()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
            self._launch(
                prepared,
                ranks,
                LaunchOptions(binds=binds, env=env, workdir=workdir, limit_s=limit_s),
            )
        except KeyboardInterrupt:
            pass
        finally:
            os._exit(0)

    def _launch(self, prepared: Prepared, ranks: int, options: LaunchOptions) -> None:
        notes: list[Finding] = []
        with (self.folder / LOG).open("ab") as stream:
            null = os.open(os.devnull, os.O_RDWR)
            for number, fd in ((0, null), (1, stream.fileno()), (2, stream.fileno())):
                os.dup2(fd, number)
            own = LaunchOptions(
                binds=options.binds, env=options.env, workdir=options.workdir, limit_s=options.limit_s,
                on_proof=self._proved, on_finding=notes.append, stdout=stream, stderr=stream,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            command = ("python3", "-m", "fairlead.notebook.rank", str(self.folder))
            try:
                launched = launch_proved(prepared, command, ranks, own)
                why = launching.explain_exit(launched.result)
                self._over((why,) if why else (), launched.result.code)
            except FairleadError as exc:
                self._over(exc.findings, int(exc.code))

    def _proved(self, proof: Proof) -> None:
        if not proof.holds:
            return  # launch_proved raises
        first = proof.ranks[0] if proof.ranks else None
        line = (
            f"{len(proof.ranks)} ranks: {first.version}; {first.transport}" if first else "no rank"
        )
        write_private(self.folder / PROOF, json.dumps({"line": line}))

    def _over(self, findings: Sequence[Finding], code: int) -> None:
        text = "; ".join(f.sentence for f in findings)
        shown = {
            "text": text or "all ranks have ended",
            "code": code,
            "findings": [f.to_json() for f in findings],
        }
        write_private(self.folder / OUTCOME, json.dumps(shown))

    def ended(self) -> bool:
        """Whether the launch is over."""
        if self._pid:
            with suppress(ChildProcessError):
                if not os.waitpid(self._pid, os.WNOHANG)[0]:
                    return False
            self._pid = 0
        return True

    def end(self, *, saved: bool) -> None:
        """Ends the launch; nothing of it is left.

        Args:
            saved: its ranks have nothing to save.
        """
        if self.ended():
            return
        if saved:
            write_private(self.folder / LET_GO, "")
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGHUP)
        until = time.monotonic() + _GRACE_S
        while not self.ended():
            if time.monotonic() > until:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.01)


def failure(outcome: Mapping[str, Any], folder: Path) -> FairleadError:
    """The error of a first launch that has failed."""
    code = int(outcome.get("code") or ExitCode.FAILED)
    known = ExitCode(code) if code in {*ExitCode} else ExitCode.FAILED
    if findings := [
        Finding(**{**f, "severity": Severity(f["severity"])}) for f in outcome.get("findings", ())
    ]:
        return FairleadError(findings, known)
    log = folder / LOG
    tail = log_tail(log)
    why = str(outcome.get("text") or "the process that launched them was killed")
    return fail("notebook-ranks", why=why, log=log, tail=tail or "nothing", code=ExitCode.FAILED)


def _ended(number: int, frame: object) -> None:
    raise KeyboardInterrupt
