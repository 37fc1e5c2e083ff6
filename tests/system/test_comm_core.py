"""The collective core, one binary beneath four MPIs: results, wrong use, ends of every kind, sanitizers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from tests.system import hosts
from tests.system.netns import Host, launcher, two_hosts

import fairlead
from fairlead import native
from fairlead.base.paths import cache_dir

INCLUDE = native.core_folder() / "include"
RUNTIME = Path(fairlead.__file__).parents[1]
HOST = socket.gethostname()
# On whose ABI the core says it runs, and the file that it is.
MPIS = {
    "mpich": ("mpich", "libmpi.so.12"),
    "mpi-abi": ("mpi-abi", "libmpi_abi.so.1"),
    "intel": ("mpich", "libmpi.so"),
    "openmpi": ("openmpi", "libmpi.so.40"),
}
# What a program of each is linked to.
LINKED = {**{name: file for name, (_, file) in MPIS.items()}, "intel": "libmpi.so.12"}
SANITIZE = {"thread": "thread", "address": "address,undefined"}
BAD_CALL, DIFFER, PEER_LOST, TIMEOUT, INTERRUPTED = 1, 4, 5, 6, 8


@cache
def core() -> Path:
    return native.ensure(native.CORE, cache_dir())


def _made(stem: str, words: list[str], sources: list[Path], suffix: str = "") -> Path:
    """What a compiler makes of ``sources`` with ``words``, kept until either changes.

    A library among them is linked by its path, which a moved cache changes.
    """
    linked = [str(source) for source in sources if source.suffix == ".so"]
    state = hashlib.sha256(repr((words, linked)).encode())
    for source in [*sources, INCLUDE / "fairlead_comm.h"]:
        state.update(source.read_bytes())
    made = hosts.KEPT / "programs" / f"{stem}-{state.hexdigest()[:16]}{suffix}"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        beside = made.with_name(f".{made.name}.{os.getpid()}")
        files = [source for source in sources if source.suffix in (".c", ".cpp", ".so")]
        argv = ["nice", *words, "-I", INCLUDE, *files, "-o", beside, "-ldl", "-lpthread"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        beside.rename(made)
    return made


@cache
def program(name: str, sanitizer: str = "") -> Path:
    """``programs/NAME.c``, compiled without any MPI."""
    flags = [f"-fsanitize={SANITIZE[sanitizer]}"] if sanitizer else []
    library = sanitized(sanitizer) if sanitizer else core()
    # The core has no name of its own: what is linked is named by its path.
    return _made(name, ["cc", "-O1", "-g", *flags], [hosts.PROGRAMS / f"{name}.c", library])


@cache
def sanitized(sanitizer: str) -> Path:
    """The core as an ordinary library with a sanitizer, and late in all that it tells other ranks."""
    words = [
        "c++", "-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti", "-w",
        "-ffp-contract=off", "-fvisibility=hidden", "-DFAIRLEAD_COMM_JITTER",
        f"-fsanitize={SANITIZE[sanitizer]}", "-fno-sanitize-recover=undefined",
    ]  # fmt: skip
    return _made(
        f"core-{sanitizer}", words, sorted((native.core_folder() / "src").iterdir()), ".so"
    )


@pytest.fixture(autouse=True)
def memory() -> Iterator[Path]:
    """A folder of shared memory for this test alone, which every test has to leave empty."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-test-", dir="/dev/shm"))
    yield folder
    late = time.monotonic() + 5
    while any(folder.iterdir()) and time.monotonic() < late:
        time.sleep(0.05)
    left = sorted(path.name for path in folder.iterdir())
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert not left


@pytest.fixture
def said(tmp_path: Path) -> Path:
    return tmp_path / "said"


Ranks = Callable[..., subprocess.CompletedProcess[str]]
# Hydra ends all ranks when one ends badly; here the others are to say what they see. With this it tells them by
# SIGUSR1, and sometimes kills what it has started all the same: that is a shell then.
LEFT_ALONE = ("-disable-auto-cleanup",)


@pytest.fixture
def ranks(memory: Path, said: Path) -> Ranks:
    """Runs words on so many ranks of an MPI. A name ending in .py is a program in Python."""

    def run(
        count: int,
        *words: str | Path,
        mpi: str = "mpich",
        library: Path | None = None,
        limit_s: float = 100,
        launch: tuple[str, ...] = (),
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        prefix = {"intel": hosts.intel, "openmpi": hosts.openmpi}.get(mpi, hosts.mpich)()
        # MPICH 5 has both ABIs in one folder, of which the core takes the standard one unless told.
        loaded = prefix / "lib/libmpi.so.12" if mpi == "mpich" else ""
        first, *rest = (str(word) for word in words)
        command = [first, *rest]
        if first.endswith(".py") and "/" not in first:
            command = [sys.executable, str(hosts.PROGRAMS / first), *rest]
        if launch == LEFT_ALONE:
            command = ["sh", "-c", 'trap "" USR1; "$@"; true', "sh", *command]
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD_COMM_")},
            "LD_LIBRARY_PATH": str(prefix / "lib"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(RUNTIME),
            "FAIRLEAD_COMM_LIBRARY": str(library or core()),
            "FAIRLEAD_COMM_SHM": str(memory),
            "SAID": str(said),
            "FAIRLEAD_RUN_FOLDER": str(said.parent),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **variables,
        }
        preload = f"{environ.pop('LD_PRELOAD', '')} {loaded}".strip()
        start = [prefix / "bin/mpiexec", *(("--oversubscribe",) if mpi == "openmpi" else ())]
        return subprocess.run(
            ["nice", *start, *launch, "-n", str(count), "env", f"LD_PRELOAD={preload}", *command],
            capture_output=True,
            text=True,
            env=environ,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, Host]]:
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    with two_hosts() as both:
        yield both


