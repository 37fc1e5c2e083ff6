"""A job that is queued again: a program in the image asks for it, or the scheduler has warned of the job's end.

No image has the scheduler's programs, and Lightning, submitit and many scripts call ``scontrol requeue``. A stand-in of
that name, first in the container's PATH, hands its words to this process by files of the run's folder; the scheduler's
own program runs here, where it exists.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from fairlead.base.errors import Finding, info, os_error_as, warning
from fairlead.base.paths import atomic_write
from fairlead.base.process import Ran, run
from fairlead.launch.warning_signals import WarningSignals
from fairlead.schedulers.model import Allocation
from fairlead.schedulers.registry import SCHEDULERS

STAND_INS = "bin"  # their folder in a run's folder
_PROGRAM_S = 30.0
# Between the end of the ranks' time and that of the job, for them to save (warning_signals.GRACE_S) and for the requeue.
_SPARE_S = 60.0
_STAND_IN = """\
#!/bin/sh
# Stands in for the scheduler's program, which is not in the image: fairlead runs it outside of the container.
name=${0##*/} ask=${0%/*}/../asked.${0##*/}.$(uname -n).$$
case "${1:-}" in SERVED) ;; *)
    IFS=:
    for folder in $PATH; do
        if [ -x "$folder/$name" ] && [ "$folder" != "${0%/*}" ]; then exec "$folder/$name" "$@"; fi
    done
    echo "$name: not in this image; fairlead runs only \\`$name WORDS\\` outside of it" >&2
    exit 127 ;;
esac
printf '%s\\n' "$@" >"$ask.partial" && mv "$ask.partial" "$ask" || exit 1
waited=0
until [ -e "$ask.code" ]; do
    waited=$((waited + 1))
    if [ $waited -gt 600 ]; then echo "$name: fairlead has not answered for 60 s" >&2; exit 1; fi
    sleep 0.1
done
cat "$ask.out"
cat "$ask.err" >&2
exit "$(cat "$ask.code")"
"""


class Requeue:
    """Of the job that a launch is in.

    Attributes:
        done: the scheduler has accepted it.
        possible: the scheduler has a program for it.
    """

    def __init__(
        self,
        allocation: Allocation | None,
        lead_s: float,
        environ: Mapping[str, str],
        on_finding: Callable[[Finding], None],
    ):
        """
        Args:
            lead_s: how long before the job's end its warning comes; 0: only programs in the image ask for it.
        """
        self.done = False
        self._job = allocation.job if allocation else ""
        self._scheduler = scheduler = SCHEDULERS.get(allocation.scheduler) if allocation else None
        self._words = scheduler.requeue if scheduler else ()
        self._shown = scheduler.shown if scheduler else ()
        self._names = scheduler.names_of_job(environ) if scheduler else ()
        self._lead_s, self._environ, self._on_finding = lead_s, environ, on_finding
        self._folder: Path | None = None
        self._signals: WarningSignals | None = None
        self._sent = False

    @property
    def possible(self) -> bool:
        return bool(self._job and self._words)

    def lay(self, folder: Path) -> bool:
        """Lays the stand-ins into a run's folder; whether there are any.

        Raises:
            FairleadError: exit code 123; they cannot be written.
        """
        self._folder, self._sent = folder, False
        if not self.possible:
            return False
        program, *requeue = self._words
        served = "|".join((*requeue, *self._shown)) or "*"
        text = _STAND_IN.replace("SERVED", served).replace("WORDS", served.replace("|", "` and `"))
        with os_error_as("run-folder-records", folder=folder):
            (folder / STAND_INS).mkdir()
            (folder / STAND_INS / program).write_text(text, "utf-8")
            (folder / STAND_INS / program).chmod(0o755)
        return True

    def look(self, signals: WarningSignals) -> None:
        """Answers the ranks that have asked, and ends ranks that use up the time after the warning.

        Args:
            signals: of the launch.
        """
        self._signals = signals
        if self._folder is None or not self.possible:
            return
        answers: dict[tuple[str, ...], Ran] = {}
        for path in self._folder.glob("asked.*.*"):
            if path.suffix in (".partial", ".code", ".out", ".err"):
                continue
            with suppress(OSError):
                words = tuple(path.read_text("utf-8", "replace").splitlines())
                if words not in answers:
                    answers[words] = self._answer(words)
                _reply(path, answers[words])
        if not (self._lead_s and signals.warned_at) or self._sent or self.done:
            return
        if time.monotonic() - signals.warned_at > max(self._lead_s - _SPARE_S, self._lead_s / 2):
            self._sent = True
            signals.send(signal.SIGTERM)

    def after(self, code: int) -> None:
        """Requeues the job where its ranks have ended after the warning, and not because they were through.

        Args:
            code: of the launch.
        """
        signals = self._signals
        if not (self._lead_s and signals and signals.warned_at) or self.done or not self.possible:
            return
        if code or signals.handled:
            self.now()

    def now(self) -> Ran:
        """Requeues the job, unless its scheduler has done so, as at preemption; and says so."""
        words = (*self._words, self._job)
        ran = run(words, environ=self._environ, timeout_s=_PROGRAM_S)
        if ran.returncode and self._scheduler and self._scheduler.waits(self._job, self._environ):
            ran = Ran(words, 0)
        if ran.returncode == 0:
            self.done = True
            self._on_finding(info("job-requeued", job=self._job, words=shlex.join(words)))
        else:
            why = ran.tail or f"exit code {ran.returncode}"
            self._on_finding(
                warning("job-not-requeued", job=self._job, words=shlex.join(words), why=why)
            )
        return ran

    def _answer(self, words: tuple[str, ...]) -> Ran:
        program, *requeue = self._words
        if words[: len(requeue)] != tuple(requeue):
            return run((program, *words), environ=self._environ, timeout_s=_PROGRAM_S)
        if words[-1:] and words[-1] not in self._names:
            why = f"this run is in job {self._job}, and can requeue no other"
            return Ran((program, *words), 1, "", f"{program}: {words[-1]}: {why}\n")
        return self.now()


def _reply(path: Path, ran: Ran) -> None:
    for kind, text in (("out", ran.stdout), ("err", ran.stderr), ("code", f"{ran.returncode}\n")):
        with atomic_write(path.with_name(f"{path.name}.{kind}"), "w") as stream:
            stream.write(text)
    path.unlink()
