"""A study of Optuna: which parameters a trial gets, which trial is ended early, and what is kept of all of them.

A trial is claimed under a lock: a new one, or one whose tuner has died, which runs again with the parameters that it has.
Samplers get a seed of the study's and the trial's number, so that a search that is killed and goes on is the same search.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import locked
from fairlead.tune.evolution import (
    Evolution,
    Member,
    offspring,
    possible_parents,
    successor,
)
from fairlead.tune.grid import points
from fairlead.tune.space import Scalar, Space, Value
from fairlead.tune.workers import Worker

if TYPE_CHECKING:
    import optuna

SAMPLERS = ("tpe", "random", "grid", "cmaes", "nsga2", "genetic", "pbt")
PRUNERS = ("none", "median", "asha", "hyperband")
JOURNAL = "journal.log"
_NAME = "fairlead"
_ATTEMPTS = 3  # of a trial whose tuner dies each time
_STALE_LOCK_S = 10
_STALE_CLAIM_S = 60


@dataclass(frozen=True)
class Search:
    """How parameters are searched for.

    Attributes:
        trials: how many in all; None for a whole grid.
        storage: URL of a database; empty for a journal file in the study's folder.
        evolution: of the samplers ``genetic`` and ``pbt``.
    """

    sampler: str = "tpe"
    pruner: str = "none"
    trials: int | None = None
    seed: int = 1
    storage: str = ""
    evolution: Evolution = field(default_factory=Evolution)


@dataclass(frozen=True)
class Claim:
    """A trial that is to run.

    Attributes:
        number: of the trial, from 0.
        attempt: 1, and one more for each tuner that died of it.
        seed: of this trial.
        source: the trial from whose checkpoint it goes on; None for one that begins.
    """

    number: int
    parameters: dict[str, Value]
    attempt: int
    seed: int
    source: int | None = None


@dataclass(frozen=True)
class Trial:
    """What is known of a trial.

    Attributes:
        state: ``complete``, ``pruned``, ``failed``, ``running`` or ``waiting``.
        values: by objective; empty where there are none.
        parameters: as the script gets them.
        chosen: as Optuna knows them: a list's elements apart.
        why: why it has failed or was ended early.
        reports: (step, value).
        source: the trial from whose checkpoint it went on; None for one that began.
        lost: why earlier attempts came to no end.
    """

    number: int
    state: str
    values: dict[str, float]
    parameters: dict[str, Value]
    chosen: dict[str, Scalar]
    why: str = ""
    attempt: int = 1
    seed: int = 0
    seconds: float = 0.0
    proof: str = ""
    reports: tuple[tuple[int, float], ...] = ()
    source: int | None = None
    lost: tuple[str, ...] = ()


_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}


class Study:
    """The study in a folder. Everything that writes may raise :class:`FairleadError`: the storage is full, or gone."""

    def __init__(self, folder: Path, space: Space, search: Search, worker: Worker):
        self.folder, self.space, self.search, self._worker = folder, space, search, worker
        self.objectives = list(space.wanted)
        self._goals = [wanted.goal for wanted in space.wanted.values()]
        self._lock = folder / "claims.lock"
        self._flock = has_flock(self._lock)
        self._grid = points(space) if search.sampler == "grid" else []
        self.trials_wanted = min(
            search.trials or (len(self._grid) or 1), len(self._grid) or search.trials or 1
        )
        self.waits = False  # for trials of others, before more can begin
        # Whether a trial whose tuner has died runs all the same.
        self.goes_on: Callable[[int], bool] = lambda number: False
        self._mine: dict[int, optuna.trial.Trial] = {}
        _check(search, space)
        with self._stored():
            self._study = self._open()

    def _open(self) -> optuna.Study:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", module="optuna")
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        if self.search.storage:
            storage: Any = optuna.storages.get_storage(self.search.storage)
        else:
            storage = _journal(self.folder / JOURNAL)
        opened = optuna.create_study(
            study_name=_NAME if not self.search.storage else f"{_NAME}-{self.folder.name}",
            storage=storage,
            directions=self._goals,
            pruner=_pruner(self.search.pruner),
            load_if_exists=True,
        )
        asked = {
            "space": self.space.model_dump_json(),
            "sampler": self.search.sampler,
            "seed": self.search.seed,
        }
        asked["pruner"] = self.search.pruner
        if self.search.sampler in ("genetic", "pbt"):
            asked["evolution"] = repr(self.search.evolution)
        known = opened.user_attrs
        if other := [name for name in asked if name in known and known[name] != asked[name]]:
            raise fail("tune-other-search", folder=self.folder, differ=", ".join(other))
        for name in asked.keys() - known.keys():
            opened.set_user_attr(name, asked[name])
        return opened

    @contextmanager
    def _stored(self) -> Iterator[None]:
        """Turns what a storage raises into a message."""
        try:
            yield
        except FairleadError:
            raise
        except OSError as exc:
            raise fail("tune-storage", storage=self._where, reason=exc.strerror or exc) from exc
        except ModuleNotFoundError:
            raise
        except Exception as exc:
            if type(exc).__module__.split(".")[0] not in ("optuna", "sqlalchemy", "json"):
                raise
            reason = str(exc).strip().partition("\n")[0] or type(exc).__name__
            raise fail("tune-storage", storage=self._where, reason=reason) from exc

    @property
    def _where(self) -> str:
        return self.search.storage or str(self.folder / JOURNAL)

    @property
    def inherits(self) -> bool:
        """Whether trials go on from checkpoints of others."""
        return self.search.sampler == "pbt" or self.search.evolution.inherit

    def claim(self) -> Claim | None:
        """The next trial of this process; None when there is none left to begin."""
        import optuna

        with self._stored(), alone(self._lock, self._flock):
            every = self._study.get_trials(deepcopy=False)
            running = (t for t in every if t.state.name == "RUNNING" and t.number not in self._mine)
            for frozen in running:
                if self._worker.lives(frozen.user_attrs.get("worker", "")):
                    continue
                trial = optuna.trial.Trial(self._study, frozen._trial_id)
                ended = not self.goes_on(frozen.number)
                attempt = int(frozen.user_attrs.get("attempt", 0)) + ended or 1
                if attempt > _ATTEMPTS:
                    trial.set_user_attr("why", f"its tuner ended {_ATTEMPTS} times while it ran")
                    self._study.tell(frozen.number, state=optuna.trial.TrialState.FAIL)
                    continue
                return self._claimed(trial, attempt)
            if len(every) >= self.trials_wanted:
                return None
            number = len(every)
            if self._waits_for_generation(every):
                return None
            source = self._enqueue(number)
            self._study.sampler = _sampler(self.search.sampler, _seed(self.search.seed, number))
            trial = self._study.ask()
            if source is not None:
                trial.set_user_attr("source", source)
            return self._claimed(trial, 1)

    def _waits_for_generation(self, every: Sequence[Any]) -> bool:
        """Whether the next member has to wait for the generation before."""
        size = self.search.evolution.population
        generation = len(every) // size
        before = every[(generation - 1) * size : generation * size] if generation else ()
        self.waits = self.search.sampler == "pbt" and not all(t.state.is_finished() for t in before)
        return self.waits

    def _enqueue(self, number: int) -> int | None:
        """Fixes parameters of the next trial, where a grid or evolution says them; the trial that it goes on from."""
        how, seed = self.search.evolution, _seed(self.search.seed, number)
        fixed: dict[str, Any] = self._grid[number] if self._grid else {}
        source = None
        if self.search.sampler == "genetic":
            fixed, parent = offspring(self.space, self._members(), number, seed, how)
            source = parent if how.inherit else None
        elif self.search.sampler == "pbt" and number >= how.population:
            first = (number // how.population - 1) * how.population
            before = self._members()[first : first + how.population]
            fixed, source = successor(self.space, before, number % how.population, seed, how)
        if fixed:
            self._study.enqueue_trial(fixed)
        return source

    def discard(self, discard: Callable[[int], None]) -> None:
        """Calls ``discard`` with the trials that are over and from which no other goes on any more."""
        how = self.search.evolution
        with self._stored(), alone(self._lock, self._flock):
            trials = self.trials()
            kept = {t.source for t in trials if t.state in ("running", "waiting")}
            if self.search.sampler == "pbt":
                kept |= {
                    *range(max(len(trials) // how.population - 1, 0) * how.population, len(trials))
                }
            else:
                kept |= possible_parents(self._members(), how)
            for trial in trials:
                if trial.number not in kept and trial.state not in ("running", "waiting"):
                    discard(trial.number)

    def _members(self) -> list[Member]:
        sign = 1 if self._goals[0] == "minimize" else -1
        name = self.objectives[0]
        return [
            Member(t.number, t.chosen, sign * t.values[name] if t.values else math.inf)
            for t in self.trials()
        ]

    def _claimed(self, trial: optuna.trial.Trial, attempt: int) -> Claim:
        seed = _seed(self.search.seed, trial.number)
        self._study.sampler = _sampler(self.search.sampler, seed)
        trial.set_user_attr("worker", self._worker.name)
        trial.set_user_attr("attempt", attempt)
        trial.set_user_attr("seed", seed)
        parameters = self.space.ask(trial)
        trial.set_user_attr("parameters", parameters)
        self._mine[trial.number] = trial
        source = trial.user_attrs.get("source")
        return Claim(trial.number, parameters, attempt, seed, source)

    def again(self, number: int, why: str) -> Claim | None:
        """A trial of this process that is to run once more, since what it ran on is lost; None when that was often enough."""
        trial = self._mine[number]
        attrs = trial.user_attrs
        attempt = int(attrs["attempt"]) + 1
        with self._stored():
            trial.set_user_attr("lost", [*attrs.get("lost", ()), why])
            if attempt > _ATTEMPTS:
                return None
            trial.set_user_attr("attempt", attempt)
        return Claim(number, attrs["parameters"], attempt, int(attrs["seed"]), attrs.get("source"))

    def report(self, number: int, step: int, value: float) -> bool:
        """Keeps an intermediate value; True when the trial is to be ended early."""
        if len(self.objectives) > 1:
            return False
        trial = self._mine[number]
        with self._stored():
            if (
                step >= 0
                and step not in trial.storage.get_trial(trial._trial_id).intermediate_values
            ):
                trial.report(value, step)
            return math.isfinite(value) and trial.should_prune()

    def tell(
        self, number: int, values: Sequence[float] | None, why: str = "", seconds: float = 0.0, proof: str = "",
        *, pruned: bool = False,
    ) -> None:  # fmt: skip
        """Keeps how a trial of this process has ended."""
        from optuna.trial import TrialState

        trial = self._mine[number]
        with self._stored():
            for name, kept in (("why", why), ("seconds", round(seconds, 3)), ("proof", proof)):
                if kept:
                    trial.set_user_attr(name, kept)
            if pruned:
                self._study.tell(number, state=TrialState.PRUNED)
            elif values is None:
                self._study.tell(number, state=TrialState.FAIL)
            else:
                self._study.tell(number, list(values))
        del self._mine[number]

    def trials(self) -> list[Trial]:
        """All trials so far."""
        with self._stored():
            return [_known(t, self.objectives) for t in self._study.get_trials(deepcopy=False)]

    def best(self) -> list[Trial]:
        """The best trial, or the Pareto front of several objectives; the first of equals comes first."""
        whole = [t for t in self.trials() if t.state == "complete"]
        signs = [1 if goal == "minimize" else -1 for goal in self._goals]
        costs = {
            t.number: [s * t.values[n] for s, n in zip(signs, self.objectives, strict=True)]
            for t in whole
        }
        if len(signs) == 1:
            return sorted(whole, key=lambda t: (costs[t.number], t.number))[:1]
        return [
            t for t in whole if not any(_dominates(costs[o.number], costs[t.number]) for o in whole)
        ]

    def importances(self) -> dict[str, float]:
        """How much each parameter matters, by PED-ANOVA; empty where too few trials say."""
        import optuna

        if len(self.objectives) > 1 or sum(t.state == "complete" for t in self.trials()) < 8:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            importances = optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        except (
            ValueError,
            RuntimeError,
            ImportError,
        ):  # no parameter that all trials have, or all values are the same
            return {}
        return {name: float(share) for name, share in importances.items() if math.isfinite(share)}


def has_flock(path: Path) -> bool:
    """Whether the file system at ``path`` has flock(2), which some mounts of NFS and Lustre do not."""
    try:
        with path.open("ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as exc:
        return exc.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
    return True


def alone(path: Path, flock: bool) -> AbstractContextManager[None]:
    """One process at a time; by Optuna's symlink where there is no flock(2), which a killed process leaves for a while."""
    if flock:
        return locked(path)
    from optuna.storages.journal import JournalFileSymlinkLock

    return _by_symlink(JournalFileSymlinkLock(f"{path}-by-name", grace_period=_STALE_CLAIM_S))