def fine(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


Failure = tuple[int, int, float, str]


def failures(said: Path) -> list[Failure]:
    """(rank, status, seconds, words) of each call of comm_wrong.py that was to fail."""
    found = re.findall(r"^(\d+) (\d+) (\d+\.\d) (.*)$", said.read_text(), re.MULTILINE)
    return sorted((int(r), int(s), float(t), w.replace(HOST, "HOST")) for r, s, t, w in found)


def blamed(said: Path) -> dict[str, str]:
    """Whom each rank fails for, as it notes for the closing error of `fairlead run`."""
    return {path.suffix[1:]: path.read_text() for path in said.parent.glob("blames.*")}


# --- one binary -------------------------------------------------------------------------------


def test_core_needs_no_library_no_symbol_version_and_no_executable_stack() -> None:
    with core().open("rb") as stream:
        elf = ELFFile(stream)
        (dynamic,) = (s for s in elf.iter_sections() if isinstance(s, DynamicSection))
        tags = {tag.entry.d_tag for tag in dynamic.iter_tags()}
        assert not tags & {"DT_NEEDED", "DT_RPATH", "DT_RUNPATH", "DT_TEXTREL", "DT_VERNEED"}
        assert not any(isinstance(s, GNUVerNeedSection) for s in elf.iter_sections())
        (stack,) = (s for s in elf.iter_segments() if s["p_type"] == "PT_GNU_STACK")
        assert not stack["p_flags"] & 1
        symbols = list(elf.get_section_by_name(".dynsym").iter_symbols())
        given = {s.name for s in symbols if s.name and s["st_shndx"] != "SHN_UNDEF"}
        wanted = {s.name for s in symbols if s.name and s["st_shndx"] == "SHN_UNDEF"}
    declared = set(
        re.findall(r"\b(fairlead_comm_\w+)\(", (INCLUDE / "fairlead_comm.h").read_text())
    )
    assert given == declared
    # Neither MPI nor the C++ library; and of libc nothing that is newer than glibc 2.17.
    assert not [name for name in wanted if name.startswith(("MPI_", "_Z", "__cxa_throw"))]
    assert not wanted & {
        "stat",
        "fstat",
        "lstat",
        "fcntl64",
        "pthread_cond_wait",
        "getrandom",
        "gettid",
    }


@pytest.mark.parametrize("mpi", MPIS)
def test_same_binary_under_every_mpi_sums_and_spreads_right(mpi: str, ranks: Ranks) -> None:
    text = fine(ranks(3, program("comm_check"), "1", "300000", mpi=mpi))
    abi, name = MPIS[mpi]
    assert re.search(rf"^3 ranks 1 nodes shm=1 \(\) {abi} \S+/{re.escape(name)} ", text), text
    assert "ok calls" in text


@pytest.mark.full
@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("node", ["", "2"])
def test_same_binary_under_every_mpi_with_other_ranks(
    mpi: str, count: int, node: str, ranks: Ranks
) -> None:
    assert "ok calls" in fine(
        ranks(count, program("comm_check"), "2", mpi=mpi, FAIRLEAD_COMM_NODE_RANKS=node)
    )


@pytest.mark.parametrize(
    ("count", "threads", "variables", "layout"),
    [
        (1, 2, {}, "1 ranks 1 nodes shm=1"),
        (2, 2, {}, "2 ranks 1 nodes shm=1"),
        (4, 2, {"FAIRLEAD_COMM_NODE_RANKS": "2"}, "4 ranks 2 nodes shm=1"),
        (5, 1, {"FAIRLEAD_COMM_NODE_RANKS": "2"}, "5 ranks 3 nodes shm=1"),
        (5, 2, {"FAIRLEAD_COMM_CHUNK_KB": "4"}, "5 ranks 1 nodes shm=1"),
        (3, 1, {"FAIRLEAD_COMM_SHARED_MEMORY": "0"}, "3 ranks 3 nodes shm=0 (FAIRLEAD_COMM_SHARED_MEMORY=0)"),
        (5, 2, {"FAIRLEAD_COMM_NODE_RANKS": "2", "FAIRLEAD_COMM_DETERMINISTIC": "1"}, "5 ranks 3 nodes shm=1"),
        (3, 1, {"FAIRLEAD_COMM_NODE_RANKS": "1", "FAIRLEAD_COMM_ALGORITHM": "mpi"}, "3 ranks 3 nodes shm=1"),
        (3, 1, {"FAIRLEAD_COMM_NODE_RANKS": "1", "FAIRLEAD_COMM_ALGORITHM": "doubling"}, "3 ranks 3 nodes shm=1"),
        (5, 1, {"FAIRLEAD_COMM_NODE_RANKS": "1", "FAIRLEAD_COMM_ALGORITHM": "halving"}, "5 ranks 5 nodes shm=1"),
        (6, 2, {"FAIRLEAD_COMM_NODE_RANKS": "2", "FAIRLEAD_COMM_ALGORITHM": "ring"}, "6 ranks 3 nodes shm=1"),
        (6, 1, {"FAIRLEAD_COMM_NODE_RANKS": "1", "FAIRLEAD_COMM_ALGORITHM": "groups"}, "6 ranks 6 nodes shm=1"),
    ],
    ids=["alone", "two", "even", "uneven", "small-chunks", "no-memory", "uneven-ordered", "mpi", "doubling", "halving", "ring", "groups"],
)  # fmt: skip
def test_every_layout_sums_and_spreads_right(
    count: int, threads: int, variables: dict[str, str], layout: str, ranks: Ranks
) -> None:
    text = fine(ranks(count, program("comm_check"), str(threads), "300000", **variables))
    assert text.startswith(layout) and "ok calls" in text


@pytest.mark.parametrize("count", [8, pytest.param(16, marks=pytest.mark.full), pytest.param(32, marks=pytest.mark.full)])  # fmt: skip
@pytest.mark.parametrize("node", ["", "3"])
def test_many_more_ranks_than_processors_stay_right(count: int, node: str, ranks: Ranks) -> None:
    assert "ok calls" in fine(
        ranks(count, program("comm_check"), "1", "3000", FAIRLEAD_COMM_NODE_RANKS=node, limit_s=300)
    )


def test_every_instruction_set_gives_the_same_bits_and_they_are_right(ranks: Ranks) -> None:
    """Any bits, denormals, NaN, infinities, ties; the program itself compares with NumPy."""
    answers = {}
    for asked in ("", "generic", "avx2"):
        if asked in answers:
            continue  # it is the best that this processor has
        _, kernels, digest = fine(ranks(2, "comm_kernels.py", FAIRLEAD_COMM_KERNELS=asked)).split()
        answers[kernels] = digest
    assert "generic" in answers or "neon" in answers
    assert len(set(answers.values())) == 1, answers


CPUS = sorted(os.sched_getaffinity(0))


def bound(*places: int) -> tuple[str, ...]:
    """Words that bind each rank to one processor of those that the test may use."""
    return ("-bind-to", f"user:{','.join(str(CPUS[place]) for place in places)}")


@pytest.mark.skipif(len(CPUS) < 2, reason="two ranks share the only processor")
@pytest.mark.parametrize(
    ("count", "launch", "node", "crowded"),
    [
        (2, (), "", "0 0"),
        (2, bound(0, 1), "", "0 0"),
        (2, bound(0, 0), "", "1 1"),
        (2, bound(0, 0), "1", "1 1"),  # they share no memory, yet the processor
        (3, bound(0, 1, 0), "", "1 1 1" if len(CPUS) == 2 else None),
        (len(CPUS) + 1, (), "1", " ".join("1" * (len(CPUS) + 1))),
    ],
    ids=["unbound", "bound", "same", "same-apart", "two-and-one", "many"],
)
def test_bound_ranks_know_whether_they_outnumber_their_processors(
    count: int, launch: tuple[str, ...], node: str, crowded: str | None, ranks: Ranks
) -> None:
    """A rank that is bound to one of two processors has no reason to sleep while it waits."""
    words = (
        "import os, comm_core as c; c.call('init'); rank, crowded = c.raw('rank'), c.raw('crowded')\n"
        "os.write(1, f'{rank} {crowded}\\n'.encode()); c.call('finalize')"
    )
    done = ranks(
        count, sys.executable, "-c", words, launch=launch, FAIRLEAD_COMM_NODE_RANKS=node,
        PYTHONPATH=f"{RUNTIME}:{hosts.PROGRAMS}",
    )  # fmt: skip
    found = sorted(fine(done).splitlines())
    wanted = (crowded or "1 0 1").split()
    assert found == [f"{rank} {each}" for rank, each in enumerate(wanted)], done.stdout


# --- any tensors in any order -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "variables"),
    [
        (2, {}),
        (3, {"FAIRLEAD_COMM_NODE_RANKS": "2", "FAIRLEAD_COMM_CHUNK_KB": "4"}),
    ],
    ids=["node", "uneven-small"],
)
def test_random_tensors_blocking_and_started_over_teams_are_numpys(
    count: int, variables: dict[str, str], ranks: Ranks
) -> None:
    fine(ranks(count, "comm_random.py", "11", "40", **variables))


@pytest.mark.full
@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("variables", [
    {}, {"FAIRLEAD_COMM_NODE_RANKS": "2"}, {"FAIRLEAD_COMM_SHARED_MEMORY": "0"},
    {"FAIRLEAD_COMM_NODE_RANKS": "3", "FAIRLEAD_COMM_KERNELS": "generic", "FAIRLEAD_COMM_SPIN_US": "0"},
], ids=["node", "even", "no-memory", "uneven-generic"])  # fmt: skip
def test_other_random_tensors_are_numpys_under_every_mpi(
    mpi: str, variables: dict[str, str], ranks: Ranks
) -> None:
    seed = int(time.time())  # printed when it fails: each run tries others
    fine(ranks(4, "comm_random.py", str(seed), "150", mpi=mpi, limit_s=250, **variables))


