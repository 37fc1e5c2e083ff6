"""Doctor under real conditions, each made for one call and gone with it: in a mount namespace, a user
namespace, behind a seccomp filter, with real MPIs on PATH."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts
from tests.system.podman import podman
from tests.system.slurm import slurm

from fairlead.doctor.registry import ordered
from fairlead.engines.apptainer import find_apptainer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
# The conditions of the shell that runs the tests are not those that a test is about.
PLAIN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("I_MPI_", "OMPI_", "MPI", "UCX_", "FI_", "LD_", "FAIRLEAD_"))
}
DOCTOR = (sys.executable, "-m", "fairlead", "doctor", "--json")


def doctor(
    *names: str,
    before: str = "",
    wrapped: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """What the named checks find, by name.

    Args:
        before: shell lines in the mount namespace of its own in which doctor then runs.
        wrapped: words before its command line.
    """
    script = f'{before}\nexec "$@"'
    words = ["unshare", "--mount", "sh", "-ec", script, "sh", *wrapped, *DOCTOR, *names]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**PLAIN, **(environ or {})}, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert done.returncode == (1 if report["errors"] else 0)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in report["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return found


def worst(found: list[dict[str, Any]]) -> str:
    order = ("ok", "info", "warning", "error")
    return max((f["severity"] for f in found), key=order.index)


def test_small_shared_memory_is_reported() -> None:
    found = doctor(
        "shared-memory", "sharing", before="mount -t tmpfs -o size=8m,mode=1777 shm /dev/shm"
    )
    assert worst(found["shared-memory"]) == "warning"
    assert any("/dev/shm holds 8 MB" in f["what"] for f in found["sharing"])
    assert worst(doctor("shared-memory", "sharing")["sharing"]) == "ok"


def with_settings(tmp_path: Path, **changed: str) -> str:
    """Shell lines that lay other settings over those of the engine that is used here."""
    program = find_apptainer()
    assert program
    prefix = program.resolve().parent.parent
    etc = Path("/etc") if prefix == Path("/usr") else prefix / "etc"
    copy = tmp_path / "apptainer"
    shutil.copytree(etc / "apptainer", copy)
    conf = copy / "apptainer.conf"
    lines = conf.read_text().splitlines()
    for key, value in changed.items():
        key = key.replace("_", " ")
        lines = [line for line in lines if not line.startswith(f"{key} =")]
        lines.append(f"{key} = {value}")
    conf.write_text("\n".join(lines) + "\n")
    return f"mount --bind '{copy}' '{etc}/apptainer'"


def test_container_with_a_shared_memory_of_its_own_is_an_error(tmp_path: Path) -> None:
    found = doctor(
        "sharing", "engine-settings", before=with_settings(tmp_path, mount_dev="minimal")
    )
    assert worst(found["sharing"]) == "error"
    assert "each container has its own /dev/shm" in [f["what"] for f in found["sharing"]]
    assert worst(found["engine-settings"]) == "warning"


def test_container_with_a_tmp_of_its_own_is_a_warning(tmp_path: Path) -> None:
    found = doctor("sharing", before=with_settings(tmp_path, mount_tmp="no"))["sharing"]
    assert [(f["severity"], f["what"]) for f in found] == [
        ("warning", "each container has its own /tmp")
    ]


def test_forbidden_binds_are_named_where_the_engine_cannot_run(tmp_path: Path) -> None:
    before = with_settings(tmp_path, user_bind_control="no")
    found = doctor("engine", "engine-settings", "sharing", before=before)
    assert worst(found["engine"]) == "error"
    [setting] = [f for f in found["engine-settings"] if f["severity"] == "error"]
    assert setting["what"].startswith("`user bind control = no`")
    assert worst(found["sharing"]) == "info"  # the engine's check tells


def test_forbidden_binds_of_the_private_engine_are_fixed(tmp_path: Path) -> None:
    program = find_apptainer()
    assert program
    if program.resolve().is_relative_to("/usr"):
        pytest.skip("this machine's Apptainer is the distribution's, which is not ours to change")
    before = with_settings(tmp_path, user_bind_control="no")
    # The second doctor runs in the same namespace, on what the first one mended.
    again = f"'{sys.executable}' -m fairlead doctor --fix --yes engine-settings >&2"
    found = doctor("engine", "engine-settings", before=f"{before}\n{again}")
    # Other engines of this machine have findings of their own.
    assert [f["severity"] for f in found["engine"] if "apptainer" in f["what"]] == ["ok"]
    assert "error" not in [f["severity"] for f in found["engine-settings"]]


def test_user_namespaces_forbidden_in_one_name_the_switch() -> None:
    script = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'
    wrapped = ("unshare", "--user", "--map-root-user", "sh", "-ec", script, "sh")
    [found] = doctor("user-namespaces", wrapped=wrapped)["user-namespaces"]
    assert found["severity"] == "error"
    assert found["where"] == "/proc/sys/user/max_user_namespaces"


PROCESS_VM_READV = {"x86_64": (310, 0xC000003E), "aarch64": (270, 0xC00000B7)}


def forbidden(number: int, architecture: int) -> tuple[str, ...]:
    """Words that run what follows behind a seccomp filter: one system call ends with EPERM."""

    def instruction(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    load, jump, give = 0x20, 0x15, 0x06
    program = (
        instruction(load, 0, 0, 4)  # seccomp_data.arch
        + instruction(jump, 0, 3, architecture)
        + instruction(load, 0, 0, 0)  # seccomp_data.nr
        + instruction(jump, 0, 1, number)
        + instruction(give, 0, 0, 0x00050001)  # SECCOMP_RET_ERRNO, EPERM
        + instruction(give, 0, 0, 0x7FFF0000)  # SECCOMP_RET_ALLOW
    )
    script = f"""
