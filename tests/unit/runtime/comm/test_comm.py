"""fairlead.comm on one rank, and its pure parts. Several ranks: tests/system/test_comm.py."""

import os
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import fairlead.comm
from fairlead.base.errors import FairleadError
from fairlead.comm import core, mpi, native_core, startup
from fairlead.comm.core import Comm
from fairlead.comm.delayed import Delayed, Schedule
from fairlead.comm.mpi import Alone, ranks_promised

HOST = os.uname().nodename


@pytest.fixture
def comm():
    return Comm(Alone())


class Recorded(Alone):
    """Rank 0 of 3, whose partners answer what the test says."""

    size = 3

    def __init__(self, others):
        self.others = others

    def largest(self, buffer):
        buffer[:] = [7, 7]  # never a mark and its negative

    def allgather(self, value):
        return [value, *(other(value) for other in self.others)]


def same(value):
    return value


def test_aggregate_one_rank_returns_equal_new_arrays(comm):
    arrays = [np.arange(6.0).reshape(2, 3), np.float32([1.5]), np.array(2.0)]
    result = comm.aggregate(arrays)
    for given, got in zip(arrays, result, strict=True):
        np.testing.assert_array_equal(given, got)
        assert got.dtype == given.dtype and got.shape == given.shape  # type: ignore[attr-defined]
        assert not np.shares_memory(given, got)


class OfAGpu:
    """As CuPy's arrays are: NumPy's functions come to it, and its values only when asked for."""

    dtype, shape = np.dtype(np.float32), (3,)

    def __init__(self, values=None):
        self.values = values

    def __array_function__(self, function, types, args, kwargs):
        raise AttributeError(f"no {function.__name__} of the host's memory")

    def __array__(self, dtype=None, copy=None):
        if self.values is None:
            raise TypeError("implicit conversion is not allowed: use .get()")
        return np.array(self.values, np.float32)


def test_aggregate_array_of_a_gpu_goes_by_its_own_conversion_or_says_its_own_words(comm):
    np.testing.assert_array_equal(comm.aggregate([OfAGpu([1, 2, 3])])[0], [1, 2, 3])
    with pytest.raises(TypeError, match=r"use .get\(\)"):
        comm.aggregate([OfAGpu()])


def test_aggregate_strided_arrays_keeps_their_order(comm):
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4).T
    np.testing.assert_array_equal(comm.aggregate([array])[0], array)


def test_aggregate_out_fills_and_returns_the_given_arrays(comm):
    array = np.ones(3, np.float32)
    target = np.zeros(3, np.float32)
    result = comm.aggregate([array], out=[target])
    assert result[0] is target
    np.testing.assert_array_equal(target, array)


def test_aggregate_nothing_returns_nothing(comm):
    assert comm.aggregate([]) == []


def test_aggregate_integers_is_refused_by_index(comm):
    with pytest.raises(FairleadError) as caught:
        comm.aggregate([np.ones(2), np.arange(3)])
    assert caught.value.findings[0].what == "array 1 cannot be reduced"
    assert "int64" in caught.value.findings[0].why


def test_broadcast_one_rank_keeps_any_dtype(comm):
    arrays = [np.array([True, False]), np.arange(3), np.array(["ab", "c"])]
    for given, got in zip(arrays, comm.broadcast(arrays), strict=True):
        np.testing.assert_array_equal(given, got)


def test_broadcast_from_absent_rank_is_refused(comm):
    with pytest.raises(FairleadError, match="root 1 is not a rank"):
        comm.broadcast([np.ones(1)], root=1)


def test_check_buffers_match_digest_sees_bytes_shape_and_dtype(comm):
    base = np.zeros(4, np.float32)
    digests = {
        comm.check_buffers_match([array]).digests[0]
        for array in (base, base.reshape(2, 2), base.astype(np.int32), base + 1)
    }
    assert len(digests) == 4
    assert comm.check_buffers_match([base]).matches


def test_average_and_gather_one_rank(comm):
    assert comm.average(2.5) == 2.5
    assert comm.gather("x") == ["x"]


def test_agreement_other_shape_names_rank_and_array():
    def third(value):
        call, (first, _), host = value
        return call, (first, ("<f4", (9,))), host

    comm = Comm(Recorded([same, third]))
    with pytest.raises(FairleadError) as caught:
        comm.aggregate([np.ones(2), np.ones((3, 3), np.float32)])
    finding = caught.value.findings[0]
    assert finding.where == "rank 2, array 1"
    assert finding.why == "rank 0 has float32 (3, 3), rank 2 has float32 (9,)"


def test_agreement_fewer_arrays_names_the_first_missing():
    comm = Comm(Recorded([lambda value: (value[0], value[1][:1], value[2]), same]))
    with pytest.raises(FairleadError) as caught:
        comm.aggregate([np.ones(2), np.ones(3)])
    assert caught.value.findings[0].where == "rank 1, array 1"
    assert "no array 1 (1 in all)" in caught.value.findings[0].why


def test_agreement_other_call_names_both():
    comm = Comm(Recorded([same, lambda value: ("average", (), "nid9")]))
    with pytest.raises(FairleadError) as caught:
        comm.barrier()
    said = f"rank 2 (nid9) called average while rank 0 ({HOST}) called barrier: call 1 of all"
    assert caught.value.findings[0].what == said


def test_check_buffers_match_majority_decides_who_differs():
    class Ranks(Recorded):
        def largest(self, buffer):
            pass

    def altered(value):
        return [b"other", *value[1:]] if isinstance(value, list) else b"x" * 32

    match = Comm(Ranks([same, altered])).check_buffers_match([np.ones(2), np.ones(3)])
    assert (match.matches, match.first, match.ranks) == (False, 0, (2,))
    match = Comm(Ranks([altered, altered])).check_buffers_match([np.ones(2), np.ones(3)])
    assert match.ranks == (0,)