@contextmanager
def _by_symlink(lock: Any) -> Iterator[None]:
    lock.acquire()
    try:
        yield
    finally:
        with suppress(RuntimeError):  # another took it for that of a dead process
            lock.release()


def _known(frozen: Any, objectives: Sequence[str]) -> Trial:
    attrs: Mapping[str, Any] = frozen.user_attrs
    values = frozen.values if frozen.values and frozen.state.name == "COMPLETE" else ()
    return Trial(
        number=frozen.number,
        state=_STATES.get(frozen.state.name, "waiting"),
        values=dict(zip(objectives, values, strict=False)),
        parameters=dict(attrs.get("parameters", {})),
        chosen=dict(frozen.params),
        why=str(attrs.get("why", "")),
        attempt=int(attrs.get("attempt", 1)),
        seed=int(attrs.get("seed", 0)),
        seconds=float(attrs.get("seconds", 0.0)),
        proof=str(attrs.get("proof", "")),
        reports=tuple(sorted(frozen.intermediate_values.items())),
        source=attrs.get("source"),
        lost=tuple(attrs.get("lost", ())),
    )


def _dominates(left: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(left, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4]) & 0x7FFFFFFF


def _check(search: Search, space: Space) -> None:
    """Raises for a search that cannot be."""
    several = len(space.wanted) > 1
    if several and search.pruner != "none":
        raise fail("tune-pruner-objectives", pruner=search.pruner)
    if several and search.sampler in ("cmaes", "genetic", "pbt"):
        raise fail("tune-sampler-objectives", sampler=search.sampler)
    if search.trials is None and search.sampler != "grid":
        raise fail("tune-trials")


