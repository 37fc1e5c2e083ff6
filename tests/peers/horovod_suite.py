"""Horovod's own test suite against the drop-in: the outcome of each test on every rank.

    $ python -m tests.peers.horovod_suite pytorch parallel/test_torch.py --out benchmarks/results/horovod-torch.json

The suite is Horovod's at :data:`TAG`, fetched by git, or from the repository that ``HOROVOD_SOURCE`` names; its commit
is compared. It lies outside of the project, and of it only the tests are shown to the ranks: what they import as
``horovod`` is fairlead's. A launch runs a whole file; what fails in it runs once more, in a launch of its own, where no
other test can have put the ranks out of step. A run that is interrupted goes on from FILE.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.system import hosts

from fairlead.base.paths import atomic_folder, atomic_write

TAG, COMMIT = "v0.28.1", "1d217b59949986d025f6db93c49943fb6b6cc78f"
SOURCE = "https://github.com/horovod/horovod"
# The suite needs these, and no image has them.
PACKAGES = ("pytest", "parameterized", "mock", "cloudpickle", "psutil", "packaging")
LIMIT_S, WHOLE_LIMIT_S = 90, 1800
PLUGIN = Path(__file__).with_name("horovod_plugin.py")


@dataclass(frozen=True)
class Outcome:
    """Of a test.

    Attributes:
        outcome: passed, on all ranks; skipped, by itself; or failed.
        why: the first line of the reason, of the first rank that gives one.
    """

    outcome: str
    why: str = ""


@dataclass(frozen=True)
class Outcomes:
    """Of a file of tests."""

    file: str
    image: str
    ranks: int
    tag: str = TAG
    tests: dict[str, Outcome] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Outcomes:
        row = json.loads(path.read_text())
        tests = {name: Outcome(**test) for name, test in row["tests"].items()}
        return cls(row["file"], row["image"], row["ranks"], row["tag"], tests)

    @property
    def counts(self) -> dict[str, int]:
        return dict(sorted(Counter(test.outcome for test in self.tests.values()).items()))

    @property
    def share(self) -> float:
        """Passed, of those that do not skip themselves; 1 where all do."""
        counts = self.counts
        passed, failed = counts.get("passed", 0), counts.get("failed", 0)
        return passed / (passed + failed) if passed + failed else 1.0


def source() -> Path | None:
    """The folder of Horovod's tests; None where the source is out of reach."""
    kept = hosts.KEPT / f"horovod-{TAG}"
    if not kept.is_dir():
        place = os.environ.get("HOROVOD_SOURCE", SOURCE)
        try:
            with atomic_folder(kept) as tree:
                _git("clone", "-q", "--depth", "1", "--branch", TAG, place, tree / "clone")
                found = _git("-C", tree / "clone", "rev-parse", "HEAD").strip()
                assert found == COMMIT, f"{TAG} of {place} is {found}"
                for part in ("test", "horovod"):
                    shutil.move(tree / "clone" / part, tree / part)
                shutil.rmtree(tree / "clone")
        except subprocess.CalledProcessError:
            return None
    return kept / "test"


def _git(*words: str | Path) -> str:
    return subprocess.run(
        ["git", *words], capture_output=True, text=True, check=True, timeout=600
    ).stdout


def packages() -> Path:
    """A folder of :data:`PACKAGES`."""
    kept = hosts.KEPT / "horovod-suite-packages"
    if not kept.is_dir():
        with atomic_folder(kept) as tree:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--target", tree, *PACKAGES]
            subprocess.run(pip, check=True, timeout=600)
    return kept


@dataclass(frozen=True)
class Suite:
    """What a launch of tests needs.

    Attributes:
        folder: for results and temporary files.
    """

    tests: Path
    packages: Path
    image: Path
    ranks: int
    folder: Path

    def ran(self, tests: Sequence[str], limit_s: float) -> list[dict[str, Outcome]]:
        """The outcomes on each rank, by name; what did not end within the limit is absent.

        Raises:
            RuntimeError: the launch ended before a test began.
        """
        results = self.folder / "results"
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir(parents=True)
        shown = (self.tests, self.packages, PLUGIN.parent, self.folder)
        paths = f"{self.packages}:{PLUGIN.parent}"
        said = ""
        with suppress(subprocess.TimeoutExpired):
            said = hosts.fairlead(
                "run", "-n", str(self.ranks),
                *(word for folder in shown for word in ("-B", folder)),
                "--env", f"PYTHONPATH={paths}", "--env", "PYTHONDONTWRITEBYTECODE=1",
                "--env", f"FAIRLEAD_SUITE_RESULTS={results}", "--env", "OMP_NUM_THREADS=1",
                self.image, "--", "python3", "-m", "fairlead.comm.dropin", "-m", "pytest", "-q",
                "-p", "no:cacheprovider", "-p", PLUGIN.stem, "--rootdir", self.tests, *tests,
                limit_s=limit_s,
            ).stderr  # fmt: skip
        found = [_read(results / f"rank.{rank}.jsonl") for rank in range(self.ranks)]
        if said and not any(found):
            raise RuntimeError(f"{tests} were not run: {said[-2000:]}")
        return found