@pytest.mark.parametrize(
    ("count", "per_node", "mpi", "variables"),
    [
        (2, 2, "mpich", {}),
        (5, 1, "mpich", {"FAIRLEAD_COMM_DETERMINISTIC": "1", "FAIRLEAD_COMM_CHUNK_KB": "4"}),
        pytest.param(6, 2, "mpich", {"FAIRLEAD_COMM_DETERMINISTIC": "1"}, marks=pytest.mark.full),
        (5, 2, "openmpi", {"FAIRLEAD_COMM_DETERMINISTIC": "1"}),
        pytest.param(
            *(6, 2, "intel", {"FAIRLEAD_COMM_DETERMINISTIC": "1", "FAIRLEAD_COMM_CHUNK_KB": "64"}),
            marks=pytest.mark.full,
        ),
        (5, 1, "mpich", {"FAIRLEAD_COMM_DETERMINISTIC": "1", "FAIRLEAD_COMM_BACKEND": "mpi4py"}),
    ],
    ids=["node", "small-chunks", "even", "uneven", "intel", "mpi4py"],
)
def test_order_of_a_sum_is_that_of_ranks_and_nodes_whatever_mpi_and_chunks(
    count: int, per_node: int, mpi: str, variables: dict[str, str], ranks: Ranks
) -> None:
    nodes = {} if per_node == count else {"FAIRLEAD_COMM_NODE_RANKS": str(per_node)}
    backend = {"FAIRLEAD_COMM_BACKEND": "native"}
    words = ("comm_ordered.py", str(per_node), "1")
    assert "ok" in fine(ranks(count, *words, mpi=mpi, **(backend | nodes | variables)))


def test_ten_thousand_steps_leak_neither_memory_nor_files(ranks: Ranks) -> None:
    text = fine(ranks(2, program("comm_threads"), "10000"))
    grown = [
        (int(kb), int(files)) for kb, files in re.findall(r"ok: (-?\d+) kB and (-?\d+) files", text)
    ]
    assert len(grown) == 2
    assert all(kb < 1000 and files == 0 for kb, files in grown), text


# --- what MPI grants ----------------------------------------------------------------------------

LEVELS = ["multiple", "serialized", "funneled", "single"]
# Ranks, and ranks per node.
NODES_OF_ONE = [(2, "1"), (3, "1"), (4, "2"), (3, "")]


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("count", "node"),
    [pytest.param(*p, marks=[pytest.mark.full] * (p != (2, "1"))) for p in NODES_OF_ONE],
)
def test_every_level_of_threads_is_right_while_the_program_uses_mpi_itself(
    count: int, node: str, level: str, mpi: str, ranks: Ranks
) -> None:
    """Between nodes a thread of the core's own would be in MPI at the same time as the program."""
    words = ("comm_levels.py", level, LINKED[mpi])
    done = ranks(count, *words, mpi=mpi, FAIRLEAD_COMM_NODE_RANKS=node, limit_s=240)
    check_level(fine(done), done.stderr, node != "")


def check_level(output: str, errors: str, between_nodes: bool) -> None:
    granted, known, status, words = output.strip().split("|")
    assert granted == known
    restricted = between_nodes and granted != "multiple"
    notice = f"grants MPI_THREAD_{granted.upper()}: between nodes everything moves in the threads"
    assert errors.count(notice) == restricted, errors
    if restricted:
        assert errors.count("set MPICH_MAX_THREAD_SAFETY=multiple") == 1
    if restricted and granted != "serialized":
        assert int(status) == BAD_CALL
        assert words.startswith("fairlead_comm_aggregate was called in a thread that may not call")
        assert "MPICH_MAX_THREAD_SAFETY=multiple" in words
    else:
        assert int(status) == 0, words


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_of_threads_is_right_on_two_hosts(
    level: str, pair: tuple[Host, Host], said: Path
) -> None:
    one, _ = pair
    start = launcher(one, hosts.mpich() / "bin/mpiexec.hydra", hosts="node1:1,node2:2")
    program = (sys.executable, hosts.PROGRAMS / "comm_levels.py", level, LINKED["mpich"])
    words = one.words(start, "-n", "3", *program)
    variables: Mapping[str, str] = {
        **os.environ, "LD_LIBRARY_PATH": str(hosts.mpich() / "lib"),
        "FAIRLEAD_COMM_LIBRARY": str(core()), "UCX_TLS": "self,tcp", "PYTHONPATH": str(RUNTIME),
    }  # fmt: skip
    done = subprocess.run(
        words, env=variables, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    check_level(fine(done), done.stderr, True)


# --- sanitizers ---------------------------------------------------------------------------------

# UCX's own hooks into memory calls and its reads of other processes do not go with the thread sanitizer.
QUIET = {
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 exitcode=66",
    "ASAN_OPTIONS": "detect_leaks=0",
    "UCX_TLS": "self,tcp",
    "UCX_MEM_EVENTS": "n",
}


def _runtime(*names: str) -> str:
    """Sanitizers' libraries, which must be the first that a process loads."""
    words = [["cc", f"-print-file-name=lib{name}.so"] for name in names]
    return " ".join(
        subprocess.run(w, capture_output=True, text=True, check=True).stdout.strip() for w in words
    )


@pytest.mark.parametrize(
    ("name", "words"), [("comm_check", ("2", "80000")), ("comm_threads", ("40",))]
)
def test_thread_sanitizer_finds_no_race_in_a_rank(
    name: str, words: tuple[str, ...], ranks: Ranks
) -> None:
    done = ranks(
        2, program(name, "thread"), *words, mpi="mpi-abi", limit_s=200, **QUIET,
    )  # fmt: skip
    assert "ok" in fine(done) and "ThreadSanitizer" not in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("kernels", ["generic", "avx2"])
@pytest.mark.parametrize("node", ["", "2"])
def test_address_and_undefined_sanitizers_find_nothing_whatever_the_timing(
    kernels: str, node: str, ranks: Ranks
) -> None:
    """Races between ranks are invisible to sanitizers: what ranks tell each other is made late at random."""
    done = ranks(
        3, "comm_random.py", "7", "10", library=sanitized("address"), limit_s=200,
        LD_PRELOAD=_runtime("asan", "ubsan"), FAIRLEAD_COMM_KERNELS=kernels,
        FAIRLEAD_COMM_NODE_RANKS=node, FAIRLEAD_COMM_CHUNK_KB="16", **QUIET,
    )  # fmt: skip
    assert fine(done).count("ok") == 3
    assert "runtime error" not in done.stderr and "Sanitizer" not in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_any_timing_of_shared_memory_gives_the_same(seed: int, ranks: Ranks) -> None:
    fine(ranks(
        2 + seed % 4, "comm_random.py", str(seed), "150", library=sanitized("address"), limit_s=280,
        LD_PRELOAD=_runtime("asan", "ubsan"), FAIRLEAD_COMM_CHUNK_KB="4",
        FAIRLEAD_COMM_NODE_RANKS=str(seed % 3), **QUIET,
    ))  # fmt: skip


# --- memory that ranks share -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 5])
def test_odd_rank_is_named_where_tensors_are_summed_in_place(count: int, ranks: Ranks) -> None:
    text = fine(ranks(count, "comm_shared.py", "odd", FAIRLEAD_COMM_NONFINITE="stop"))
    last = count - 1
    nan = f"rank {last} ({HOST}) passed NaN as element 41227 of tensor 1 (t1) to aggregate (sum)"
    for rank in range(count):
        in_place, apart, finite = re.findall(rf"^{rank} 9 (.*)$", text, re.MULTILINE)
        assert in_place == f"{nan}, call 1 of team 0"
        assert apart == f"{nan}, call 2 of team 0"
        assert "is infinite though no rank passed NaN or infinity" in finite


@pytest.mark.parametrize(
    "algorithm", ["auto", *(pytest.param(name, marks=pytest.mark.full) for name in ("ring", "mpi"))]
)
@pytest.mark.parametrize("node", ["2", "3"], ids=["even", "uneven"])
def test_nodes_sum_in_place_what_lies_in_shared_memory(
    node: str, algorithm: str, ranks: Ranks
) -> None:
    text = fine(
        ranks(4, "comm_shared.py", "far", FAIRLEAD_COMM_NONFINITE="stop", FAIRLEAD_COMM_NODE_RANKS=node,
              FAIRLEAD_COMM_ALGORITHM=algorithm)
    )  # fmt: skip
    odd = re.findall(
        r"^(\d) 9 rank 3 \(\S+\) passed infinity as element 777777 of", text, re.MULTILINE
    )
    assert sorted(odd) == list("0123")


def test_pages_of_the_program_become_shared_and_stay_where_they_are(ranks: Ranks) -> None:
    assert fine(ranks(3, "comm_shared.py", "given")).count("ok") == 3


def test_shared_memory_is_given_back(ranks: Ranks) -> None:
    assert fine(ranks(2, "comm_shared.py", "mapped")).count("ok") == 2


def test_wrong_calls_for_shared_memory_say_what_is_wrong(ranks: Ranks) -> None:
    text = ranks(2, "comm_shared.py", "wrong").stdout
    for words in (
        "(1, 'fairlead_comm_alloc: 0 bytes are not between 1 and 2^46')",
        "starts and ends with a page of 4096 bytes",
        "(1, 'fairlead_comm_free: no shared memory starts at 0x1000')",
        "passed bytes of 8192 elements as tensor 0 to alloc",
    ):
        assert words in text


def test_death_of_a_rank_is_seen_where_tensors_are_summed_in_place(ranks: Ranks) -> None:
    done = ranks(3, "comm_shared.py", "killed", launch=LEFT_ALONE)
    lines = re.findall(rf"^{PEER_LOST} rank 1 \({HOST}\) has ended", done.stdout, re.MULTILINE)
    assert len(lines) == 2, done.stdout + done.stderr


@pytest.mark.parametrize(
    "variables",
    [{"FAIRLEAD_COMM_SHM": "/nowhere"}, {"FAIRLEAD_COMM_NODE_RANKS": "2"}, {"FAIRLEAD_COMM_NODE_RANKS": "1"}],
    ids=["no-folder", "two-nodes", "a-rank-a-node"],
)  # fmt: skip
def test_sums_are_right_where_memory_cannot_be_shared(
    variables: dict[str, str], ranks: Ranks
) -> None:
    done = ranks(4, "comm_shared.py", "without", **variables)
    assert fine(done).count("ok") == 4
    assert ("bytes of tensors are copied in each call" in done.stderr) == (
        "NODE_RANKS" not in str(variables)
    )


# --- impossible to use wrongly --------------------------------------------------------------------


@pytest.mark.parametrize("node", ["", "2"], ids=["one-node", "two-nodes"])
def test_ranks_that_disagree_are_all_named_with_the_difference(
    node: str, ranks: Ranks, said: Path
) -> None:
    done = ranks(
        3, "comm_wrong.py", "disagree", launch=LEFT_ALONE, FAIRLEAD_COMM_NODE_RANKS=node, limit_s=40
    )
    assert "Traceback" not in done.stderr, done.stderr
    found = failures(said)
    assert {status for _, status, _, _ in found} == {DIFFER}
    assert blamed(said) == dict.fromkeys("012", "1")
    assert max(seconds for _, _, seconds, _ in found) < 5
    a, b = "rank 1 (HOST) passed ", ", rank 0 (HOST) passed "
    call = "rank 1 (HOST) called {}while rank 0 (HOST) called {}: call {}".format
    in_team_7 = f"{a}float32 of 900000 elements as tensor 0 to aggregate (sum){b}float32 of 5: call 2 of team 7"
    for rank in range(3):
        assert [words for r, _, _, words in found if r == rank] == sorted([
            f"{a}3 tensors to aggregate (sum){b}2: call 1 of team 0",
            f"{a}float64 of 5 elements as tensor 0 (t0) to aggregate (sum){b}float32 of 5: call 1 of team 1",
            f"{a}float64 of 5 elements as tensor 0 to aggregate (sum){b}float64 of 5, in another shape: call 1 of team 2",
            f"{a}float32 of 5 elements as tensor 0 to aggregate (sum){b}int32 of 5: call 1 of team 3",
            call("aggregate (sum) ", "aggregate (mean)", "1 of team 4"),
            call("aggregate (sum) ", "aggregate (sum) (float32 travels as float16 and as float32)", "1 of team 5"),
            f"{a}float32 of 5 elements as tensor 0 to aggregate (sum){b}float32 of 900000: call 1 of team 6",
            in_team_7,
            f"an earlier call of team 7 failed: {in_team_7}",
            f"{a}0 tensors to aggregate (sum){b}1: call 1 of team 8",
            call("broadcast ", "broadcast (roots 1 and 0)", "12 of all"),
        ], key=lambda words: [w for r, _, _, w in found if r == rank].index(words))  # fmt: skip
    assert "goes on" in said.read_text()


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        ("threads", "called team (threads 1 and 2): call 2 of all"),
        ("settings", "rank 1 (HOST) and rank 0 (HOST) were given different FAIRLEAD_COMM_CHUNK_KB"),
    ],
)
def test_ranks_that_are_set_up_differently_are_refused(
    situation: str, words: str, ranks: Ranks, said: Path
) -> None:
    ranks(3, "comm_wrong.py", situation, launch=LEFT_ALONE, limit_s=40)
    found = failures(said)
    assert [(rank, status) for rank, status, _, _ in found] == [(r, DIFFER) for r in range(3)]
    assert all(text.endswith(words) for *_, text in found), found


