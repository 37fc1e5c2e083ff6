"""Where another process is: real processes, whose MPI is a library of a few lines."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.support.compiled import compiled

from fairlead.launch import stacks

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="stacks of x86-64 only")

MPI = """
#include <unistd.h>
static int wait_here(int for_ever) { volatile char room[3000]; room[for_ever] = 1; if (for_ever) for (;;) pause(); return room[0]; }
int PMPI_Barrier(void *comm) { return 1 + wait_here(comm == 0); } /* no tail call */
int MPI_Barrier(void *comm) __attribute__((alias("PMPI_Barrier")));
void mpi_barrier_(int *comm) { for (volatile int go = *comm + 1; go;) pause(); }
int MPI_File_write(void *file) { return 1 + wait_here(1); }
int MPI_Allreduce(void (*op)(void)) { volatile int frame[100]; op(); return frame[0] = 1; }
"""
PROGRAM = """
#include <stdlib.h>
#include <unistd.h>
int MPI_Barrier(void *), MPI_File_write(void *), MPI_Allreduce(void (*)(void));
void mpi_barrier_(int *);
__attribute__((noinline)) static void work(void) { for (;;) pause(); }
int main(int argc, char **argv)
{
    int zero = 0, here = 0;
    switch (atoi(argv[1])) {
    case 0: MPI_Barrier(0); break;
    case 1: mpi_barrier_(&zero); break;
    case 2: MPI_File_write(0); break;
    case 3: MPI_Allreduce(work); break;
    case 4: work(); break;
    case 5: for (;;) { MPI_Barrier(&here); usleep(1000); }
    case 6: for (volatile long i = 0; ; i++) MPI_Barrier(&here);
    case 7: if (!vfork()) { sleep(2); _exit(0); } MPI_Barrier(0);
    }
    return here;
}
"""


@pytest.fixture(scope="module")
def at(tmp_path_factory) -> Callable[..., object]:
    """Runs the program at one of its places."""
    folder = tmp_path_factory.mktemp("program")

    def build(*options: str) -> Path:
        made = folder / f"mpi{''.join(options)}"
        if not made.exists():
            for name, text in (("mpi.c", MPI), ("main.c", PROGRAM)):
                (folder / name).write_text(text)
            library = folder / f"lib{made.name}.so"
            shared = ("-shared", *(word for word in options if word != "-no-pie"))
            for words in (
                (*shared, "-fPIC", "-o", library, "mpi.c"),
                (*options, "-o", made, "main.c", library),
            ):
                subprocess.run(["cc", *words, f"-Wl,-rpath,{folder}"], check=True, cwd=folder)
        return made

    @contextmanager
    def run(place: int, *options: str) -> Iterator[int]:
        process = subprocess.Popen([build(*options), str(place)])
        try:
            time.sleep(0.3)
            yield process.pid
        finally:
            process.kill()
            process.wait()

    return run


@pytest.mark.parametrize(
    "options", [("-O0",), ("-O2",), ("-O2", "-fno-omit-frame-pointer"), ("-Os", "-no-pie")]
)
@pytest.mark.parametrize(
    ("place", "function"), [(0, "MPI_Barrier"), (1, "MPI_Barrier"), (2, None), (3, None), (4, None)]
)
def test_call_in_which_a_process_waits_is_found(
    at, options, place: int, function: str | None
) -> None:
    with at(place, *options) as pid:
        call = stacks.waits_in(pid)
        assert (call.function if call else None) == function
        # It goes on as before.
        assert stacks.waits_in(pid) == call


def test_call_that_returns_is_counted_and_one_that_does_not_is_not(at) -> None:
    counts = []
    for place in (0, 6):
        with at(place, "-O2") as pid:
            until = time.monotonic() + 20
            while not (call := stacks.waits_in(pid)):
                assert time.monotonic() < until
            try:
                returns = stacks.Returns(pid, call.returns_to)
            except PermissionError:
                pytest.skip("kernel.perf_event_paranoid")
            time.sleep(0.3)
            counts.append(returns.count())
            returns.close()
    assert counts[0] == 0 and counts[1] > 1000


def test_call_of_an_interpreter_is_found(tmp_path: Path) -> None:
    library = compiled(tmp_path / "libmpi.so.1", MPI)
    script = f"import ctypes; ctypes.CDLL({str(library)!r}).MPI_Barrier(None)"
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        until = time.monotonic() + 30
        while not (call := stacks.waits_in(process.pid)) and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    assert call and call.function == "MPI_Barrier"


def test_stack_without_unwind_tables_is_unreadable_and_never_guessed(at) -> None:
    options = ("-O2", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
    with at(0, *options) as pid, pytest.raises(stacks.Unreadable):
        stacks.waits_in(pid)


def test_process_that_has_ended_is_an_error_of_the_system() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(OSError):
        stacks.waits_in(process.pid)


def test_process_that_the_kernel_does_not_stop_is_not_waited_for(at, monkeypatch) -> None:
    """A parent of vfork waits as one does whose file server does not answer."""
    monkeypatch.setattr(stacks, "_STOP_S", 0.2)
    with at(7, "-O2") as pid:
        with pytest.raises(stacks.Unreadable, match="does not stop"):
            stacks.waits_in(pid)
        until = time.monotonic() + 30
        while not (call := _look(pid)) and time.monotonic() < until:
            time.sleep(0.1)
        assert call and call.function == "MPI_Barrier"


def _look(pid: int) -> stacks.Call | None:
    with suppress(stacks.Unreadable):
        return stacks.waits_in(pid)
    return None
