"""What a trial runs: a script in an image."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fairlead.tune import passing, reporting
from fairlead.tune.space import Space, Value

_MOST_BYTES = 1 << 18  # of a script that a result carries


@dataclass(frozen=True)
class Work:
    """What one trial launches: words, variables, and folders that it sees."""

    command: tuple[str, ...]
    env: dict[str, str]
    binds: tuple[str, ...]


@dataclass(frozen=True)
class TrialOf:
    """What a trial is launched with.

    Attributes:
        source: folder of the trial that it goes on from; None for one that begins.
    """

    number: int
    seed: int
    folder: Path
    source: Path | None = None


class Target(Protocol):
    """What is tuned."""

    @property
    def space(self) -> Space:
        """The parameters, and what is to be minimized or maximized."""

    @property
    def env(self) -> Mapping[str, str]:
        """The user's variables."""

    @property
    def title(self) -> str:
        """What it is called."""

    def work(self, trial: TrialOf, parameters: Mapping[str, Value]) -> Work:
        """What a trial launches."""

    def reports(self, folder: Path) -> list[tuple[int, dict[str, float]]]:
        """What else than by the script's own reports a trial has reported since the last look."""

    def described(self) -> dict[str, object]:
        """What ``best.toml`` says of it."""

    def files(self) -> dict[str, str]:
        """Texts that ``best.toml`` carries, by name."""

    def part(self, number: int) -> int:
        """Which part of a whole training a trial is, from 0."""

    def discard(self, folder: Path) -> None:
        """No other trial goes on from that in this folder any more."""


@dataclass(frozen=True)
class Script:
    """A Python script, or any other program.

    Attributes:
        arguments: of its own.
        env: the user's variables.
    """

    path: Path
    arguments: tuple[str, ...]
    space: Space
    env: Mapping[str, str]

    @property
    def title(self) -> str:
        return self.path.name

    @property
    def base_command(self) -> tuple[str, ...]:
        """The command without arguments."""
        return ("python3", str(self.path)) if self.path.suffix == ".py" else (str(self.path),)

    def work(self, trial: TrialOf, parameters: Mapping[str, Value]) -> Work:
        own = passing.filled(self.arguments, trial.folder, trial.number, trial.seed)
        passed = passing.words(self.space, parameters)
        env = {**self.env, **passing.variables(self.space, parameters)}
        env |= passing.own_variables(trial.folder, trial.seed)
        binds = [str(trial.folder), str(self.path.parent)]
        if trial.source:
            env[reporting.SOURCE] = str(trial.source)
            binds.append(str(trial.source))
        return Work((*self.base_command, *own, *passed), env, tuple(binds))

    def reports(self, folder: Path) -> list[tuple[int, dict[str, float]]]:
        return []

    def described(self) -> dict[str, object]:
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return {"script": str(self.path), "sha256": digest, "arguments": list(self.arguments)}

    def files(self) -> dict[str, str]:
        try:
            body = self.path.read_bytes()
            return {self.path.name: body.decode("utf-8")} if len(body) <= _MOST_BYTES else {}
        except UnicodeDecodeError:  # a program
            return {}

    def discard(self, folder: Path) -> None:
        """What scripts save is theirs."""

    def part(self, number: int) -> int:
        return 0