# Ranks of a node see each other's seats; of other nodes rank 0 finds out, and tells, along a tree.
NODES = pytest.mark.parametrize("node", ["", "1", "2"], ids=["one-node", "each-alone", "two-nodes"])


@NODES
@pytest.mark.parametrize("situation", ["skip", "skip_started"])
def test_rank_that_skipped_a_step_is_named_on_every_rank(
    situation: str, node: str, ranks: Ranks, said: Path
) -> None:
    ranks(
        3, "comm_wrong.py", situation, launch=LEFT_ALONE, limit_s=40, FAIRLEAD_COMM_NODE_RANKS=node
    )
    check_skipped(situation, failures(said), "HOST", "HOST")


@pytest.mark.full
@pytest.mark.parametrize("mpi", MPIS)
def test_rank_of_another_node_that_skipped_a_step_is_named_under_every_mpi(
    mpi: str, ranks: Ranks, said: Path
) -> None:
    launch = () if mpi == "openmpi" else LEFT_ALONE
    ranks(
        3, "comm_wrong.py", "skip", mpi=mpi, launch=launch, limit_s=40, FAIRLEAD_COMM_NODE_RANKS="1"
    )
    check_skipped("skip", failures(said), "HOST", "HOST")


@pytest.mark.parametrize("level", ["serialized", "funneled"])
def test_rank_of_another_node_that_skipped_is_named_where_mpi_takes_one_thread_at_a_time(
    level: str, ranks: Ranks, said: Path
) -> None:
    ranks(
        3, "comm_wrong.py", "skip_started", launch=LEFT_ALONE, limit_s=40,
        FAIRLEAD_COMM_NODE_RANKS="1", LEVEL=level,
    )  # fmt: skip
    check_skipped("skip_started", failures(said), "HOST", "HOST")


def check_skipped(
    situation: str, found: list[tuple[int, int, float, str]], host: str, other: str
) -> None:
    """Rank 1, on ``other``, waits in a call without a team, the others in one of team 0."""
    assert [(rank, status) for rank, status, _, _ in found] == [(r, DIFFER) for r in range(3)]
    call = "4" if situation == "skip" else "1"
    there = re.compile(
        rf"rank 1 \({other}\) waits in (call 3 of all|(average|barrier), call 3 of all)\b"
    )
    here = re.compile(
        rf"rank [02] \({host}\) waits in (aggregate \(sum\), )?call {call} of team 0\b"
    )
    for _, _, seconds, words in found:
        assert there.search(words) and here.search(words), found
        assert words.endswith(": one of them has skipped a call or added one")
        assert seconds < 10


@NODES
def test_rank_that_ends_a_step_early_is_named(node: str, ranks: Ranks, said: Path) -> None:
    ranks(
        3,
        "comm_wrong.py",
        "early_end",
        launch=LEFT_ALONE,
        limit_s=40,
        FAIRLEAD_COMM_NODE_RANKS=node,
    )
    found = failures(said)
    early = "rank 1 (HOST) called finalize while rank {} (HOST) called aggregate (sum): call 2 of team 0"
    assert [f[0] for f in found] == [0, 1, 2]
    assert {found[0][3], found[2][3]} <= {early.format(rank) for rank in (0, 2)}
    # It sees either where they wait, or that they have given up.
    assert found[1][1] in (DIFFER, PEER_LOST), found


