"""What `--auto` does for data that are alike on all ranks: seeds, and what it compares."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fairlead import comm
from fairlead.base.errors import FairleadError, fail
from fairlead.comm.auto import held, seeds, shared
from fairlead.comm.core import BufferMatch, digest_of
from fairlead.comm.frameworks import common

UNSEEDED = """
import os, random, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from fairlead.comm.auto import seeds
seeds.of_random(random)
seeds.of_numpy(np.random)
own = lambda: np.random.default_rng().permutation(99).tolist()
print(random.sample(range(99), 9), np.random.permutation(99).tolist(), np.random.RandomState().rand(), own())
np.random.seed(None)
print(np.random.rand(), own() != own(), np.random.default_rng(5).random(), np.random.SeedSequence(7).entropy)
sys.stdout.flush()
there, here = os.pipe()
for _ in range(2):  # workers of a loader augment each in its own way
    if not os.fork():
        os.write(here, np.random.default_rng().bytes(8))
        os._exit(0)
    os.wait()
print(file=sys.stderr, end=os.read(there, 16).hex())
"""


def test_what_a_script_has_not_seeded_is_alike_in_all_processes() -> None:
    runtime = Path(comm.__file__).parents[2]
    line = [sys.executable, "-c", UNSEEDED, str(runtime)]
    one, two = (
        subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
        for _ in range(2)
    )
    assert one.stdout == two.stdout
    _, others, seeded, entropy = one.stdout.splitlines()[1].split()
    assert (others, entropy) == ("True", "7")
    assert float(seeded) == np.random.default_rng(5).random()
    in_workers = [said[i : i + 16] for said in (one.stderr, two.stderr) for i in (0, 16)]
    assert len(set(in_workers)) == 4


def test_seeds_of_the_script_survive_what_a_framework_seeds() -> None:
    random.seed(3)
    np.random.seed(4)
    wanted = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(4)
    with seeds.kept():
        random.seed(0)
        np.random.seed(0)
    assert (random.random(), np.random.rand()) == wanted


class Files:
    def __init__(self, folder: str, order: list[int]):
        self.folder = folder
        self.files = [f"{folder}/{i}.png" for i in order]
        self.rng = np.random.default_rng()
        self.cache: list[object] = [None] * len(order)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> object:
        raise AssertionError("a sample is not made for it")


class Subset:
    def __init__(self, dataset: object, indices: Any):
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> object:
        raise AssertionError("a sample is not made for it")


class Other:
    """A communicator of two ranks, of which this is one."""

    def __init__(self, other: list[held.Part]):
        self.other, self.rank, self.size = other, 0, 2

    def check_buffers_match(self, arrays: Any) -> BufferMatch:
        words = [f"{part.name}\0{part.words}".encode() for part in self.other]
        theirs = [arrays[0], *(np.frombuffer(each, np.uint8) for each in words)]
        pairs = zip(map(digest_of, arrays), map(digest_of, theirs), strict=True)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        return BufferMatch(("", ""), first, (1,))

    def aggregate(self, arrays: Any, any_values: bool = False) -> list[Any]:
        if not any_values:  # of each rank a number: the other has found the same
            return [np.full(2, arrays[0][0] / 2)]
        theirs = np.concatenate([part.values for part in self.other if part.values is not None])
        return [(arrays[0] + theirs) / 2]


def compared(mine: Any, other: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """What differs."""
    monkeypatch.setattr(comm, "init", lambda: Other(held.of_dataset(other)))
    try:
        held.require_alike(held.of_dataset(mine), "here")
    except FairleadError as exc:
        assert exc.findings[0].check == "auto-data-differs"
        return exc.findings[0].what
    return ""


ORDER = list(range(300))
MIXED = [*ORDER[150:], *ORDER[:150]]
VALUES = np.sqrt(np.arange(3000, dtype=np.float32)).reshape(300, 10)


@pytest.mark.parametrize(
    ("mine", "other", "what"),
    [
        (Files("/a", ORDER), Files("/b", ORDER), ""),
        (Files("/a", ORDER), Files("/a", MIXED), "`files` of Files"),
        (Files("/a", ORDER), Files("/a", ORDER[1:]), "the length of Files"),
        (Subset([0] * 300, ORDER[:9]), Subset([0] * 300, range(9)), ""),
        (Subset([0] * 300, np.array(ORDER)), Subset([0] * 300, np.array(MIXED)), "`indices`"),
        (Subset(Files("/a", ORDER), ORDER), Subset(Files("/a", MIXED), ORDER), "`files` of Files"),
        ([{"x": VALUES[i], "y": i} for i in ORDER], [{"x": VALUES[i], "y": i} for i in MIXED], "list"),
        (Subset(VALUES, ORDER), Subset(VALUES * np.float32(1 + 3e-7), ORDER), ""),
        (Subset(VALUES, ORDER), Subset(VALUES[MIXED], ORDER), "`dataset` of Subset"),
        (Subset([VALUES, VALUES], [1]), Subset([VALUES, VALUES[MIXED]], [1]), "array 1 of"),
        (Subset([open], [1]), Subset([print], [1]), ""),
    ],
)  # fmt: skip
def test_ranks_whose_data_differ_are_told_so_and_no_others(
    mine: Any, other: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = compared(mine, other, monkeypatch)
    assert what in said and bool(said) == bool(what)


def test_dataset_is_what_it_was_before_this_rank_read_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, other = Files("/a", ORDER), Files("/a", ORDER)
    assert held.is_new(mine)
    held.of_dataset(mine)
    assert not held.is_new(mine)
    mine.cache[:] = ORDER
    assert not compared(Subset(mine, ORDER), Subset(other, ORDER), monkeypatch)


def test_arrays_at_the_beginning_of_a_pipeline_are_compared() -> None:
    def pipeline(order: list[int]) -> Any:
        first = SimpleNamespace(_tensors=[VALUES[order], np.array(order)], _inputs=list)
        return SimpleNamespace(_inputs=lambda: [first])

    one, two = (held.of_pipeline(pipeline(order)) for order in (ORDER, MIXED))
    assert len(one) == 2 and one[1].words != two[1].words
    assert held.of_pipeline(object()) == []


def test_seeds_by_which_a_pipeline_shuffles_are_compared() -> None:
    def pipeline(seed: int) -> Any:
        shuffled = SimpleNamespace(_seed=np.int64(7), _seed2=np.int64(seed), _inputs=list)
        return SimpleNamespace(_inputs=lambda: [shuffled])

    (one,), (two,), (same,) = (held.of_pipeline(pipeline(seed)) for seed in (1, 2, 1))
    assert one == same and one.name == two.name and one.words != two.words


def test_method_is_replaced_where_it_is_defined() -> None:
    """Keras compares a model's compile with that of the class which defines it, to see whether it is the user's."""

    class Trainer:
        def compile(self) -> str:
            return "own"

    class Model(Trainer):
        pass

    assert shared.owner(Model, "compile") is Trainer
    shared.before(
        shared.owner(Model, "compile"),
        "compile",
        lambda original, model: f"{original(model)}, more",
    )
    assert Model.compile is Trainer.compile and Model().compile() == "own, more"


def test_learning_rates_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ranks:
        rank, size = 0, 2

        def check_buffers_match(self, arrays: Any) -> BufferMatch:
            return BufferMatch(("", ""), 2, (1,))

        def aggregate(self, arrays: Any, any_values: bool) -> list[Any]:
            return [(arrays[0] + np.array([0, 0.25])) / 2]

    monkeypatch.setattr(comm, "init", Ranks)
    with pytest.raises(FairleadError) as raised:
        shared.require_equal_rates([1.0, 0.5])
    (finding,) = raised.value.findings
    assert finding.check == "auto-learning-rate"
    assert "group 1 of the optimizer: rank 0: 0.5; rank 1: 0.25" in finding.where


@pytest.mark.parametrize("ended", [True, False])
def test_rank_that_meets_another_at_another_point_says_so(
    ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ranks:
        rank = 0

        def barrier(self) -> None:
            raise fail("comm-order-from-core", text="rank 1 (vm) called gather", where="x")

        def check_buffers_match(self, arrays: Any) -> BufferMatch:
            return BufferMatch(("", ""), 0, (1,))  # compares something else

    monkeypatch.setattr(common, "by_own_loss", False)
    if ended:
        shared.ends_together()
    monkeypatch.setattr(comm, "init", Ranks)
    for call in (shared.meet, lambda: held.require_alike([], "here")):
        with pytest.raises(FairleadError) as raised:
            call()
        (finding,) = raised.value.findings
        assert (finding.check, finding.where) == ("comm-steps", "rank 1")
        assert ("no longer take the same steps" in finding.what) == ended
        assert ("early stopping" in finding.why) == ended