def _journal(path: Path) -> Any:
    """The journal with the lock of Optuna that holds on NFS and Lustre, as `optuna-dashboard` and others open it."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = JournalFileSymlinkLock(str(path), grace_period=_STALE_LOCK_S)
    if path.exists():
        lock.acquire()
        try:
            _mend(path)
        finally:
            lock.release()
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


def _mend(path: Path) -> None:
    """Takes the end of a line away that a full disk, or the machine's end, has left."""
    with path.open("r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        at = max(size - (1 << 20), 0)
        stream.seek(at)
        tail = stream.read()
        if tail and not tail.endswith(b"\n"):
            stream.truncate(at + tail.rfind(b"\n") + 1)


def _sampler(kind: str, seed: int) -> optuna.samplers.BaseSampler:
    from optuna import samplers

    if kind == "cmaes":
        return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    if kind == "nsga2":
        return samplers.NSGAIISampler(seed=seed, population_size=20)
    if kind == "tpe":
        return samplers.TPESampler(seed=seed, constant_liar=True)
    return samplers.RandomSampler(seed=seed)


def _pruner(kind: str) -> optuna.pruners.BasePruner:
    from optuna import pruners

    if kind == "median":
        return pruners.MedianPruner(n_startup_trials=5)
    if kind == "asha":
        return pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    if kind == "hyperband":
        return pruners.HyperbandPruner()
    return pruners.NopPruner()