def test_circle_of_three_ranks_in_three_teams_is_found(ranks: Ranks, said: Path) -> None:
    """No two of them wait for each other."""
    ranks(3, "comm_wrong.py", "circle", launch=LEFT_ALONE, limit_s=40, FAIRLEAD_COMM_NODE_RANKS="1")
    found = failures(said)
    assert [(f[0], f[1]) for f in found] == [(rank, DIFFER) for rank in range(3)]
    assert len({words for *_, words in found}) == 1 and found[0][2] < 10
    waits = re.findall(r"rank (\d) \(HOST\) waits in call 1 of team (\d)", found[0][3])
    assert len(waits) == 2 and all(rank == team for rank, team in waits), found


@pytest.mark.parametrize(
    ("gone", "node"),
    [
        ("1", "2"),
        *(pytest.param(*words, marks=pytest.mark.full) for words in (("0", "2"), ("2", "2"))),
        ("0", "1"),
        pytest.param("1", "1", marks=pytest.mark.full),
    ],
    ids=["of-two", "first-of-two", "alone", "first-alone", "each-alone"],
)
def test_rank_that_was_killed_on_another_node_is_named(
    gone: str, node: str, ranks: Ranks, said: Path
) -> None:
    """Of nodes with two ranks the other one sees it; of a node with one nobody is left who could."""
    ranks(
        3, "comm_wrong.py", "killed", launch=LEFT_ALONE, limit_s=40, FAIRLEAD_COMM_NODE_RANKS=node,
        GONE=gone,
    )  # fmt: skip
    found = failures(said)
    left = [rank for rank in range(3) if rank != int(gone)]
    assert [(f[0], f[1]) for f in found] == [(rank, PEER_LOST) for rank in left]
    assert blamed(said) == {str(rank): gone for rank in left}
    for _, _, seconds, words in found:
        assert words.startswith(f"rank {gone} (HOST) has ended without fairlead_comm_finalize")
        assert seconds < 10


def _of_core(stem: str, words: Sequence[str] = (), names: Sequence[str] = ()) -> Path:
    """``programs/STEM.cpp`` with sources of the core, or with all of them."""
    folder = native.core_folder() / "src"
    compiler = ["c++", "-std=c++17", "-w", *words, "-I", str(folder)]
    sources = [folder / f"{name}.cpp" for name in names] or sorted(folder.glob("*.cpp"))
    headers = sorted({*folder.iterdir()} - {*folder.glob("*.cpp")})
    return _made(stem, compiler, [hosts.PROGRAMS / f"{stem}.cpp", *sources, *headers])


@pytest.mark.parametrize(("nodes", "levels"), [(4096, 3), (65536, 4)])
def test_late_and_crossed_ranks_of_thousands_of_nodes_are_named_up_a_tree(
    nodes: int, levels: int
) -> None:
    """After as many messages as the tree is deep, and few to any one rank."""
    made = _of_core("exchange_scale", ["-O1", "-fno-exceptions"])
    done = subprocess.run(
        [made, str(nodes)], capture_output=True, text=True, timeout=60, check=True
    )
    least, middle, above = nodes - 3, nodes // 2, ((nodes - 4) // 32 - 1) // 32
    assert done.stdout.splitlines() == [
        f"late: rank 7; {levels} levels, 32 messages to a rank at most, {nodes - 2} in all",
        f"rank {least} () called finalize while rank 7 () called aggregate (sum): call 5 of team 2",
        f"rank {middle + 1} () waits in call 1 of team 1 while rank {middle} () waits in call 1 of team 0:"
        " one of them has skipped a call or added one",
        f"late: rank {above}, then rank {least}",
    ]


@pytest.mark.full
def test_memory_of_a_rank_among_8192_on_64_nodes_stays_below_64_megabytes(ranks: Ranks) -> None:
    """A node's 128 ranks are measured; what each further node takes, between 16 and 128 nodes of a rank each."""

    def most(count: int, **variables: str) -> int:
        """kB of the rank that takes most."""
        lines = fine(ranks(count, "comm_memory.py", limit_s=300, **variables)).splitlines()
        assert {line.split()[0] for line in lines} == {"1" if not variables else str(count)}
        return max(int(line.split()[1]) for line in lines)

    together = most(128)
    few, many = (most(count, FAIRLEAD_COMM_NODE_RANKS="1") for count in (16, 128))
    a_node = max(0.0, (many - few) / (128 - 16))
    print(f"one node of 128: {together} kB; 16 and 128 nodes: {few} and {many} kB")
    assert together + 63 * a_node < 64 << 10


