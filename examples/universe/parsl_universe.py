"""The workflow of the Snakefile in Parsl: each step an app that is a proved launch; what is there already is not made again.

    $ fairlead site export --for parsl --private -o universe
    $ cd universe && python3 .../examples/universe/parsl_universe.py --rounds 2

A killed script's workers end by themselves, after the seconds that the exported configuration says.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import parsl
from parsl.data_provider.files import File

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(Path.cwd()))
from fairlead_parsl import FAIRLEAD, config, launch  # noqa: E402 (exported into the folder of the run)


@parsl.bash_app  # type: ignore[untyped-decorator]
def run(line: str, inputs: Any = (), outputs: Any = (), parsl_resource_specification: Any = None) -> str:  # fmt: skip
    """A line of the shell."""
    return line


class Chain:
    """The steps, which wait for each other by their files."""

    def __init__(self, given: argparse.Namespace):
        self.given = given
        self.made: dict[str, Any] = {}

    def step(self, script: str, output: str, needs: list[str], *words: str) -> str:
        """Submits a step unless its output is there; returns the output."""
        if Path(output).exists():
            self.made[output] = File(output)
            return output
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        line = launch(
            "python3", str(HERE / script), "-o", output, *words, image=self.given.image, options=["--bind", str(HERE)],
        )  # fmt: skip
        app = run(
            line,
            inputs=[self.made[need] for need in needs],
            outputs=[File(output)],
            parsl_resource_specification={"num_nodes": 1, "ranks_per_node": self.given.ranks},
        )
        self.made[output] = app.outputs[0]
        return output

    def tuned(self, shards: str) -> str:
        """The best parameters: the search launches its trials itself."""
        self.made[shards].result() if hasattr(self.made[shards], "result") else None
        best = "tuned/best.toml"
        if not Path(best).exists():
            given = self.given
            words = ["tune", HERE / "train.py", "--space", HERE / "space.toml", "-o", "tuned"]
            words += ["--trials", given.trials, "-n", given.ranks, "--image", given.image]
            words += ["--", shards, "--steps", given.steps]
            subprocess.run([*FAIRLEAD, *map(str, words)], check=True)
        self.made[best] = File(best)
        return best

    def round(self, number: int) -> str:
        """From parameters to the use of a model; returns what says what that came to."""
        given = self.given
        shards = [f"shards/{n}" for n in range(number)]
        earlier = [f"models/{number - 1}.npz"] if number else []
        size, steps = ("--cells", str(given.cells)), ("--steps", str(given.steps))
        more = ["--model", *earlier] if earlier else ["--held-out", "4"]
        words = [*more, "--number", str(given.universes), "--seed", str(number), *steps, *shards]
        chosen = self.step("choose.py", f"parameters/{number}.json", [*earlier, *shards], *words)
        shards.append(
            self.step("simulate.py", f"shards/{number}", [chosen], "--parameters", chosen, *size)
        )
        best = self.tuned(shards[0])
        words = ["--best", best, *steps, *(["--start", *earlier] if earlier else []), *shards]
        model = self.step("train.py", f"models/{number}.npz", [*earlier, *shards], *words)
        return self.step("use.py", f"used/{number}.json", [model], "--model", model, *size)


def main() -> None:
    """Takes the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", default="tensorflow")
    for name, default in (("rounds", 1), ("ranks", 2), ("cells", 32), ("universes", 8), ("steps", 200), ("trials", 6)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with parsl.load(config()):
        chain = Chain(given)
        for used in [chain.round(number) for number in range(given.rounds)]:
            made = chain.made[used]
            print(made.result() if hasattr(made, "result") else made)


if __name__ == "__main__":
    main()