def _read(path: Path) -> dict[str, Outcome]:
    if not path.exists():
        return {}
    found: dict[str, list[Outcome]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        why = _first_line(line.get("why", ""))
        found.setdefault(line["test"], []).append(Outcome(line["outcome"], why))
    return {name: _of_parts(outcomes) for name, outcomes in found.items()}


def _of_parts(outcomes: Sequence[Outcome]) -> Outcome:
    """A test's outcome, by those of its parts and then its own, which passes where all parts skip themselves.

    >>> _of_parts([Outcome("skipped", "no GPU"), Outcome("skipped", "no GPU"), Outcome("passed")])
    Outcome(outcome='skipped', why='no GPU')
    >>> _of_parts([Outcome("skipped", "in graphs only"), Outcome("passed"), Outcome("passed")]).outcome
    'passed'
    """
    for one in outcomes:
        if one.outcome == "failed":
            return one
    return next((one for one in outcomes[:-1] if one.outcome == "passed"), outcomes[0])


def _first_line(text: str) -> str:
    """Without the place in the source, which is different from machine to machine."""
    return re.sub(r"^\S+:\d+: ", "", text).partition("\n")[0][:200]


def together(name: str, ranks: Sequence[dict[str, Outcome]]) -> Outcome:
    """A test's outcome, by those on each rank.

    >>> together("a", [{"a": Outcome("passed")}, {}])
    Outcome(outcome='failed', why='rank 1 did not end within 90 s')
    """
    each = [rank.get(name) for rank in ranks]
    for one in each:
        if one is not None and one.outcome == "failed":
            return one
    for rank, one in enumerate(each):
        if one is None:
            return Outcome("failed", f"rank {rank} did not end within {LIMIT_S} s")
    found = {one.outcome for one in each if one is not None}
    first = next(one for one in each if one is not None)
    return first if len(found) == 1 else Outcome("failed", "skipped on some ranks only")


def run(
    wanted: Outcomes,
    folder: Path,
    only: str = "",
    keep: Callable[[Outcomes], object] = lambda outcomes: None,
) -> Outcomes:
    """
    Args:
        wanted: the file, the image and the ranks. Tests that it knows already are not run.
        only: tests whose names match this pattern.
        keep: called after each test with what is known then.
    """
    tests = source()
    assert tests is not None
    suite = Suite(tests, packages(), hosts.image(wanted.image), wanted.ranks, folder)
    place = tests / wanted.file
    found = dict(wanted.tests)
    defined = re.findall(r"^ +def (test_\w+)", place.read_text(), re.MULTILINE)
    names = [n for n in defined if re.search(only, n) and not _cases(n, [f"::{f}" for f in found])]
    if not names:
        return wanted
    # -k takes parts of names: others may come with them.
    seen = suite.ran([str(place), "-k", " or ".join(names)], WHOLE_LIMIT_S)
    known = [key for rank in seen for key in rank]
    assert known, f"{wanted.file} cannot be imported"
    cases = known[0].rpartition("::")[0]
    # What comes after a test that hangs was not seen.
    for key in [key for name in names for key in _cases(name, known) or [f"{cases}::{name}"]]:
        name = key.rpartition("::")[2]
        outcome = together(key, seen)
        if outcome.outcome == "failed":
            # Once one has failed on some ranks only, they may be out of step.
            outcome = together(key, suite.ran([str(place.parent / key)], LIMIT_S))
        found[name] = outcome
        sys.stderr.write(f"{name}: {outcome.outcome} {outcome.why}\n")
        keep(replace(wanted, tests=found))
    return replace(wanted, tests=found)


def _cases(name: str, known: Sequence[str]) -> list[str]:
    """Those of ``known`` that a function makes: one, or one for each of its parameters.

    >>> _cases("test_a", ["x::T::test_a_0", "x::T::test_a_1", "x::T::test_ab"])
    ['x::T::test_a_0', 'x::T::test_a_1']
    """
    pattern = re.compile(rf".*::{name}(_\d+)?")
    return list(dict.fromkeys(key for key in known if pattern.fullmatch(key)))


def write(path: Path, outcomes: Outcomes) -> None:
    row = {**asdict(outcomes), "counts": outcomes.counts}
    with atomic_write(path, "w") as stream:
        stream.write(json.dumps(row, indent=1) + "\n")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image")
    parser.add_argument("file")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(words)
    wanted = Outcomes(given.file, given.image, given.ranks)
    if given.out.exists():
        wanted = Outcomes.read(given.out)
    folder = hosts.KEPT / f"horovod-suite-{given.out.stem}"
    outcomes = run(wanted, folder, given.only, partial(write, given.out))
    sys.stderr.write(f"{outcomes.counts}, {outcomes.share:.0%}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