def _checked_sums(*words: str, sanitizer: str = "") -> str:
    flags = ["-O1", "-g", f"-fsanitize={SANITIZE[sanitizer]}"] if sanitizer else ["-O2"]
    made = _of_core("network_check", flags, ["network", "kernels"])
    done = subprocess.run([made, *words], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0 and "Sanitizer" not in done.stderr, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("sanitizer", ["", pytest.param("address", marks=pytest.mark.full)])
def test_sums_between_1_to_17_nodes_are_plain_sums_whatever_the_order_of_messages(
    sanitizer: str,
) -> None:
    """Each algorithm, each dtype, several at once, stepped in any order."""
    seed = int(time.time())  # printed when it fails: each run tries others
    assert "sums are right" in _checked_sums("steps", str(seed), "10", sanitizer=sanitizer)


@pytest.mark.full
def test_thread_sanitizer_finds_no_race_in_sums_between_threads() -> None:
    assert "sums are right" in _checked_sums("threads", "1", "1", sanitizer="thread")


@pytest.mark.full
@pytest.mark.parametrize("nodes", [96, 1000, 4096])
def test_sums_between_many_nodes_are_plain_sums_after_few_messages(nodes: int) -> None:
    lines = _checked_sums("many", str(nodes), "5000").splitlines()
    messages = {tuple(line.split(":")[0].split()): int(line.split()[-2]) for line in lines}
    levels = nodes.bit_length() - 1
    folds = 0 if nodes == 1 << levels else 1
    assert messages["doubling", "0"] == levels + folds
    assert messages["halving", "0"] == 2 * levels + folds


def test_threads_of_the_core_leave_signals_to_the_program_but_their_own_faults(
    ranks: Ranks, tmp_path: Path
) -> None:
    path = tmp_path / "signals.py"
    path.write_text("""
import pathlib, signal
import numpy as np
from comm_core import FLOAT64, call, start, team
call("init")
mine = team(2)
call("wait", mine, start(mine, [(np.ones(5), None, FLOAT64)]))
masks = [p.read_text().split("SigBlk:")[1].split()[0] for p in pathlib.Path("/proc/self/task").glob("*/status")]
names = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGPROF]
for mask in sorted(masks):
    print(*[n.name for n in names if int(mask, 16) >> (n - 1) & 1])
call("finalize")
""")
    done = ranks(1, sys.executable, path, PYTHONPATH=f"{RUNTIME}:{hosts.PROGRAMS}")
    assert fine(done).splitlines().count("SIGINT SIGTERM SIGUSR1") == 2
    assert "SIGSEGV" not in done.stdout and "SIGPROF" not in done.stdout


# The first lines of what MPIs with the binary interface of MPICH say about themselves.
OF_MPICH = (
    "MPICH Version:      4.3.0\\nMPICH Release date: Mon Feb  3 12:00:00 CST 2025",
    "MPICH Version:\\t3.3a2\\n",
    "Intel(R) MPI Library 2021.18 for Linux* OS\\n",
    "MPI VERSION    : CRAY MPICH version 8.1.29.23 (ANL base 3.4a2)\\nMPI BUILD INFO : Tue Feb 13 2024",
    "MVAPICH2 Version      :\\t2.3.7\\nMVAPICH2 Release date :\\tWed March 02 22:00:00 EST 2022",
    "MVAPICH Version      :\\t3.0\\nMVAPICH Release date :\\t02/01/2024",
    "MVAPICH Version:\\t4.0\\n",
    "ParaStation MPI Version 5.10.0-1\\nMPICH Version: 4.1.2",
)
# Open MPIs that hide their handles, MPIs of their own kind, and one that names the MPI that it wraps.
OF_OTHERS = (
    "HPE MPT 2.28\\nbuilt somewhere",
    "Open MPI v4.1.8, package: Open MPI",
    "IBM Spectrum MPI v10.4.0.6",
    "FUJITSU MPI Library 4.0.0 (4.0.1fj4.0.0)",
    "MPIwrapper Version:\\t2.2.2\\nMPICH Version:      4.3.0",
)


@pytest.mark.parametrize("version", OF_MPICH + OF_OTHERS)
def test_mpi_is_taken_for_an_mpich_by_what_it_says_and_refused_by_name_else(
    tmp_path: Path, version: str
) -> None:
    """Taken for an MPICH it would crash: with the handles of another MPI every call ends the process."""
    source = (native.core_folder() / "src/mpi.cpp").read_text()
    wanted = set(re.findall(r"WANT\((\w+)\)", source)) - {"name", "Get_library_version"}
    # Error 7 of the first call after it.
    lines = [f"int MPI_{name}(void) {{ return {7 * (name == 'Finalized')}; }}" for name in wanted]
    lines.append(
        "#include <string.h>\nint MPI_Get_library_version(char *to, int *n)"
        f'{{ strcpy(to, "{version}"); *n = (int)strlen(to); return 0; }}'
    )
    (tmp_path / "foreign.c").write_text("\n".join(lines))
    made = tmp_path / "libmpi.so"
    words = ["cc", "-shared", "-fPIC", "-o", made, tmp_path / "foreign.c"]
    subprocess.run(words, check=True)
    done = subprocess.run(
        [sys.executable, "-c", "import comm_core as c; print(*c.failure('init'))"],
        cwd=hosts.PROGRAMS, capture_output=True, text=True, timeout=30, check=True,
        env={**os.environ, "FAIRLEAD_COMM_LIBRARY": str(core()), "LD_PRELOAD": str(made)},
    )  # fmt: skip
    if version in OF_MPICH:
        assert "MPI_Finalized of " in done.stdout, done.stdout
        return
    first = version.partition("\\n")[0].replace("\\t", "\t")
    assert done.stdout.startswith(f'2 {made} is "{first}", which has neither'), done.stdout
    assert "FAIRLEAD_COMM_BACKEND=mpi4py" in done.stdout


def strangers() -> Path:
    return _made(
        "strangers", ["cc", "-O1", "-shared", "-fPIC"], [hosts.PROGRAMS / "strangers.c"], ".so"
    )


def test_strangers_who_connect_first_keep_no_neighbour_out(ranks: Ranks, said: Path) -> None:
    """Nodes watch each other by TCP: more callers than are waited for, who say nothing."""
    ranks(
        3, "comm_wrong.py", "killed", launch=LEFT_ALONE, limit_s=40, FAIRLEAD_COMM_NODE_RANKS="1",
        GONE="1", STRANGERS="40", LD_PRELOAD=str(strangers()),
    )  # fmt: skip
    found = failures(said)
    assert [(rank, status) for rank, status, _, _ in found] == [(0, PEER_LOST), (2, PEER_LOST)]
    assert all(text.startswith("rank 1 (HOST) has ended without") for *_, text in found)
    # Ranks of one host call each other there, and no other address is open for them.
    assert said.with_name("said.listens").read_text().splitlines() == ["127.0.0.1"] * 3


def test_nodes_that_cannot_watch_each_other_are_named_once(ranks: Ranks) -> None:
    done = ranks(
        3, program("comm_check"), "1", "3000", FAIRLEAD_COMM_NODE_RANKS="1", STRANGERS="refused",
        LD_PRELOAD=str(strangers()),
    )  # fmt: skip
    fine(done)
    line = (
        f"3 of 3 links between nodes are not watched: rank 0 ({HOST}) cannot reach rank 1 ({HOST})"
    )
    assert done.stderr.count(line) == done.stderr.count("not watched") == 1


@pytest.mark.parametrize(
    ("situation", "call"),
    [("killed", "aggregate (sum), call 2 of team 0"), ("killed_within", "team 0"), ("left", "barrier, call 2 of all")],
)  # fmt: skip
def test_rank_that_is_gone_is_named_by_the_others_within_seconds(
    situation: str, call: str, ranks: Ranks, said: Path
) -> None:
    """A killed rank has a child that lives on, with all of its open files."""
    ranks(3, "comm_wrong.py", situation, launch=LEFT_ALONE, limit_s=40)
    found = failures(said)
    assert [(rank, status) for rank, status, _, _ in found] == [(0, PEER_LOST), (2, PEER_LOST)]
    for rank, _, seconds, words in found:
        assert f"rank 1 (HOST) has ended without fairlead_comm_finalize; rank {rank} waits" in words
        assert call in words and seconds < 5


@pytest.mark.parametrize("mpi", MPIS)
@NODES
def test_rank_that_waits_in_finalize_of_mpi_is_named_by_the_others_at_once(
    node: str, mpi: str, ranks: Ranks, said: Path
) -> None:
    """Its process lives on, and the MPI waits there for the others."""
    ranks(3, "comm_wrong.py", "finalizes_mpi", mpi=mpi, limit_s=60, FAIRLEAD_COMM_NODE_RANKS=node)
    found = failures(said)
    assert [(rank, status) for rank, status, _, _ in found] == [(0, PEER_LOST), (2, PEER_LOST)]
    assert blamed(said) == {"0": "1", "2": "1"}
    for _, _, seconds, words in found:
        assert "rank 1 (HOST) has ended without fairlead_comm_finalize" in words and seconds < 8


def test_slow_rank_is_waited_for_and_named(ranks: Ranks, said: Path) -> None:
    done = ranks(
        3, "comm_wrong.py", "slow", launch=LEFT_ALONE, FAIRLEAD_COMM_STALL_S="1", limit_s=40
    )
    assert {status for _, status, _, _ in failures(said)} == {0}
    output = "rank 0 (HOST) has waited 1 s in barrier (call 2 of all) for rank 1 (HOST)"
    assert done.stderr.replace(HOST, "HOST").count(output) == 1, done.stderr
    assert done.stderr.count("has waited") == 2  # one rank speaks, at 1 and at 2 seconds


def test_slow_root_of_a_broadcast_is_named_alone(ranks: Ranks, said: Path) -> None:
    done = ranks(
        3,
        "comm_wrong.py",
        "slow_root",
        launch=LEFT_ALONE,
        FAIRLEAD_COMM_STALL_S="1",
        FAIRLEAD_COMM_CHUNK_KB="4",
    )
    assert {status for _, status, _, _ in failures(said)} == {0}
    waits = re.findall(
        r"rank 0 \(HOST\) has waited 1 s in broadcast .*", done.stderr.replace(HOST, "HOST")
    )
    assert waits == [
        "rank 0 (HOST) has waited 1 s in broadcast (call 3 of all) for rank 1 (HOST)"
    ], done.stderr


def test_failed_call_is_known_long_after_its_place_was_used_again(ranks: Ranks, said: Path) -> None:
    ranks(2, "comm_wrong.py", "old_ticket", launch=LEFT_ALONE)
    old = (
        "call 1 of team 0 has failed; 100 were started after it, and its message is kept no longer"
    )
    assert [(r, s, w) for r, s, _, w in failures(said)] == [
        (rank, *found) for rank in (0, 1) for found in ((0, ""), (0, ""), (DIFFER, old))
    ]


@NODES
def test_rank_that_has_done_its_part_and_left_is_not_missed(
    node: str, ranks: Ranks, said: Path
) -> None:
    fine(
        ranks(
            3,
            "comm_wrong.py",
            "leaves_early",
            FAIRLEAD_COMM_NODE_RANKS=node,
            FAIRLEAD_COMM_CHUNK_KB="4",
        )
    )
    assert [(r, s) for r, s, _, _ in failures(said)] == [
        (rank, 0) for rank in (0, 1, 2) for _ in range(3)
    ]


def test_timeout_names_who_did_not_come(ranks: Ranks, said: Path) -> None:
    ranks(3, "comm_wrong.py", "late", launch=LEFT_ALONE, FAIRLEAD_COMM_TIMEOUT_S="1", limit_s=40)
    found = failures(said)
    assert [(f[0], f[1]) for f in found] == [(0, TIMEOUT), (2, TIMEOUT)]
    assert found[0][3] == "rank 0 (HOST) waited 1 s in barrier, call 2 of all, for rank 1 (HOST)"


def test_wait_that_is_interrupted_ends(ranks: Ranks, said: Path) -> None:
    ranks(2, "comm_wrong.py", "interrupted", launch=LEFT_ALONE, limit_s=40)
    found = failures(said)
    assert [(f[0], f[1]) for f in found] == [(0, INTERRUPTED)] * 2
    assert all(seconds < 2 for _, _, seconds, _ in found)


def test_thread_that_stops_asking_leaves_the_others_interruptible(ranks: Ranks, said: Path) -> None:
    ranks(2, "comm_wrong.py", "interrupted_elsewhere", launch=LEFT_ALONE, limit_s=40)
    ((rank, status, seconds, _),) = failures(said)
    assert (rank, status) == (0, INTERRUPTED) and seconds < 2


@pytest.mark.parametrize("node", ["", "1"])
def test_finalize_waits_for_the_call_of_another_thread(node: str, ranks: Ranks, said: Path) -> None:
    fine(ranks(2, "comm_wrong.py", "ends_meanwhile", limit_s=40, FAIRLEAD_COMM_NODE_RANKS=node))
    found = failures(said)
    assert [(rank, status) for rank, status, _, _ in found] == [(0, 0), (0, 0), (1, 0), (1, 0)]


@pytest.mark.parametrize("node", ["", pytest.param("1", marks=pytest.mark.full)])
def test_finalize_waits_for_a_teams_call_in_another_thread_and_says_so_in_the_end(
    node: str, ranks: Ranks, said: Path
) -> None:
    program = ("comm_wrong.py", "ends_within_a_team")
    fine(ranks(2, *program, limit_s=60, FAIRLEAD_COMM_NODE_RANKS=node))
    *fine_ones, (rank, status, seconds, words), a, b, c = failures(said)
    assert (rank, status) == (0, BAD_CALL) and 4 < seconds < 7
    assert words == "fairlead_comm_finalize: another thread has been in a call of a team for 5 s"
    assert [found[:2] for found in (*fine_ones, a, b, c)] == [(0, 0)] * 3 + [(1, 0)] * 3


def test_turn_of_another_thread_is_waited_for_with_ctrl_c_and_not_in_a_fork(
    ranks: Ranks, said: Path
) -> None:
    ranks(2, "comm_wrong.py", "turns", launch=LEFT_ALONE, limit_s=40)
    refused, interrupted = failures(said)
    assert refused[1] == BAD_CALL and "a fork of rank 0 (HOST)" in refused[3]
    assert interrupted[1] == INTERRUPTED and interrupted[2] < 2
    assert interrupted[3].endswith("was interrupted while another thread was in a call")


def test_ctrl_c_while_python_waits_runs_its_handlers(ranks: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "ctrlc.py"
    path.write_text("""
import faulthandler, os, signal, threading, time
import numpy as np
from fairlead import comm
faulthandler.enable()
comm.aggregate([np.ones(4)])
if comm.rank() == 1:
    time.sleep(3)
    os._exit(0)
signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
threading.Timer(0.6, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begun = time.monotonic()
try:
    comm.aggregate([np.ones(4)])
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begun < 2, flush=True)
os._exit(0)
""")
    done = ranks(2, sys.executable, path, limit_s=40, FAIRLEAD_COMM_BACKEND="native")
    assert done.stdout.splitlines() == ["handled", "interrupted True"], done.stdout + done.stderr


def test_bad_calls_are_refused_and_do_no_harm(ranks: Ranks, said: Path) -> None:
    fine(ranks(1, "comm_wrong.py", "alone", limit_s=40))
    lines = said.read_text().replace(HOST, "HOST").splitlines()
    assert all(line.startswith("0 1 ") for line in lines), lines
    words = [re.sub(r"process \d+", "process N", line.split(" ", 3)[3]) for line in lines]
    fork = (
        "{} was called in process N, a fork of rank 0 (HOST), process N: MPI does not follow a fork"
    )
    assert words == [
        "fairlead_comm_barrier was called before fairlead_comm_init",
        "fairlead_comm_aggregate: tensors is NULL",
        "fairlead_comm_aggregate: there is no such team",
        *[f"fairlead_comm_aggregate: there is no operation {n}" for n in (4, -1, 256)],
        "fairlead_comm_aggregate: tensor 0 is of integers, which have a sum and no mean",
        "fairlead_comm_aggregate: tensor 0 has dtype 6, which it does not know",
        "fairlead_comm_aggregate: tensor 0: `in` and `out` overlap",
        *["fairlead_comm_aggregate: tensor 0 (weights) has a NULL address"] * 2,
        *[f"fairlead_comm_aggregate: tensor 0 (weights) has dtype {n}, which it does not know" for n in (7, -1)],
        "fairlead_comm_aggregate: tensor 0 (weights) has 4611686018427387904 elements",
        "fairlead_comm_start: ticket is NULL",
        "fairlead_comm_start: there is no such team",
        "fairlead_comm_wait: there is no such team",
        "ticket 99 was never given; 0 were",
        *["fairlead_comm_stats: stats is NULL", "fairlead_comm_stats: there is no such team"],
        "fairlead_comm_stats: stats is NULL",
        "fairlead_comm_layout: layout is NULL",
        "fairlead_comm_match: match is NULL",
        "fairlead_comm_average: values is NULL",
        *[f"fairlead_comm_broadcast: there is no rank {n} among 1" for n in (1, -1)],
        "fairlead_comm_gather: an address is NULL",
        *[f"fairlead_comm_team: a team has 1 to 16 threads, not {n}" for n in (0, 17, -3)],
        "fairlead_comm_team: team is NULL",
        "fairlead_comm_team_name: name is NULL or empty",
        "fairlead_comm_team_name: there is no such team",
        *[fork.format(f"fairlead_comm_{name}") for name in ("barrier", "finalize", "wait")],
        "fairlead_comm_finalize was called twice by rank 0 (HOST)",
        "fairlead_comm_barrier was called after fairlead_comm_finalize",
        "fairlead_comm_init was called after fairlead_comm_finalize; MPI can be started once in a process",
        "fairlead_comm_wait was called after fairlead_comm_finalize",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [("CHUNK_KB", "3"), ("CHUNK_KB", "1e9"), ("STALL_S", "soon"), ("SPIN_US", "-1"), ("TIMEOUT_S", "nan"), ("ALGORITHM", "tree")],
)  # fmt: skip
def test_setting_that_is_no_number_or_too_large_is_refused(name: str, value: str) -> None:
    """Before MPI is looked for: no launch is needed."""
    variable = f"FAIRLEAD_COMM_{name}"
    words = "import comm_core as c; print(*c.failure('init'))"
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=hosts.PROGRAMS, capture_output=True, text=True, timeout=30,
        env={**os.environ, "FAIRLEAD_COMM_LIBRARY": str(core()), variable: value}, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"{BAD_CALL} {variable}={value} is not "), done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_too_little_shared_memory_falls_to_plain_mpi_and_says_why(
    ranks: Ranks, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        text = fine(ranks(2, program("comm_check"), "1", "70000", FAIRLEAD_COMM_SHM=str(small)))
        assert re.match(
            rf"2 ranks 2 nodes shm=0 \(\d+ bytes of shared memory cannot be had in {small}:"
            r" No space left on device\)", text,
        )  # fmt: skip
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_each_rank_allocates_the_pages_that_it_writes_whatever_signals_come(
    ranks: Ranks, said: Path
) -> None:
    """They come from the memory next to the one that asks; the first to ask would have them all."""
    words = ["cc", "-O1", "-shared", "-fPIC"]
    noted = str(_made("allocates", words, [hosts.PROGRAMS / "allocates.c"], ".so"))
    check = (3, program("comm_check"), "1", "70000")
    assert "3 ranks 1 nodes shm=1" in fine(ranks(*check, ROOM="all", LD_PRELOAD=noted))
    rows = [tuple(map(int, line.split())) for line in said.read_text().splitlines()]
    segments = len(rows) // 4  # what all use in front, and a part of each rank
    assert len({process for process, *_ in rows}) == 3 and len(rows) == 4 * segments
    own = sorted((start, size) for _, start, size in rows if start)
    assert len(own) == 3 * segments and len({size for _, size in own}) == 1
    assert all(start % 4096 == 0 for start, _ in own)
    text = fine(ranks(*check, ROOM="none", LD_PRELOAD=noted))
    assert re.match(
        r"3 ranks 3 nodes shm=0 \(\d+ bytes of shared memory cannot be had in \S+: No space", text
    )


def test_folder_that_is_not_there_falls_to_plain_mpi_and_says_why(ranks: Ranks) -> None:
    text = fine(ranks(2, program("comm_check"), "1", "3000", FAIRLEAD_COMM_SHM="/nowhere"))
    assert "cannot be had in /nowhere: No such file or directory)" in text


def test_ranks_killed_while_they_start_leave_what_the_next_run_removes(
    ranks: Ranks, memory: Path
) -> None:
    """Between the making of the file and its opening by all, a kill of all leaves it."""
    words = ["cc", "-O1", "-shared", "-fPIC"]
    stopped = _made("no_unlink", words, [hosts.PROGRAMS / "no_unlink.c"], ".so")
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(hosts.mpich() / "lib"),
        "LD_PRELOAD": str(stopped),
        "FAIRLEAD_COMM_SHM": str(memory),
    }
    run = subprocess.Popen(
        [hosts.mpich() / "bin/mpiexec", "-n", "2", program("comm_check"), "1", "10"],
        env=environ, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    late = time.monotonic() + 20
    while not list(memory.iterdir()) and time.monotonic() < late:
        time.sleep(0.01)
    _kill_session(run.pid)
    run.wait()
    assert len(list(memory.iterdir())) == 1
    fine(ranks(2, program("comm_check"), "1", "10"))  # `memory` looks that nothing is left


def _kill_session(leader: int) -> None:
    """Every process of it; returns when all are gone, and their locks with them."""
    late = time.monotonic() + 10
    while time.monotonic() < late:
        left = [entry for entry in Path("/proc").glob("[0-9]*") if _of_session(entry, leader)]
        if not left:
            return
        for entry in left:
            with contextlib.suppress(OSError):
                os.kill(int(entry.name), signal.SIGKILL)
        time.sleep(0.01)


def _of_session(entry: Path, leader: int) -> bool:
    try:
        state = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False  # it has ended
    return int(state[3]) == leader and state[0] != "Z"


def test_file_of_a_run_that_is_starting_is_not_swept_away(ranks: Ranks, memory: Path) -> None:
    """One whose maker holds its seat, one without a size yet, and what is not ours at all."""
    import fcntl

    kept = [memory / "fairlead-comm-1-00", memory / "fairlead-comm-2-00", memory / "other"]
    stale = memory / "fairlead-comm-3-00"
    for path, size in zip([*kept, stale], (100, 0, 100, 100), strict=True):
        path.write_bytes(b"\0" * size)
    with kept[0].open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
        fine(ranks(2, program("comm_check"), "1", "10"))
        assert sorted(memory.iterdir()) == sorted(kept)
    for path in kept:
        path.unlink()


# --- two hosts --------------------------------------------------------------------------------------


def wrong_on_two_hosts(
    situation: str, pair: tuple[Host, Host], said: Path, **env: str
) -> list[Failure]:
    """Rank 0 alone on its host: what the two others find out has to come to it over the network."""
    one, _ = pair
    start = launcher(one, hosts.mpich() / "bin/mpiexec.hydra", hosts="node1:1,node2:2")
    words = one.words(
        start, *LEFT_ALONE, "-n", "3", sys.executable, hosts.PROGRAMS / "comm_wrong.py", situation
    )
    variables: Mapping[str, str] = {
        **os.environ, "LD_LIBRARY_PATH": str(hosts.mpich() / "lib"), "SAID": str(said),
        "FAIRLEAD_COMM_LIBRARY": str(core()), "UCX_TLS": "self,tcp", "PYTHONPATH": str(RUNTIME),
        **env,
    }  # fmt: skip
    subprocess.run(
        words, env=variables, capture_output=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )
    return failures(said)


@pytest.mark.parametrize("situation", ["skip", "skip_started"])
def test_rank_that_skipped_a_step_is_named_on_another_host(
    situation: str, pair: tuple[Host, Host], said: Path
) -> None:
    found = wrong_on_two_hosts(situation, pair, said)
    assert [(rank, status) for rank, status, _, _ in found] == [(r, DIFFER) for r in range(3)]
    assert all(seconds < 30 for _, _, seconds, _ in found), found
    assert all("one of them has skipped a call or added one" in text for *_, text in found)


def test_only_rank_of_another_host_that_was_killed_is_named(
    pair: tuple[Host, Host], said: Path
) -> None:
    found = wrong_on_two_hosts("killed", pair, said, GONE="0")
    assert [(rank, status) for rank, status, _, _ in found] == [(1, PEER_LOST), (2, PEER_LOST)]
    for _, _, seconds, words in found:
        assert words.startswith("rank 0 (node1) has ended without fairlead_comm_finalize")
        assert seconds < 10


@pytest.mark.full
def test_host_that_cannot_be_reached_is_named_as_such(pair: tuple[Host, Host], said: Path) -> None:
    """The cable is pulled: nobody has ended."""
    one, _ = pair

    def pull() -> None:
        late = time.monotonic() + 50
        while not said.is_file() and time.monotonic() < late:
            time.sleep(0.05)
        one.link("down")
        while len(failures(said)) < 3 and time.monotonic() < late:
            time.sleep(0.1)
        one.link("up")  # the launcher waits for its other half

    thread = threading.Thread(target=pull)
    thread.start()
    wrong_on_two_hosts("unreachable", pair, said, FAIRLEAD_COMM_STALL_S="0")
    thread.join()
    found = failures(said)
    assert [(rank, status) for rank, status, _, _ in found] == [(r, PEER_LOST) for r in range(3)]
    for rank, _, seconds, words in found:  # rank 2 may hear it from rank 1
        other = r"rank 1 \(node2\)" if rank == 0 else r"rank 0 \(node1\)"
        assert re.match(rf"{other}: its host cannot be reached; rank \d waits in barrier", words)
        assert seconds < 40


def summed_on_two_hosts(pair: tuple[Host, Host], count: int, rounds: int) -> None:
    """Sums of two ranks on each host, checked."""
    one, _ = pair
    start = launcher(one, hosts.mpich() / "bin/mpiexec.hydra", hosts="node1:2,node2:2")
    variables: Mapping[str, str] = {
        **os.environ, "LD_LIBRARY_PATH": str(hosts.mpich() / "lib"),
        "FAIRLEAD_COMM_LIBRARY": str(core()), "UCX_TLS": "self,tcp",
        "FAIRLEAD_COMM_ALGORITHM": "halving",  # otherwise what is measured at the start crosses too
    }  # fmt: skip
    program = (sys.executable, hosts.PROGRAMS / "comm_hosts.py", str(count), str(rounds))
    done = subprocess.run(
        one.words(start, "-n", "4", *program), env=variables, capture_output=True, text=True, timeout=90,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.stdout.count("ok") == 4, done.stdout + done.stderr


def test_ranks_on_two_hosts_send_each_share_across_about_once(pair: tuple[Host, Host]) -> None:
    """Two ranks on each: only the sum of a host's two crosses."""
    one, two = pair

    def crossed(count: int, rounds: int) -> tuple[int, int]:
        before = one.sent(), two.sent()
        summed_on_two_hosts(pair, count, rounds)
        return one.sent() - before[0], two.sent() - before[1]

    count, rounds = 500_000, 6
    little, much = crossed(1, rounds), crossed(count, rounds)
    for a, b in zip(little, much, strict=True):
        share = (b - a) / (4 * count * rounds)
        assert 0.98 < share < 1.25, (little, much)


@pytest.mark.parametrize(("count", "most"), [(2, 1.8), (4000, 3.5)], ids=["few", "16 kB"])
def test_small_array_crosses_between_two_hosts_in_one_message(
    count: int, most: float, pair: tuple[Host, Host]
) -> None:
    """With the agreement on the call: 3.6 and 9 packets a call were sent when it had messages of its own."""
    one, _ = pair

    def packets(rounds: int) -> int:
        before = one.packets()
        summed_on_two_hosts(pair, count, rounds)
        return one.packets() - before

    calls = 1000
    assert packets(100 + calls) - packets(100) < most * calls
