"""Every benchmark of the collectives runs, with little to do: what is timed is right, and nothing is left."""

from __future__ import annotations

import os
import subprocess
from itertools import product
from pathlib import Path

import pytest
from benchmarks import watchdog
from benchmarks.bars import comm_link as link
from benchmarks.bars import comm_peers as peers
from benchmarks.bars import comm_scaling as scaling
from benchmarks.bars import compression, convergence, parallel, swap
from benchmarks.bars import step_efficiency as steps
from benchmarks.peers import nets
from tests.system import hosts

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")


def test_ranks_that_outnumber_cores_are_right_and_the_model_is_fitted() -> None:
    result = scaling.measure(
        scaling.Effort(ranks=(2, 8), sizes=(4096, 65536), rates=(), rounds=2, inputs=256, steps=4)
    )
    checked = [row for row in result.rows if row.bar is not None]
    assert len(checked) == 6 and all(row.met for row in checked)
    assert {"8 ranks: error of means, relative", "8 ranks, delayed: weights off one process's"} <= {
        row.name for row in checked
    }
    assert any(row.name.startswith("held out: 8 ranks") for row in result.rows)
    # On a machine that others use as well, the fit may find one of the two to be nothing.
    assert (
        sum(float(result.versions[f"fitted {name}"]) for name in ("node_latency", "node_byte")) > 0
    )


def test_sweep_whose_ranks_share_a_core_is_refused_at_once(tmp_path: Path) -> None:
    """An MPI's ranks wait by spinning: each message would cost the other's time slice, for a quarter of an hour."""
    mpich, program, cpu = hosts.mpich(), tmp_path / "mpi_sweep", min(os.sched_getaffinity(0))
    words = [mpich / "bin/mpicc", "-O2", "-o", program, swap.PROGRAMS / "mpi_sweep.c"]
    subprocess.run(words, check=True)
    start = [mpich / "bin/mpiexec", "-bind-to", f"user:{cpu},{cpu}", "-n", "2", program]
    with pytest.raises(RuntimeError, match=f"both ranks are on core {cpu}: the launcher has not"):
        watchdog.run(start, {**os.environ, "LD_LIBRARY_PATH": str(mpich / "lib")}, folder=tmp_path)


@pytest.mark.full
def test_every_way_to_train_is_measured() -> None:
    effort = steps.Effort(models=("hep", "cosmo"), rounds=1, ours=2, size="tiny")
    found = steps.samples(effort)
    modes = [key for key, mode in steps.MODES.items() if mode.base != key]
    assert set(found) == set(product(effort.models, modes))
    assert all(min(pair) > 0 for pairs in found.values() for pair in pairs)
    assert len(found["hep", "sync"]) == 2 and len(steps.rows_of(found)) == len(found)


@pytest.mark.full
def test_every_library_adds_rightly() -> None:
    found = peers.samples(peers.Effort(sizes=(1024, 1 << 20), rounds=2))
    assert set(found) == set(product(peers.TITLES, (1024, 1 << 20)))


@pytest.mark.full
@root
def test_a_step_over_a_limited_link_takes_as_long_as_the_link() -> None:
    effort = link.Effort(models=("cosmo",), rounds=1, steps=2, size="tiny")
    found = link.samples(effort)["cosmo"]
    assert set(found) == set(link.MODES)
    least = 32 * nets.TINY["cosmo"].weights / link.RATES["cosmo"]
    assert min(found["only"]) > 0.8 * least and min(found["sync"]) > 0.8 * least
    assert len(link.rows_of("cosmo", found)) == 4


@pytest.mark.full
def test_ranks_learn_and_end_alike() -> None:
    effort = convergence.Effort(seeds=1, samples=(("hep", 320, 1), ("cosmo", 96, 1)))
    found = convergence.scores(effort)
    assert len(found) == 6
    hep = [score for (model, _), scores in found.items() for score in scores if model == "hep"]
    assert all(0 <= score <= 1 for score in hep)
    # The same batches on one process and on two, rounding apart.
    assert found["hep", "sync"] == pytest.approx(found["hep", "alone"], abs=0.02)


@pytest.mark.full
@root
def test_compressed_gradients_over_a_cable_are_learnt_from() -> None:
    effort = compression.Effort(
        seeds=1, samples=320, epochs=1, marks=2, rounds=1, timed=160, rate=20e6
    )
    step_s, found = compression.trained(effort)
    assert set(found) == set(step_s) == set(compression.TITLES)
    assert all(each[0].steps == (5, 10) for each in found.values())
    # A step of float32 waits for 2.4 MB by 2.5 MB/s; halves for half of that.
    assert step_s["none"][0] > 1.3 * step_s["fp16"][0] and step_s["bf16"] > step_s["powersgd"]


@pytest.mark.full
def test_idle_share_of_a_pipeline_is_measured_by_either_schedule() -> None:
    result = parallel.measure_pipeline(microbatches=(2,), rounds=2, steps=1)
    assert {row.name: row.baseline for row in result.rows[:2]} == {
        f"{name}, 2 microbatches": (1 / 3, 1 / 3) for name in ("gpipe", "1f1b")
    }
    assert all(0 < share < 1 for row in result.rows for share in row.samples)


@pytest.mark.full
def test_pipelines_of_torch_by_two_libraries_have_the_same_gradients() -> None:
    result = parallel.measure_torch(microbatches=(2,), rounds=2, steps=1)
    assert len(result.rows) == 2


@pytest.mark.full
@root
def test_two_teams_over_a_cable_average_rightly() -> None:
    result = parallel.measure_teams(rounds=2, steps=1)
    assert len(result.rows) == 4 and min(result.rows[0].samples) > 0


@pytest.mark.full
def test_workers_out_of_step_and_parameter_servers_make_as_many_gradients() -> None:
    seconds, losses, stale = parallel.samples(parallel.Effort(rounds=1, gradients=8, size=32))
    cases = set(product(parallel.PAUSES, parallel.MODES))
    assert set(seconds) == set(losses) == cases
    synchronous = {
        losses[pauses, mode][0] for pauses in parallel.PAUSES for mode in ("allreduce", "0")
    }
    assert max(synchronous) - min(synchronous) < 1e-6 * max(synchronous)
    assert max(stale["turns", "4"]) <= 4 and set(stale["turns", "0"]) == {0}