def test_timings_count_calls_and_bytes(comm):
    comm.aggregate([np.ones(10, np.float32), np.ones(5)])
    comm.barrier()
    assert (comm.timings.calls, comm.timings.bytes) == (2, 80)


def test_ranks_promised_innermost_launcher_counts():
    environ = {"SLURM_STEP_NUM_TASKS": "8", "PMI_SIZE": "2"}
    assert ranks_promised(environ) == (2, "PMI_SIZE")
    assert ranks_promised({"PMI_SIZE": "many"}) == (1, "")


def run_python(code, **environ):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environ}
    )


HIDE_MPI = "import sys; sys.modules['mpi4py'] = None\n"


def test_init_ranks_started_without_mpi_is_refused():
    done = run_python(HIDE_MPI + "from fairlead import comm; comm.init()", PMI_SIZE="4")
    assert done.returncode == 1
    assert "the launcher has started 4 ranks, but none can load an MPI library" in done.stderr


def test_init_no_launcher_no_mpi_is_rank_0_of_1():
    code = "from fairlead import comm; c = comm.init(); print(c.rank, c.size, comm.local_rank())"
    done = run_python(HIDE_MPI + code)
    assert (done.stdout, done.returncode) == ("0 1 0\n", 0)


@pytest.mark.parametrize(
    ("call", "what"),
    [("finalize", "was finalized twice"), ("init", "initialized again after it was finalized")],
)
def test_finalize_is_the_last_call(call, what):
    code = (
        f"from fairlead import comm; comm.finalize(); comm.init(); comm.finalize(); comm.{call}()"
    )
    done = run_python(HIDE_MPI + code)
    assert done.returncode == 1
    assert what in done.stderr


def test_unknown_backend_is_refused_with_those_there_are():
    done = run_python(
        HIDE_MPI
        + "import os; os.environ['FAIRLEAD_COMM_BACKEND'] = 'nativ'\nfrom fairlead import comm; comm.init()"
    )
    assert "unknown backend `nativ`" in done.stderr


def test_import_loads_no_mpi_and_few_modules():
    code = """
import sys, numpy
before = set(sys.modules)
import fairlead.comm
new = sorted(set(sys.modules) - before)
assert not [name for name in new if name.startswith("mpi4py")], new
assert len(new) <= 15, new
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_connect_launcher_that_gives_no_size_is_believed_by_mpi(monkeypatch):
    """As PRRTE and PALS: ranks find each other, and no variable says how many there are."""

    class Two(Alone):
        size = 2

    monkeypatch.setattr(mpi, "Mpi4py", lambda library: Two())
    monkeypatch.setitem(sys.modules, "mpi4py", types.SimpleNamespace(MPI=None))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert mpi.connect({"PMIX_RANK": "0"}).size == 2


def test_gather_to_no_rank_is_refused(comm):
    with pytest.raises(FairleadError, match="root 3 is not a rank"):
        comm.gather(1, root=3)


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan_and_infinity():
    values = np.float32([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.4e38, np.inf, -0.0])
    want = np.float32([1, 1, 1 + 4 * 2**-8, 1 + 2 * 2**-8, np.inf, np.inf, -0.0])
    np.testing.assert_array_equal(core.rounded(values, "bf16"), want)
    assert np.isnan(core.rounded(np.float32([np.nan]), "bf16")[0])
    assert core.rounded(np.float64([1 / 3]), "bf16")[0] == 1 / 3


def test_unknown_compression_is_refused(comm):
    with pytest.raises(FairleadError) as caught:
        comm.aggregate([np.ones(2, np.float32)], compression="int8")
    assert caught.value.findings[0].check == "comm-compression"


def test_steady_arrays_are_not_copied_and_means_are_the_callers():
    late = Delayed(Comm(Alone()), Schedule(100, 1), momentum=0.0, steady=True)
    given = [np.full(3, step, np.float32) for step in range(6)]
    held = [means[0] for step in given for means in late.step([step])]
    held += [means[0] for means in late.flush()]
    # All are held, so none was written over.
    assert [mean.tolist() for mean in held] == [[step] * 3 for step in range(6)]
    assert all(mean.ctypes.data % 64 == 0 for mean in held)
    places = {mean.ctypes.data for mean in held}
    del held
    used = {means[0].ctypes.data for step in given for means in late.step([step])}
    assert used <= places  # what nobody holds is used again


def test_no_module_of_the_package_hides_a_public_function() -> None:
    """Importing ``fairlead.comm.NAME`` would replace the function ``NAME`` by the module."""
    modules = {module.name for module in pkgutil.iter_modules(fairlead.comm.__path__)}
    assert modules.isdisjoint(
        n for n in fairlead.comm.__all__ if callable(getattr(fairlead.comm, n))
    )


def test_facts_that_ranks_compare_name_the_code_of_comm() -> None:
    bytes_of = sum(
        Path(module.__file__).stat().st_size for module in (fairlead.comm, core, mpi, startup)
    )
    assert startup.facts({})["fairlead"].endswith(f" {bytes_of} bytes of comm")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("rank 1 (n2): its host cannot be reached; rank 0 waits in barrier", "ping that host"),
        ("rank 1 (n2) has ended without fairlead_comm_finalize; rank 0 waits", "last output"),
    ],
)
def test_peer_whose_host_is_silent_has_another_remedy_than_one_that_ended(
    words: str, remedy: str
) -> None:
    (finding,) = native_core.failed("comm.barrier", 5, words).findings
    assert finding.what == words and remedy in finding.remedy
    assert finding.check == "comm-peer-lost"
