"""Known sums in a validation: every rank in a container, over a stand-in for NCCL and for the GPU's driver."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.compiled import compiled
from tests.system import hosts

from fairlead.base.errors import Severity
from fairlead.base.progress import Silent
from fairlead.ml.train.session_runner import runner
from fairlead.perf.measure.step import Context, Options
from fairlead.perf.measure.steps import sums
from fairlead.perf.records.validation import Way
from fairlead.proof.verdict import Proof
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare
from fairlead.swap.model import Request
from fairlead_build.cache.store import scratch_parent

STANDIN = Path(__file__).parents[1] / "support/nccl_standin.c"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("nccl")
    code = STANDIN.read_text()
    files = {
        "/opt/python/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2": compiled(folder / "libnccl.so.2", code),
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1": compiled(folder / "libcuda.so.1", code),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=scratch_parent(500 << 20)) as work:
        yield hosts.unpacked(Path(work, "tree"), files)


@pytest.mark.parametrize(
    ("variable", "severity", "words"),
    [
        ("TEST_NOTHING=1", Severity.INFO, "NCCL 2.27.5 on 2 ranks, 1 node: 25 all-reduces"),
        ("TEST_WRONG=7", Severity.ERROR, "2 wrong values"),
        ("TEST_GPUS=0", Severity.WARNING, "were not made"),
    ],
)
def test_validation_counts_wrong_sums_of_the_ranks_gpus(
    image: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    severity,
    words: str,
) -> None:
    name, value = variable.split("=")
    out = tmp_path / "out"
    out.mkdir()
    for key, given in ((name, value), ("TEST_FOLDER", str(out))):
        monkeypatch.setenv(f"APPTAINERENV_{key}", given)
    prepared = prepare(str(image), Choices(), Request(ranks=2, command=("python3",)))
    proofs: list[Proof] = []
    run = runner(prepared, tmp_path / "ranks.log", proofs.append)
    options = Options(out, (2,), (), quick=True, gpus=True)
    context = Context(options, {Way.CONTAINER: run}, "mpiexec", Silent())
    sums.STEP.measure(context)
    [found] = context.observations.findings
    log = (tmp_path / "ranks.log").read_text()
    assert found.severity is severity and words in found.what, f"{found.what} {found.where}\n{log}"
