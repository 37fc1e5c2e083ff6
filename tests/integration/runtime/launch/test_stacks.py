"""Where another process is: real processes, whose MPI is a library of a few lines."""

from __future__ import annotations

import os
import platform
import signal
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
int MPI_Bcast(void *comm) { usleep(1000); return 1; }
int MPI_File_write(void *file) { return 1 + wait_here(1); }
int MPI_Allreduce(void (*op)(void)) { volatile int frame[100]; op(); return frame[0] = 1; }
"""
PROGRAM = """
#include <stdlib.h>
#include <unistd.h>
int MPI_Barrier(void *), MPI_Bcast(void *), MPI_File_write(void *), MPI_Allreduce(void (*)(void));
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
    case 8: for (;;) MPI_Bcast(&here);
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


def call_of(pid: int) -> stacks.Call:
    until = time.monotonic() + 20
    while not (call := stacks.waits_in(pid)):
        assert time.monotonic() < until
    return call


def test_call_that_returns_is_seen_and_one_that_does_not_is_not(at) -> None:
    came = []
    for place in (0, 6):
        with at(place, "-O2") as pid:
            returns = stacks.Returns(pid, call_of(pid).returns_to)
            time.sleep(0.3)
            came.append(returns.came())
            returns.close()
            assert tracer(pid) == 0
            time.sleep(0.1)
            assert state(pid) in "SR"  # it goes on
    assert came == [False, True]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def tracer(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("TracerPid:")[2].split()[0])


def comes_to(pid: int, states: str) -> None:
    until = time.monotonic() + 20
    while state(pid) not in states:
        assert time.monotonic() < until, state(pid)
        time.sleep(0.05)


def test_process_that_is_traced_gets_its_signals_and_no_other(at) -> None:
    with at(0, "-O2") as pid:
        returns = stacks.Returns(pid, call_of(pid).returns_to)
        assert tracer(pid)
        for sent, after in (
            (signal.SIGSTOP, "tT"),
            (signal.SIGCONT, "SR"),
            (signal.SIGWINCH, "SR"),
        ):
            os.kill(pid, sent)
            comes_to(pid, after)
        os.kill(pid, signal.SIGSTOP)
        comes_to(pid, "tT")
        returns.close()
        assert tracer(pid) == 0 and not returns.came()
        comes_to(pid, "T")  # it runs for a moment before it stops again
        os.kill(pid, signal.SIGCONT)
        returns = stacks.Returns(pid, call_of(pid).returns_to)
        os.kill(pid, signal.SIGUSR1)
        comes_to(pid, "Z")
        returns.close()
        # How it has ended is for its parent.
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGUSR1


def test_breakpoint_that_is_taken_away_while_it_is_met_ends_no_process(
    at, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal of a breakpoint may come after the stop that is to take it away."""
    monkeypatch.setattr(stacks, "_TRAP_S", 0)
    came = []
    with at(8, "-O2") as pid:
        address = call_of(pid).returns_to
        for i in range(200):
            returns = stacks.Returns(pid, address)
            time.sleep(0.0001 * (i % 15))
            returns.close()
            came.append(returns.came())
            assert tracer(pid) == 0
        time.sleep(0.1)
        assert state(pid) in "SR"
    assert set(came) == {False, True}, came


def test_whoever_forgets_to_close_it_leaves_no_breakpoint(at) -> None:
    program = """
import sys
from fairlead.launch import stacks
pid = int(sys.argv[1])
while not (call := stacks.waits_in(pid)): pass
stacks.Returns(pid, int(sys.argv[2]))
sys.exit(3)
"""
    with at(0, "-O2") as pid:
        # An address to which it comes once it gets a signal.
        done = subprocess.run([sys.executable, "-c", program, str(pid), "4096"], check=False)
        assert done.returncode == 3 and tracer(pid) == 0 and state(pid) == "S"


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
    # The kernel may still be about to end the tracing of the thread before.
    with suppress(stacks.Unreadable, PermissionError):
        return stacks.waits_in(pid)
    return None