import ctypes, os, sys
filter = ctypes.create_string_buffer(bytes.fromhex("{program.hex()}"))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
program = Program({len(program) // 8}, ctypes.addressof(filter))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit(f"no filter: errno {{ctypes.get_errno()}}")
os.execvp(sys.argv[1], sys.argv[1:])
"""
    return (sys.executable, "-c", script)


def test_memory_of_another_process_behind_a_filter_is_reported() -> None:
    machine = os.uname().machine
    if machine not in PROCESS_VM_READV:
        pytest.skip(f"the number of a system call on {machine} is not known here")
    [found] = doctor("cma", wrapped=forbidden(*PROCESS_VM_READV[machine]))["cma"]
    assert (found["severity"], found["what"]) == (
        "warning",
        "no process can read another's memory",
    )
    assert "EPERM" in found["why"] or "can trace" in found["why"]


def test_memory_of_another_process_here_is_read() -> None:
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text().strip() != "0":
        pytest.skip("Yama restricts it on this machine")
    assert worst(doctor("cma")["cma"]) == "ok"


DEVICES = """\
mount -t tmpfs -o mode=755 dev /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/urandom c 1 9
mkdir /dev/shm && mount -t tmpfs -o mode=1777 shm /dev/shm
"""
CARD = f"{DEVICES}\nmkdir /dev/infiniband && mknod /dev/infiniband/uverbs0 c 231 192"


@pytest.mark.parametrize(
    ("limit", "severity"), [("65536", "warning"), ("unlimited", "ok"), ("17179869184", "ok")]
)
def test_locked_memory_is_held_against_the_card(limit: str, severity: str) -> None:
    # Root of this machine may have less than all of root's capabilities, and cannot raise a limit.
    low = limit == "65536"
    hard = subprocess.run(
        ["sh", "-c", "ulimit -H -l"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if (
        not low
        and subprocess.run(["prlimit", f"--memlock={limit}", "true"], check=False).returncode
    ):
        pytest.skip(f"the limit here is {hard} KiB, and may not be raised")
    found = doctor("locked-memory", before=CARD, wrapped=("prlimit", f"--memlock={limit}"))
    assert worst(found["locked-memory"]) == severity


def test_locked_memory_without_a_card_is_well() -> None:
    wrapped = ("prlimit", "--memlock=65536")
    found = doctor("locked-memory", before=DEVICES, wrapped=wrapped)["locked-memory"]
    assert [f["what"] for f in found] == [
        "64 KiB can be locked; no device of this machine needs more"
    ]


def test_fabric_that_no_mpi_here_knows_and_tcp_by_a_variable_are_reported() -> None:
    hosts.mpich()
    card = f"{DEVICES}\nmknod /dev/cxi0 c 240 0"
    found = doctor("fabric", before=card, environ={"FI_PROVIDER": "tcp"})["fabric"]
    assert [f["severity"] for f in found] == ["warning", "warning"]
    assert "supports Slingshot" in found[0]["what"] and "FI_PROVIDER=tcp" in found[1]["what"]
    none = doctor("fabric", before=DEVICES, environ={"FI_PROVIDER": "tcp"})["fabric"]
    assert worst(none) == "ok"


@pytest.mark.parametrize(("mode", "severity"), [("nosuid", "info"), ("suid", "ok")])
def test_setuid_helper_on_a_nosuid_mount_has_no_effect(
    mode: str, severity: str, tmp_path: Path
) -> None:
    program = find_apptainer()
    assert program
    starter = f"{tmp_path}/libexec/apptainer/bin/starter-suid"
    before = (
        f"mount -t tmpfs -o mode=755,{mode} opt '{tmp_path}'\n"
        f"mkdir -p '{tmp_path}/bin' '{tmp_path}/libexec/apptainer/bin'\n"
        f"cp '{program}' '{tmp_path}/bin/apptainer'\n"
        f"cp /bin/true '{starter}' && chmod 4755 '{starter}'"
    )
    environ = {"FAIRLEAD_APPTAINER": f"{tmp_path}/bin/apptainer"}
    [found] = doctor("setuid", before=before, environ=environ)["setuid"]
    assert found["severity"] == severity  # root needs no setuid helper
    assert ("mounted nosuid" in found["why"]) == (mode == "nosuid")


@pytest.mark.parametrize(
    ("options", "said"),
    [("nr_inodes=1", "space for 0 more files"), ("noexec", "mounted noexec")],
)
def test_cache_that_takes_no_file_or_maps_no_library_is_an_error(
    options: str, said: str, tmp_path: Path
) -> None:
    before = f"mount -t tmpfs -o {options} cache '{tmp_path}'"
    found = doctor("quotas", before=before, environ={"XDG_CACHE_HOME": str(tmp_path)})["quotas"]
    assert [said in f["what"] for f in found if f["severity"] == "error"] == [True]


def test_temporary_folder_that_is_absent_is_made(tmp_path: Path) -> None:
    wanted = tmp_path / "scratch" / "mine"
    environ = {"TMPDIR": str(wanted)}
    [found] = doctor("quotas", environ=environ)["quotas"]
    assert found["severity"] == "warning" and found["fix"]["does"] == f"makes {wanted}"
    done = subprocess.run(
        [*DOCTOR, "--fix", "--yes", "quotas"],
        capture_output=True,
        text=True,
        env={**PLAIN, **environ},
        check=False,
    )
    assert done.returncode == 0 and wanted.is_dir()
    assert wanted.stat().st_mode & 0o777 == 0o700
    assert worst(doctor("quotas", environ=environ)["quotas"]) == "ok"


@pytest.mark.parametrize(("answer", "made"), [("y", True), ("n", False)])
def test_fix_asks_first_on_a_terminal(answer: str, made: bool, tmp_path: Path) -> None:
    wanted = tmp_path / "mine"
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "doctor", "--fix", "quotas"],
        stdin=end,
        stdout=end,
        stderr=end,
        env={**PLAIN, "TMPDIR": str(wanted), "TERM": "dumb"},
    )
    os.close(end)
    said = b""
    while b"do it?" not in said:
        said += os.read(terminal, 1024)
    assert f"makes {wanted}".encode() in said
    assert not wanted.exists()
    os.write(terminal, f"{answer}\n".encode())
    with contextlib.suppress(OSError):  # the other end closes
        while more := os.read(terminal, 1024):
            said += more
    os.close(terminal)
    assert process.wait() == 0
    assert wanted.exists() is made
    assert (b"1 warning" in said) is not made


def test_wrong_variables_are_reported_once_and_the_rest_is_examined() -> None:
    wrong = {"FAIRLEAD_APPTAINER": "/nope", "FAIRLEAD_MPI": "/nope", "FAIRLEAD_SITE": "laptp"}
    found = doctor(environ=wrong)
    errors = {name for name, those in found.items() if worst(those) == "error"}
    assert errors == {"site-profile", "engine", "host-mpi"}
    assert worst(found["setuid"]) == "info"
    assert worst(found["fuse"]) == "ok"


def test_mpiexec_of_another_family_than_the_loaded_mpi_is_reported() -> None:
    openmpi = hosts.openmpi()
    path = {"PATH": f"{openmpi / 'bin'}:{PLAIN['PATH']}"}
    [plain] = doctor("launcher-match", environ=path)["launcher-match"]
    assert plain["severity"] == "info" and "Open MPI 5.0.11" in plain["what"]
    loaded = {**path, "I_MPI_ROOT": str(hosts.intel())}
    [mixed] = doctor("launcher-match", environ=loaded)["launcher-match"]
    assert mixed["severity"] == "warning" and "another family" in mixed["what"]
    matching = {**loaded, "PATH": f"{hosts.intel() / 'bin'}:{PLAIN['PATH']}"}
    assert worst(doctor("launcher-match", environ=matching)["launcher-match"]) == "ok"


def test_library_path_with_another_mpi_is_reported() -> None:
    hosts.mpich()
    foreign = {"LD_LIBRARY_PATH": str(hosts.openmpi() / "lib")}
    [found] = doctor("library-path", environ=foreign)["library-path"]
    assert found["severity"] == "warning" and "Open MPI's family" in found["what"]
    own = {"LD_LIBRARY_PATH": str(hosts.mpich() / "lib")}
    assert worst(doctor("library-path", environ=own)["library-path"]) == "ok"


@pytest.mark.full
def test_host_mpi_of_a_newer_distribution_is_reported_with_what_is_done() -> None:
    environ = {"FAIRLEAD_MPI": str(hosts.sid() / "usr")}
    found = doctor("glibc-distance", environ=environ)["glibc-distance"]
    assert [f["severity"] for f in found] == ["info"]
    assert "is bound over the image's, so it runs" in found[0]["why"]


@pytest.mark.parametrize(("setting", "severity"), [("never", "warning"), ("always", "ok")])
def test_huge_pages_that_are_off_are_reported(setting: str, severity: str, tmp_path: Path) -> None:
    text = "always madvise never\n".replace(setting, f"[{setting}]")
    (tmp_path / "enabled").write_text(text)
    target = "/sys/kernel/mm/transparent_hugepage/enabled"
    if not Path(target).exists():
        pytest.skip("this kernel has no transparent huge pages")
    found = doctor("hugepages", before=f"mount --bind '{tmp_path}/enabled' {target}")
    assert worst(found["hugepages"]) == severity


def test_control_groups_are_reported_by_what_is_mounted() -> None:
    gone = "umount -l -R /sys/fs/cgroup"
    [none] = doctor("cgroups", before=gone)["cgroups"]
    assert none["severity"] == "info" and none["what"] == "there are no control groups"
    second = f"{gone}\nmount -t cgroup2 none /sys/fs/cgroup"
    [found] = doctor("cgroups", before=second)["cgroups"]
    assert found["what"] == "control groups: version 2"


def test_podman_runtime_of_mixed_control_groups_is_reported(tmp_path: Path) -> None:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed: sh bootstrap.sh test")
    mixed = (
        "umount -l -R /sys/fs/cgroup\nmount -t tmpfs cgroup /sys/fs/cgroup\n"
        "mkdir /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified"
    )
    conf = tmp_path / "containers.conf"
    conf.write_text('[engine]\nruntime = "crun"\n')
    environ = {"CONTAINERS_CONF": str(conf)}
    [found] = doctor("cgroups", before=mixed, environ=environ)["cgroups"]
    assert found["severity"] == "info" and "crun" in found["what"]
    assert str(conf) in found["where"]
    conf.write_text('[engine]\nruntime = "runc"\n')
    assert worst(doctor("cgroups", before=mixed, environ=environ)["cgroups"]) == "ok"


def tiny_root(folder: Path) -> Path:
    """A root folder with `true` in it."""
    program = "/usr/bin/true"
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    files = [program, *(word for word in listed.split() if word.startswith("/"))]
    for file in files:
        there = folder / file.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, there)
    for name in ("proc", "sys", "dev", "etc", "tmp", "run", "var"):
        (folder / name).mkdir()
    return folder


@pytest.mark.parametrize(
    "limits", ["", 'default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]']
)
def test_podman_limits_that_doctor_reports_stop_the_real_podman(
    limits: str, tmp_path: Path
) -> None:
    if shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("podman or runc is not installed: sh bootstrap.sh test")
    conf = tmp_path / "containers.conf"
    conf.write_text(
        f'[containers]\n{limits}\n[engine]\nruntime = "runc"\nevents_logger = "file"\n'
        'cgroup_manager = "cgroupfs"\n'
    )
    environ = {"CONTAINERS_CONF": str(conf)}
    found = doctor("engine-settings", environ=environ)["engine-settings"]
    output = any("raises limits" in f["what"] for f in found)
    tree = tiny_root(tmp_path / "tree")
    with podman() as own:
        done = subprocess.run(
            own.argv("run", "--rm", "--network=host", "--rootfs", tree, "/usr/bin/true"),
            capture_output=True,
            text=True,
            env={**own.environ, **environ},
            check=False,
        )
    assert ("setting rlimit" in done.stderr) is output, done.stderr
    assert (done.returncode != 0) is output, done.stderr


def slurm_client(tmp_path: Path, plugins: tuple[str, ...], plugstack: str) -> dict[str, str]:
    """The real srun and scontrol of Debian's Slurm, from a folder, on PATH; no daemon runs."""
    root = hosts.debian_files(
        "bookworm", "slurm-client", "slurm-wlm-basic-plugins", "slurm-wlm-plugins", "libslurm38"
    )
    [libraries] = root.glob("usr/lib/*/slurm-wlm")
    (tmp_path / "plugins").mkdir()
    for path in libraries.glob("*.so"):
        if not path.name.startswith("mpi_") or path.name in plugins:
            (tmp_path / "plugins" / path.name).symlink_to(path)
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=t\nSlurmctldHost=localhost\nAuthType=auth/none\nSlurmUser=root\n"
        f"PluginDir={tmp_path}/plugins\nMpiDefault={plugins[0][4:-3]}\n"
    )
    (tmp_path / "plugstack.conf").write_text(plugstack)
    # Of the MPIs that `doctor --fix` may have installed here, one.
    (tmp_path / "data/fairlead/mpi").mkdir(parents=True)
    (tmp_path / "data/fairlead/mpi/mpich-5.0.2").symlink_to(hosts.mpich())
    (tmp_path / "bin").mkdir()
    for name in ("srun", "scontrol"):
        program = tmp_path / "bin" / name
        program.write_text(
            f"#!/bin/sh\nLD_LIBRARY_PATH='{libraries}' exec '{root}/usr/bin/{name}' \"$@\"\n"
        )
        program.chmod(0o755)
    return {
        "PATH": f"{tmp_path / 'bin'}:{PLAIN['PATH']}",
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
        "FAIRLEAD_SITE": "laptop",
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }


@pytest.mark.full
def test_srun_that_speaks_an_mpis_pmi_is_well(tmp_path: Path) -> None:
    environ = slurm_client(tmp_path, ("mpi_pmi2.so", "mpi_none.so"), "")
    found = doctor("pmi", "launcher-match", "scheduler-plugins", environ=environ)
    assert {name: worst(those) for name, those in found.items()} == {
        "pmi": "ok",
        "launcher-match": "ok",
        "scheduler-plugins": "ok",
    }
    assert "pmi2" in found["pmi"][0]["what"]


@pytest.mark.full
def test_srun_that_speaks_no_pmi_is_reported_with_the_way_round(tmp_path: Path) -> None:
    environ = slurm_client(tmp_path, ("mpi_none.so",), "")
    found = doctor("pmi", "launcher-match", environ=environ)
    assert worst(found["pmi"]) == "warning"
    assert "srun cannot connect ranks of MPICH 5.0.2" in found["pmi"][0]["what"]
    assert [f["severity"] for f in found["launcher-match"]] == ["info"]


@pytest.mark.full
def test_plugin_that_doctor_misses_stops_the_real_srun(tmp_path: Path) -> None:
    (tmp_path / "plugstack.conf.d").mkdir()
    (tmp_path / "plugstack.conf.d" / "a.conf").write_text("required spank_gone.so\n")
    plugstack = "include plugstack.conf.d/*\noptional /opt/gone/spank_other.so\n"
    environ = slurm_client(tmp_path, ("mpi_pmi2.so",), plugstack)
    found = doctor("scheduler-plugins", environ=environ)["scheduler-plugins"]
    assert [(f["severity"], f["where"].rpartition("/")[2]) for f in found] == [
        ("error", "a.conf:1"),
        ("warning", "plugstack.conf:2"),
    ]
    done = subprocess.run(
        ["srun", "-n1", "true"],
        capture_output=True,
        text=True,
        env={**PLAIN, **environ},
        cwd="/",
        check=False,
    )
    assert done.returncode != 0
    assert "a.conf:1: Failed to load plugin spank_gone.so. Aborting." in done.stderr


def test_doctor_at_a_real_slurm_and_within_a_job_of_it() -> None:
    hosts.mpich()
    names = ("site-profile", "pmi", "launcher-match", "scheduler-plugins")
    with slurm() as cluster:
        login = cluster.fairlead("doctor", "--json", *names)
        job = cluster.run("srun", "-n1", *DOCTOR, *names)
    for done in (login, job):
        assert done.returncode == 0, done.stdout + done.stderr
        findings = json.loads(done.stdout)["findings"]
        seen = {f["check"]: f["severity"] for f in findings}
        # The first MPI is MPICH, which its pmi2 connects; slurm.conf has MpiDefault=none.
        assert seen["site-profile"] == seen["scheduler-plugins"] == "ok"
        assert "warning" not in seen.values()
        [default] = [f for f in findings if f["check"] == "launcher-match"]
        assert (default["severity"], default["where"]) == (
            "info",
            "MpiDefault of slurm.conf = none",
        )


HANGING = """
import sys
from dataclasses import replace
from fairlead.doctor.fix import examine
from fairlead.doctor.registry import ordered
from fairlead.doctor.world import World
names = ("quotas", "hugepages")
checks = [replace(c, limit_s=2) for c in ordered() if c.name in names]
for found in examine(World({**__import__("os").environ, "TMPDIR": sys.argv[1]}), checks):
    print(found.finding.check, found.finding.severity, found.finding.what)
"""


def test_file_system_that_does_not_answer_stops_one_check_only(tmp_path: Path) -> None:
    """A FUSE server that is stopped, as a file server that is down."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    (tmp_path / "tree").mkdir()
    subprocess.run(["gensquashfs", "-q", "-D", tmp_path / "tree", image], check=True)
    server = subprocess.Popen(["squashfuse_ll", "-f", image, mount])
    try:
        while not mount.is_mount():
            assert server.poll() is None
            time.sleep(0.01)
        server.send_signal(signal.SIGSTOP)
        done = subprocess.run(
            [sys.executable, "-c", HANGING, mount],
            capture_output=True,
            text=True,
            env=PLAIN,
            check=False,
        )
    finally:
        server.send_signal(signal.SIGCONT)
        subprocess.run(["umount", "-l", mount], check=False)
        server.kill()
        server.wait()
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "quotas warning this check did not end"
    assert second.startswith("hugepages ")


ODD = {
    "as it is": {},
    "no text": {"LD_LIBRARY_PATH": "/tmp/\udcff:[x:*:", "LD_PRELOAD": "\udcff.so"},
    "nothing": dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH"), ""),
    "no folders": {"TMPDIR": "rel/dir\n", "HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/x"},
    "no PATH": {"PATH": "/nowhere"},
}


@pytest.mark.parametrize("kind", ODD)
def test_whole_doctor_in_an_odd_environment_has_no_check_that_failed(kind: str) -> None:
    done = subprocess.run(
        DOCTOR, capture_output=True, errors="replace", env={**PLAIN, **ODD[kind]}, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert {f["check"] for f in findings} == {check.name for check in ordered()}
    broken = [f for f in findings if f["what"] in ("this check failed", "this check did not end")]
    assert broken == []
    if kind == "as it is":
        assert [f["what"] for f in findings if f["severity"] == "error"] == []
