"""The names of Cray's ``crayai.hpo``, for scripts that were written for it: ``from fairlead.tune import hpo``.

    evaluator = hpo.Evaluator("python3 train.py --epochs 3", image="tensorflow", nodes=1)
    params = hpo.Params([["--lr", 0.01, (1e-4, 0.1)], ["--activation", "relu", ["relu", "elu"]]])
    optimizer = hpo.GeneticOptimizer(evaluator, generations=5, pop_size=8)
    optimizer.optimize(params)
    print(optimizer.best_fom, optimizer.best_params)

A script prints ``FoM: VALUE``, and the smallest is the best. Trials are proved launches, as of ``fairlead tune``.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairlead.tune.api import search


class Params:
    """Parameters as ``[flag, default, (low, high) or [values]]``."""

    def __init__(self, params: Sequence[Sequence[Any]]):
        self.flags = {str(flag): default for flag, default, _ in params}
        self.space: dict[str, dict[str, Any]] = {}
        for flag, _, values in params:
            table: dict[str, Any] = {"name": str(flag)}
            if isinstance(values, tuple):
                table |= {"low": values[0], "high": values[1]}
            else:
                table["choices"] = list(values)
            self.space[str(flag).lstrip("-")] = table


class Evaluator:
    """How a set of parameters is evaluated.

    Args:
        cmd: a Python script and its own arguments, ``python3 train.py --epochs 3``.
        run_path: folder of the search.
        nodes_per_eval, num_parallel_evals: of a trial, and trials at once.
        image, ranks: of fairlead; what crayai says about launchers and schedulers is found by itself.
    """

    def __init__(
        self, cmd: str, run_path: str = "run", src_path: str = ".", nodes: int = 1, nodes_per_eval: int = 1,
        num_parallel_evals: int | None = None, verbose: bool = False, image: str = "", ranks: int = 1, **others: Any,
    ):  # fmt: skip
        words = shlex.split(cmd)
        if len(words) > 1 and Path(words[0]).name.startswith("python"):
            words = words[1:]
        self.script, self.arguments = Path(src_path) / words[0], words[1:]
        self.options: dict[str, Any] = {"ranks": ranks}
        if image:
            self.options["image"] = image
        if nodes_per_eval > 1:
            self.options["nodes"] = nodes_per_eval
        if num_parallel_evals:
            self.options["at_once"] = num_parallel_evals
        self.run_path, self.verbose = Path(run_path), verbose


class _Optimizer:
    """A search.

    Attributes:
        best_fom, best_params: of the best trial, once :meth:`optimize` has ended.
    """

    def __init__(self, evaluator: Evaluator, log_fn: str | None = None, verbose: bool = False):
        self._evaluator, self._log, self._verbose = evaluator, log_fn, verbose
        self.best_fom, self.best_params = float("inf"), dict[str, Any]()

    def _how(self, params: Params) -> dict[str, Any]:
        raise NotImplementedError

    def _space(self, params: Params) -> dict[str, dict[str, Any]]:
        return params.space

    def optimize(self, params: Params) -> None:
        """Searches until all trials have ended."""
        evaluator = self._evaluator
        result = search(
            evaluator.script, self._space(params), output=evaluator.run_path, arguments=evaluator.arguments,
            **evaluator.options, **self._how(params),
        )["result"]  # fmt: skip
        trials = result["trials"]
        if self._log:
            lines = (
                f"{t['number']}\t{t['values'].get('value')}\t{t['parameters']}\n" for t in trials
            )
            Path(self._log).write_text("".join(lines), encoding="utf-8")
        for number in result["best"]:
            best = trials[number]
            self.best_fom = best["values"]["value"]
            chosen = best["parameters"]
            self.best_params = {f: chosen.get(f.lstrip("-"), d) for f, d in params.flags.items()}
        if self._verbose or evaluator.verbose:
            print(f"best FoM {self.best_fom}: {self.best_params}", file=sys.stderr)


class GeneticOptimizer(_Optimizer):
    """A genetic search: ``generations`` of ``num_demes`` x ``pop_size`` members."""

    def __init__(
        self, evaluator: Evaluator, generations: int = 10, num_demes: int = 1, pop_size: int = 10,
        mutation_rate: float = 0.05, crossover_rate: float = 0.33, log_fn: str | None = None, verbose: bool = False,
        seed: int = 1, **others: Any,
    ):  # fmt: skip
        super().__init__(evaluator, log_fn, verbose)
        self._options = {
            "sampler": "genetic", "trials": generations * num_demes * pop_size, "population": num_demes * pop_size,
            "demes": num_demes, "mutation": mutation_rate, "crossover": crossover_rate, "seed": seed,
        }  # fmt: skip

    def _how(self, params: Params) -> dict[str, Any]:
        return self._options


class RandomOptimizer(_Optimizer):
    """A random search."""

    def __init__(
        self, evaluator: Evaluator, num_iters: int = 10, seed: int = 1, log_fn: str | None = None,
        verbose: bool = False, **others: Any,
    ):  # fmt: skip
        super().__init__(evaluator, log_fn, verbose)
        self._options = {"sampler": "random", "trials": num_iters, "seed": seed}

    def _how(self, params: Params) -> dict[str, Any]:
        return self._options


class GridOptimizer(_Optimizer):
    """A grid of ``grid_size`` values of each range."""

    def __init__(
        self, evaluator: Evaluator, grid_size: int = 3, chunk_size: int = 0, log_fn: str | None = None,
        verbose: bool = False, **others: Any,
    ):  # fmt: skip
        super().__init__(evaluator, log_fn, verbose)
        self._size = grid_size

    def _space(self, params: Params) -> dict[str, dict[str, Any]]:
        return {name: self._points(table) for name, table in params.space.items()}

    def _points(self, table: dict[str, Any]) -> dict[str, Any]:
        if "choices" in table:
            return table
        low, high = table["low"], table["high"]
        gap = (high - low) / max(self._size - 1, 1)
        values = [low + gap * i for i in range(self._size)]
        whole = isinstance(low, int) and isinstance(high, int)
        choices = sorted({round(v) for v in values}) if whole else values
        return {"name": table["name"], "choices": choices}

    def _how(self, params: Params) -> dict[str, Any]:
        return {"sampler": "grid"}


genetic = SimpleNamespace(Optimizer=GeneticOptimizer)
random = SimpleNamespace(Optimizer=RandomOptimizer)
grid = SimpleNamespace(Optimizer=GridOptimizer)
