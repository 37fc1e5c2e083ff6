"""Doctor's checks, on recorded machines (``tests/recorded/doctor``)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.machine import RECORDED, Recorded

from fairlead.base.errors import Severity
from fairlead.base.serde import to_json
from fairlead.detect.machine import Profile
from fairlead.doctor.diagnosis import Diagnosis, OwnFix, RootFix
from fairlead.doctor.fix import examine
from fairlead.doctor.registry import ordered
from fairlead.site import all_sites

# What each recording must find; every check that is not named must find all well.
EXPECTED = {
    "root-ready": {"capabilities": "info", "clocks": "info", "engine-settings": "info"},
    "root-whole": {},
    "root-bare": {
        "packages": "error",
        "subids": "error",
        "capabilities": "info",
        "engine": "error",
        "host-mpi": "error",
        "squashfs": "info",
        "sharing": "info",
        "clocks": "info",
        "engine-settings": "info",
    },
    "root-no-room": {
        "shared-memory": "warning",
        "space": "warning",
        "capabilities": "info",
        "clocks": "info",
        "engine-settings": "info",
    },
    "root-no-namespaces": {"user-namespaces": "error", "clocks": "info"},
    "user-ready": {"clocks": "info", "cma": "info"},
    "user-fuse-closed": {
        "fuse": "error",
        "engine": "error",
        "squashfs": "info",
        "sharing": "info",
        "clocks": "info",
        "cma": "info",
    },
    "user-openmpi-only": {
        "engine": "error",
        "host-mpi": "warning",
        "sharing": "info",
        "clocks": "info",
    },
    "user-foreign-mpiexec": {"launcher-match": "info", "clocks": "info", "cma": "info"},
    "login-slingshot": {"fabric": "info", "locked-memory": "info", "cma": "info"},
    "node-infiniband-tcp": {
        "fabric": "warning",
        "locked-memory": "warning",
        "cma": "warning",
        "node-history": "warning",
    },
    "node-nccl-off": {
        "clocks": "info",
        "cma": "info",
        "fabric": "warning",
        "nccl": "warning",
    },
    "node-slurm-broken": {
        "pmi": "error",
        "scheduler-plugins": "error",
        "launcher-match": "info",
        "cma": "info",
    },
    "user-setuid-ignored": {"setuid": "warning", "engine-settings": "error", "cma": "info"},
    "user-setuid-heeded": {},
    "user-no-zstd": {"squashfs": "error", "cma": "info"},
    "user-apart": {"sharing": "error", "engine-settings": "error", "cma": "info"},
    "user-hybrid-crun": {"cgroups": "info", "engine-settings": "info", "cma": "info"},
    "user-cgroup2": {"cma": "info"},
    "user-no-cgroups": {"cgroups": "info", "cma": "info"},
    "user-newer-glibc": {"glibc-distance": "info", "cma": "info"},
    "user-glibc-out-of-reach": {"glibc-distance": "warning", "cma": "info"},
    "user-wrong-clocks": {"clocks": "warning", "cma": "info"},
    "user-full": {"quotas": "error", "cma": "info"},
    "user-open-cache": {"exposed-folders": "error", "clocks": "info", "cma": "info"},
    "user-no-hugepages": {"hugepages": "warning", "cma": "info"},
    "user-mixed-modules": {
        "launcher-match": "warning",
        "mpi-variables": "warning",
        "library-path": "warning",
        "cma": "info",
    },
    "user-no-tracing": {"cma": "warning"},
    "user-nowhere": {"site-profile": "info", "cma": "info"},
    "user-unknown-site": {"site-profile": "error", "cma": "info"},
}


@pytest.mark.parametrize("folder", ["native", "keys"])
def test_folder_that_others_can_write_to_is_named_once(folder: str) -> None:
    world = Recorded("user-ready")
    asked = [q for q in world.answers if q.startswith("exposed ") and q.split()[1].endswith(folder)]
    assert asked
    part = asked[0].split()[2]
    changed = {q: [[part, "its mode is 0777"]] for q in asked}
    found = find(Recorded("user-ready", **changed), "exposed-folders").finding
    assert found.severity is Severity.ERROR and found.where == part and "0777" in found.why
    assert found.remedy.startswith(f"chmod go-w {part}")


_RANK = ("ok", "info", "warning", "error")


def find(world: Recorded, check: str) -> Diagnosis:
    """The one diagnosis of a check that is not well."""
    checks = [c for c in ordered() if c.name == check]
    [found] = [d for d in examine(world, checks) if d.finding.severity is not Severity.OK]
    return found


def test_recordings_all_have_an_expectation() -> None:
    assert {path.stem for path in RECORDED.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("check", [c.name for c in ordered()])
def test_check_recordings_show_it_well_and_ill(check: str) -> None:
    assert any(check in findings for findings in EXPECTED.values())
    assert any(check not in findings for findings in EXPECTED.values())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_recorded_machine_examined_finds_what_is_wrong_with_it(name: str) -> None:
    found = list(examine(Recorded(name), ordered()))
    assert [d.finding for d in found if d.finding.what == "this check failed"] == []
    worst: dict[str, str] = {}
    for severity in _RANK[1:]:
        worst |= {d.finding.check: severity for d in found if d.finding.severity == severity}
    assert worst == EXPECTED[name]
    assert {d.finding.check for d in found} == {c.name for c in ordered()}
    for diagnosis in found:
        if diagnosis.finding.severity in ("error", "warning"):
            assert diagnosis.finding.where
            assert diagnosis.finding.why
            assert diagnosis.finding.remedy


def test_packages_missing_remedy_installs_exactly_them() -> None:
    found = find(Recorded("root-bare"), "packages")
    line = "sudo apt-get install -y --no-install-recommends"
    assert found.finding.remedy == f"{line} mmdebstrap squashfs-tools-ng squashfuse uidmap"
    assert isinstance(found.fix, RootFix)
    assert found.fix.command[2:] == ("mmdebstrap", "squashfs-tools-ng", "squashfuse", "uidmap")


def test_packages_missing_without_apt_have_no_fix() -> None:
    found = find(Recorded("root-bare", **{"which apt-get": None}), "packages")
    assert found.fix is None
    assert "no apt-get" in found.finding.remedy


def test_subids_taken_by_others_are_not_given_again() -> None:
    taken = "alice:100000:65536\nbob:200000:70000\n"
    found = find(Recorded("root-bare", **{"read /etc/subuid": taken}), "subids")
    assert found.finding.remedy == "echo root:270000:65536 | sudo tee -a /etc/subuid /etc/subgid"


def test_subids_of_too_small_a_range_do_not_count() -> None:
    small = "root:200000:1000\n"
    found = find(Recorded("root-ready", **{"read /etc/subuid": small}), "subids")
    assert found.finding.where == "/etc/subuid"


@pytest.mark.parametrize("text", ["root", "root:x:65536", "root:1:2:3", "::", "\0"])
def test_subids_malformed_line_is_passed_over(text: str) -> None:
    found = find(Recorded("root-ready", **{"read /etc/subgid": text}), "subids")
    assert found.finding.where == "/etc/subgid"


def test_namespaces_forbidden_by_a_switch_names_it() -> None:
    found = find(Recorded("root-no-namespaces"), "user-namespaces")
    assert found.finding.where == "/proc/sys/user/max_user_namespaces"
    assert found.finding.remedy.startswith("sudo sysctl -w user.max_user_namespaces=")


def test_fuse_device_absent_is_distinguished_from_closed() -> None:
    closed = find(Recorded("user-fuse-closed"), "fuse")
    absent = find(Recorded("user-fuse-closed", **{"access /dev/fuse 0": False}), "fuse")
    assert isinstance(closed.fix, RootFix)
    assert closed.finding.remedy == "sudo chmod 666 /dev/fuse"
    assert absent.fix is None
    assert "modprobe" in absent.finding.remedy


def test_engine_absent_for_root_comes_from_apt_where_it_has_one() -> None:
    policy = {
        "argv": [],
        "returncode": 0,
        "stdout": "apptainer:\n  Installed: (none)\n  Candidate: 1.4.5-2\n",
        "stderr": "",
    }
    by_apt = find(Recorded("root-bare", **{"run apt-cache policy apptainer": policy}), "engine")
    own = find(Recorded("root-bare"), "engine")
    assert isinstance(by_apt.fix, RootFix)
    assert by_apt.fix.command[-1] == "apptainer"
    assert isinstance(own.fix, OwnFix)


def test_engine_absent_is_no_error_where_another_works_and_one_that_fails_is_reported() -> None:
    others = {
        "podman": {
            "argv": ["/usr/bin/podman"],
            "returncode": 125,
            "stdout": "",
            "stderr": "no newuidmap",
        },
        "charliecloud": {"argv": ["/usr/bin/ch-run"], "returncode": 0, "stdout": "", "stderr": ""},
    }
    checks = [c for c in ordered() if c.name == "engine"]
    found = [d.finding for d in examine(Recorded("root-bare", other_engines=others), checks)]
    assert [(f.severity, f.what) for f in found] == [
        (Severity.WARNING, "there is no Apptainer"),
        (Severity.INFO, "podman is installed but cannot run a command in an image"),
        (Severity.OK, "charliecloud also runs on this machine"),
    ]
    assert "--engine charliecloud" in found[0].remedy and found[1].why == "no newuidmap"


def test_engine_private_that_does_not_start_is_made_again() -> None:
    ready = Recorded("user-ready")
    program = ready.answers["engine"]
    broken = {"argv": [program], "returncode": 127, "stdout": "", "stderr": "No such file"}
    found = find(Recorded("user-ready", **{f"run {program} --version": broken}), "engine")
    assert isinstance(found.fix, OwnFix)
    assert found.finding.why == "No such file"


def test_engine_foreign_that_does_not_start_is_left_to_its_owner() -> None:
    broken = {"argv": [], "returncode": 1, "stdout": "", "stderr": "bad"}
    changed = {"engine": "/usr/bin/apptainer", "run /usr/bin/apptainer --version": broken}
    found = find(Recorded("user-ready", **changed), "engine")
    assert found.fix is None


def test_host_mpi_of_open_mpi_only_is_named() -> None:
    found = find(Recorded("user-openmpi-only"), "host-mpi")
    assert "Open MPI" in found.finding.why
    assert isinstance(found.fix, OwnFix)


def test_diagnosis_as_json_shows_what_the_fix_would_do() -> None:
    shown = find(Recorded("user-fuse-closed"), "fuse").to_json()
    assert shown["fix"] == {
        "does": "makes /dev/fuse usable by all users",
        "needs_root": True,
        "command": "sudo chmod 666 /dev/fuse",
    }


def output(world: Recorded, check: str) -> list[tuple[str, str]]:
    """``(severity, what)`` of all that a check finds."""
    [chosen] = [c for c in ordered() if c.name == check]
    return [(str(d.finding.severity), d.finding.what) for d in chosen.examine(world)]


def with_environ(name: str, environ: dict[str, str], **changed: Any) -> Recorded:
    world = Recorded(name, **changed)
    world.environ = world.environ | environ
    return world


@pytest.mark.parametrize(
    ("variable", "value", "harm"),
    [
        ("I_MPI_FABRICS", "shm", "fails in MPI_Init"),
        ("I_MPI_FABRICS", "shm:dapl", "ends in MPI_Init"),
        ("I_MPI_FABRICS", "ofi", "network card"),
        ("OMPI_MCA_btl", "tcp,self", "no shared memory"),
        ("OMPI_MCA_btl", "^vader", "excluded"),
        ("OMPI_MCA_btl", "openib,sm,self", "no openib"),
        ("OMPI_MCA_mtl", "^ofi", "libfabric"),
        ("MPIR_CVAR_NOLOCAL", "1", "network card"),
        ("MV2_USE_SHARED_MEM", "0", "slower"),
        ("SLURM_MPI_TYPE", "none", "rank 0 of 1"),
        ("MPICH_MAX_THREAD_SAFETY", "single", "threads"),
        ("MPICH_MAX_THREAD_SAFETY", "serialized", "between nodes"),
    ],
)
def test_variable_that_spoils_runs_is_named_with_its_harm(
    variable: str, value: str, harm: str
) -> None:
    world = with_environ("user-ready", {variable: value})
    found = find(world, "mpi-variables").finding
    assert found.what == f"{variable}={value} breaks runs"
    assert harm in found.why
    assert variable in found.remedy


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("I_MPI_FABRICS", "shm:ofi"),
        ("OMPI_MCA_btl", "sm,self,tcp"),
        ("OMPI_MCA_btl", "^openib"),
        ("MPIR_CVAR_NOLOCAL", "0"),
        ("MPICH_MAX_THREAD_SAFETY", "multiple"),
        ("MPICH_GPU_SUPPORT_ENABLED", "1"),  # without a Cray MPICH
    ],
)
def test_variable_that_harms_nothing_is_well(variable: str, value: str) -> None:
    world = with_environ("user-ready", {variable: value})
    assert output(world, "mpi-variables")[0][0] == "ok"


def test_gpu_support_of_cray_mpich_without_its_library_stops() -> None:
    world = with_environ("user-ready", {"MPICH_GPU_SUPPORT_ENABLED": "1"})
    cray = json.loads(json.dumps(world.answers["host_mpis"][0]))
    cray["library"]["vendor"] = "Cray MPICH"
    world.answers["host_mpis"] = [cray]
    assert find(world, "mpi-variables").finding.severity is Severity.ERROR
    cray["gpu_transport"] = [{"path": "/opt/libmpi_gtl_hsa.so.0", "machine": "x64"}]
    assert output(world, "mpi-variables")[0][0] == "ok"


CARD = {
    "matching /dev/infiniband/uverbs*": ["/dev/infiniband/uverbs0"],
    "matching /sys/class/infiniband/*": [],
    "matching /sys/class/infiniband/hfi1_*": [],
    "matching /dev/hfi1_[0-9]*": [],
}


@pytest.mark.parametrize(
    "environ",
    [
        {"FI_PROVIDER": "tcp"},
        {"FI_PROVIDER": "tcp;ofi_rxm"},
        {"I_MPI_OFI_PROVIDER": "sockets"},
        {"UCX_TLS": "tcp,self,sm"},
        {"UCX_NET_DEVICES": "eth0"},
        {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,sm,self"},
    ],
)
def test_variable_that_leaves_tcp_alone_matters_where_there_is_a_fabric(
    environ: dict[str, str],
) -> None:
    found = find(with_environ("user-ready", environ, **CARD), "fabric").finding
    assert "keeps MPI off the fabric" in found.what
    assert output(with_environ("user-ready", environ), "fabric")[0][0] == "ok"


@pytest.mark.parametrize(
    "environ",
    [
        {"FI_PROVIDER": "^tcp"},
        {"FI_PROVIDER": "verbs;ofi_rxm"},
        {"UCX_TLS": "rc,sm,self"},
        {"UCX_TLS": "^tcp"},
        {"UCX_NET_DEVICES": "mlx5_0:1"},
        {"OMPI_MCA_pml": "ucx", "OMPI_MCA_btl": "tcp,sm,self"},
    ],
)
def test_variable_that_leaves_the_fabric_is_well(environ: dict[str, str]) -> None:
    assert output(with_environ("user-ready", environ, **CARD), "fabric")[0][0] == "ok"


def test_efa_has_the_device_nodes_of_infiniband_and_is_not_taken_for_it() -> None:
    card = "/sys/class/infiniband/rdmap0s31"
    efa = {
        **CARD,
        "matching /sys/class/infiniband/*": [card],
        f"matching {card}/ports/*": [f"{card}/ports/1"],
        f"real {card}/device/driver": "/sys/bus/pci/drivers/efa",
        **{f"read {card}/ports/1/{name}": None for name in ("link_layer", "state", "rate")},
    }
    found = find(with_environ("user-ready", {"FI_PROVIDER": "tcp"}, **efa), "fabric").finding
    assert "InfiniBand" not in f"{found.what} {found.why}"
    [(_, known, *_)] = output(Recorded("user-ready", **efa), "fabric")
    assert known == "EFA (/dev/infiniband/uverbs0): the MPIs of this machine support it"


def test_fabric_that_no_mpi_knows_is_tcp_only() -> None:
    device = {"matching /dev/cxi*": ["/dev/cxi0"]}
    found = find(Recorded("user-ready", **device), "fabric").finding
    assert found.what.startswith("no MPI on this machine supports Slingshot")
    world = Recorded("user-ready", **device)
    behind = {"path": "/usr/lib64/libcxi.so.1", "machine": "x64", "soname": "libcxi.so.1"}
    world.answers["host_mpis"][0]["closure"].append(behind)
    assert output(world, "fabric") == [
        ("ok", "Slingshot (/dev/cxi0): the MPIs of this machine support it")
    ]


def test_fabric_absent_within_a_job_is_no_login_node() -> None:
    login = find(Recorded("login-slingshot"), "fabric").finding
    job = find(with_environ("login-slingshot", {"SLURM_JOB_ID": "1"}), "fabric").finding
    assert (login.severity, job.severity) == (Severity.INFO, Severity.WARNING)
    assert "login node" in login.what and "in a job" in job.what


@pytest.mark.parametrize(("status", "severity"), [("documented", "error"), ("guess", "warning")])
def test_profile_that_only_guesses_gives_a_warning_at_most(status: str, severity: str) -> None:
    world = Recorded("node-slurm-broken")
    world.answers["profile"]["site"]["origins"]["launcher.pmi"]["status"] = status
    [first, *_] = output(world, "pmi")
    assert first == (severity, "srun supports none of pmi2")


def test_pmi_that_an_mpi_does_not_speak_names_its_own_launcher() -> None:
    world = Recorded("node-slurm-broken")
    [chosen] = [c for c in ordered() if c.name == "pmi"]
    found = [d.finding for d in chosen.examine(world) if "cannot connect" in d.finding.what]
    assert [f.severity for f in found] == [Severity.WARNING]
    assert "bin/mpiexec.hydra" in found[0].remedy


@pytest.mark.parametrize(
    ("owner", "mode", "options", "said"),
    [
        (0, 0o755, ["rw"], "its owner is uid 0 and its mode 0755"),
        (1002, 0o4755, ["rw"], "its owner is uid 1002"),
        (0, 0o4755, ["rw", "nosuid"], "mounted nosuid"),
    ],
)
def test_setuid_helper_without_effect_says_why(
    owner: int, mode: int, options: list[str], said: str
) -> None:
    world = Recorded("user-setuid-heeded")
    starter = "/opt/apptainer/libexec/apptainer/bin/starter-suid"
    world.answers[f"owner_mode {starter}"] = [owner, mode]
    world.answers[f"file_system {starter}"]["options"] = options
    assert said in find(world, "setuid").finding.why


def test_setuid_helper_that_is_not_to_be_used_is_reported_without_alarm() -> None:
    world = Recorded("user-setuid-heeded")
    world.answers["read /opt/apptainer/etc/apptainer/apptainer.conf"] = "allow setuid = no\n"
    [(severity, what, *_)] = output(world, "setuid")
    assert severity == "ok" and "not used so: `allow setuid = no`" in what


def test_setuid_helper_where_no_privileges_can_be_gained_has_no_effect() -> None:
    status = {"read /proc/self/status": "CapEff:\t0\nNoNewPrivs:\t1\n"}
    assert "NoNewPrivs" in find(Recorded("user-setuid-heeded", **status), "setuid").finding.why


@pytest.mark.parametrize(
    ("codes", "scope", "remedy"),
    [
        ((1, 0), "1\n", "ptrace_scope=0"),
        ((1, 1), "2\n", "ptrace_scope=0"),
        ((1, 1), "3\n", "reboot"),
        ((1, 1), None, "SYS_PTRACE"),
        ((38, 38), "0\n", "a kernel with it"),
    ],
)
def test_memory_that_may_not_be_read_has_a_remedy_for_its_cause(
    codes: tuple[int, int], scope: str | None, remedy: str
) -> None:
    world = Recorded("user-ready")
    plain, allowed = codes
    said = {"plain": plain, "allowed": allowed, "namespaces": 1}
    world.answers["try_cma"]["stdout"] = json.dumps(said)
    world.answers["read /proc/sys/kernel/yama/ptrace_scope"] = scope
    found = find(world, "cma").finding
    assert found.severity is Severity.WARNING
    assert remedy in found.remedy


def test_memory_probe_that_says_nothing_is_reported() -> None:
    world = Recorded("user-ready")
    world.answers["try_cma"] |= {"stdout": "", "stderr": "Killed", "returncode": 137}
    found = find(world, "cma").finding
    assert (found.severity, found.why) == (Severity.INFO, "Killed")


@pytest.mark.parametrize(
    ("key", "value", "severity"),
    [
        ("user bind control", "no", "error"),
        ("allow container squashfs", "no", "error"),
        ("allow container sif", "NO", "error"),
        ("mount dev", "minimal", "warning"),
        ("mount tmp", "no", "warning"),
        ("mount proc", "no", "warning"),
        ("mount sys", "no", "warning"),
        ("mount home", "no", "info"),
        ("limit container paths", "/images", "info"),
        ("bind path", "/etc/absent", "error"),
    ],
)
def test_engine_setting_that_is_in_the_way_is_named_with_its_cure(
    key: str, value: str, severity: str
) -> None:
    world = Recorded("user-ready", **{"access /etc/absent 0": False})
    file = next(k for k in world.answers if k.startswith("read") and k.endswith("apptainer.conf"))
    world.answers[f"real {file[5:]}"] = file[5:]
    world.answers["real /home/alice/.local/share/fairlead"] = "/home/alice/.local/share/fairlead"
    world.answers[file] += f"{key}   =  {value}\n"
    found = find(world, "engine-settings")
    assert found.finding.severity == severity
    assert key in found.finding.what
    # It is fairlead's own Apptainer, whose settings the user may change.
    assert (found.fix is not None) == (severity in ("error", "warning"))
    assert "sudo" not in found.finding.remedy or severity == "info"


def test_engine_setting_of_an_administrator_is_not_ours_to_mend() -> None:
    found = [
        d
        for d in examine(Recorded("user-apart"), ordered())
        if d.finding.check == "engine-settings"
    ]
    assert found and all(d.fix is None for d in found)
    assert all(d.finding.remedy.startswith("sudo /opt/apptainer/bin/") for d in found)


def test_loop_devices_fewer_than_ranks_matter_where_the_kernel_mounts() -> None:
    world = Recorded("user-setuid-heeded")
    file = "read /opt/apptainer/etc/apptainer/apptainer.conf"
    world.answers[file] += "shared loop devices = no\nmax loop devices = 8\n"
    world.answers["real /opt/apptainer/etc/apptainer/apptainer.conf"] = "/opt/apptainer/etc"
    world.answers["real /home/alice/.local/share/fairlead"] = "/home/alice/.local/share/fairlead"
    world.answers["cores"] = 128
    assert "8 loop devices for up to 128" in find(world, "engine-settings").finding.what
    world.answers["matching /opt/apptainer/libexec/*/bin/starter-suid"] = []
    assert output(world, "engine-settings")[0][0] == "ok"


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("server:/home 999 0 1000 10 0 0", "100% "),
        ("server:/home 1001* 1000 2000 6days 10 0 0", ""),
        ("server:/home 10 0 0 960 0 1000", "96% "),
        ("server:/home none", ""),
        ("other:/home 999 0 1000 10 0 0", ""),
    ],
)
def test_quota_is_reported_when_it_is_nearly_used_up(line: str, used: str) -> None:
    world = Recorded("user-full")
    for folder in ("/tmp", "/scratch/alice/tmp"):
        world.answers[f"file_system {folder}"] = world.answers[
            "file_system /home/alice/.cache/fairlead"
        ] | {"mount": "/other"}
    world.answers["run quota -w -v"]["stdout"] = line + "\n"
    found = [what for _, what in output(world, "quotas") if "quota is used" in what]
    assert [used in what for what in found] == ([True] if used else [])


def test_spank_plugins_of_includes_are_read_and_loops_end() -> None:
    world = Recorded("login-slingshot")
    assert output(world, "scheduler-plugins") == [("ok", "Slurm's plugins: shifter_slurm.so")]
    inner = "read /etc/slurm/plugstack.conf.d/shifter.conf"
    world.answers[inner] = "include /etc/slurm/plugstack.conf\n"
    world.answers["matching /etc/slurm/plugstack.conf"] = ["/etc/slurm/plugstack.conf"]
    assert output(world, "scheduler-plugins")[0][0] == "ok"
    world.answers[inner] = "required /gone.so\nrequired 'unbalanced\n"
    world.answers |= {"access /gone.so 0": False, "access /usr/lib64/slurm/'unbalanced 0": True}
    assert output(world, "scheduler-plugins") == [("error", "a Slurm plugin is missing: /gone.so")]


def test_spank_plugin_whose_configuration_is_gone_is_reported() -> None:
    world = Recorded("login-slingshot", **{"access /etc/shifter/udiRoot.conf 0": False})
    found = find(world, "scheduler-plugins").finding
    assert found.what.endswith("/etc/shifter/udiRoot.conf")
    assert found.where == "/etc/slurm/plugstack.conf.d/shifter.conf:1"


def test_pals_without_its_daemon_is_a_login_node() -> None:
    world = Recorded(
        "user-ready",
        **{
            "which mpiexec": "/opt/cray/pals/1.2/bin/mpiexec",
            "real /opt/cray/pals/1.2/bin/mpiexec": "/opt/cray/pals/1.2/bin/mpiexec",
            "access /var/run/palsd 0": False,
            "access /run/palsd 0": False,
        },
    )
    assert output(world, "scheduler-plugins") == [
        ("info", "PALS is installed, but its daemon does not run")
    ]
    world.answers["access /var/run/palsd 0"] = True
    assert output(world, "scheduler-plugins")[0][0] == "ok"


@pytest.mark.parametrize(
    ("default", "severity"), [("pmi2", "ok"), ("pmix", "warning"), ("none", "info")]
)
def test_srun_default_is_held_against_the_mpis(default: str, severity: str) -> None:
    world = Recorded("login-slingshot")
    said = world.answers["run scontrol show config"]
    said["stdout"] = said["stdout"].replace("cray_shasta", default)
    assert output(world, "launcher-match")[0][0] == severity


def test_preload_that_is_not_there_is_reported_and_a_tool_is_not() -> None:
    gone = {"access /opt/gone.so 0": False, "access /opt/darshan.so 0": True}
    world = with_environ("user-ready", {"LD_PRELOAD": "/opt/gone.so /opt/darshan.so"}, **gone)
    assert output(world, "library-path") == [
        ("warning", "LD_PRELOAD names a file that does not exist")
    ]
    world = with_environ("user-ready", {"LD_PRELOAD": "/opt/darshan.so"}, **gone)
    assert output(world, "library-path")[0][0] == "ok"


def test_cgroups_matter_more_where_podman_is_the_engine() -> None:
    assert find(Recorded("user-hybrid-crun"), "cgroups").finding.severity is Severity.INFO
    podman = Recorded("user-hybrid-crun", engine=None)
    assert find(podman, "cgroups").finding.severity is Severity.WARNING
    conf = {"read /etc/containers/containers.conf": '[engine]\nruntime = "/usr/bin/runc"\n'}
    assert output(Recorded("user-hybrid-crun", **conf), "cgroups")[0][0] == "ok"


def test_compression_that_the_profile_does_not_want_is_a_warning() -> None:
    world = Recorded("user-no-zstd")
    world.answers["profile"]["site"]["images"]["compression"] = "gzip"
    assert find(world, "squashfs").finding.severity is Severity.WARNING


def test_clock_unsynchronised_matters_where_nodes_work_together() -> None:
    alone = find(Recorded("user-ready"), "clocks").finding.severity
    site = json.loads(json.dumps(Recorded("user-ready").answers["profile"]))
    site["site"]["scheduler"]["kind"] = "slurm"
    cluster = find(Recorded("user-ready", profile=site), "clocks").finding.severity
    assert (alone, cluster) == (Severity.INFO, Severity.WARNING)


@pytest.mark.parametrize("name", sorted(all_sites().sites))
@pytest.mark.parametrize("machine", ["user-ready", "login-slingshot", "node-infiniband-tcp"])
def test_every_profile_can_be_held_against_a_machine(name: str, machine: str) -> None:
    world = Recorded(machine)
    world.answers["profile"] = to_json(Profile(all_sites().sites[name], "named"))
    for program in ("aprun", "jsrun", "ibrun", "flux", "mpiexec"):
        world.answers.setdefault(f"which {program}", None)
    found = [d.finding for d in examine(world, ordered())]
    assert [f for f in found if f.what in ("this check failed", "this check did not end")] == []
    assert {f.check for f in found} == {c.name for c in ordered()}


@pytest.mark.parametrize(("status", "severity"), [("documented", "error"), ("guess", "warning")])
def test_launcher_of_the_site_that_is_not_here_is_reported(status: str, severity: str) -> None:
    world = Recorded("login-slingshot", **{"which srun": None})
    site = world.answers["profile"]["site"]
    site["origins"]["launcher.kinds"] = site["origins"]["fabric.kind"] | {"status": status}
    assert output(world, "launcher-match")[0] == (
        severity,
        "the launcher of this site is missing: srun",
    )


def test_profile_that_takes_tcp_for_the_fabric_is_reported() -> None:
    world = Recorded("login-slingshot")
    site = world.answers["profile"]["site"]
    site["fabric"]["accepts"] = ["cxi", "tcp"]
    found = [what for _, what in output(world, "fabric")]
    assert "the profile accepts tcp as the fabric" in found
    site["fabric"]["accepts"] = ["cxi"]
    assert len(output(world, "fabric")) == 1


def at_site(status: str = "documented", **mpi: Any) -> Recorded:
    """An ordinary user on a Slingshot machine, whose profile says this of its MPI."""
    world = Recorded("login-slingshot")
    site = world.answers["profile"]["site"]
    site["mpi"] = mpi
    for key in mpi:
        site["origins"][f"mpi.{key}"] = site["origins"]["fabric.kind"] | {"status": status}
    return world


def test_host_mpi_without_a_launcher_is_well_where_srun_starts_ranks() -> None:
    world = at_site()
    for mpi in world.answers["host_mpis"]:
        mpi["launcher"] = None
    assert output(world, "host-mpi") == [("ok", "host MPI: MPICH 5.0.2")]
    alone = Recorded("user-ready", host_mpis=world.answers["host_mpis"])
    assert output(alone, "host-mpi")[0][0] == "warning"


@pytest.mark.parametrize(("status", "severity"), [("documented", "error"), ("guess", "warning")])
def test_host_mpi_of_the_site_that_is_not_found_names_its_modules(
    status: str, severity: str
) -> None:
    world = at_site(
        status, search=["/opt/cray/pe/mpich/*/ofi/gnu/*/lib-abi-mpich"], modules=["-xt", "abi"]
    )
    world.answers["host_mpis"] = []
    found = find(world, "host-mpi")
    assert found.finding.severity == severity
    assert found.finding.where == "/opt/cray/pe/mpich/*/ofi/gnu/*/lib-abi-mpich"
    assert found.finding.remedy.startswith("module load -xt abi, then `fairlead doctor host-mpi`")
    assert found.fix is None


def test_host_mpi_that_is_not_the_sites_is_a_warning() -> None:
    found = find(at_site(vendor="Cray MPICH"), "host-mpi").finding
    assert found.severity is Severity.WARNING
    assert found.what == "the host MPI is MPICH 5.0.2, not the site's Cray MPICH"


def test_host_mpi_is_not_needed_where_a_site_exchanges_none() -> None:
    world = at_site(replaces="none")
    world.answers["host_mpis"] = []
    found = find(world, "host-mpi").finding
    assert (found.severity, found.remedy) == (Severity.INFO, "fairlead run --mpi container")


def test_slurm_without_its_controller_is_read_from_its_files() -> None:
    world = Recorded("node-slurm-broken")
    world.answers["run scontrol show config"] |= {"returncode": 1, "stdout": ""}
    world.answers |= {
        "read /etc/slurm/slurm.conf": "# a cluster\nClusterName=t\ninclude more.conf\nmpiDefault=pmix # for all\n",
        "read /etc/slurm/more.conf": "PluginDir=/opt/plugins\nInclude slurm.conf\n",
        "access /opt/plugins/spank_pyxis.so 0": True,
    }
    assert output(world, "launcher-match") == [
        ("warning", "`srun` uses pmix by default, and MPICH on this machine does not")
    ]
    gone = [what for _, what in output(world, "scheduler-plugins")]
    assert gone == ["a Slurm plugin is missing: /opt/gone/extra.so"]


def test_slurm_of_which_nothing_can_be_read_is_not_judged() -> None:
    world = Recorded("login-slingshot")
    world.answers["run scontrol show config"] |= {"returncode": 1, "stdout": ""}
    for folder in ("/etc/slurm", "/etc/slurm-llnl", "/opt/slurm/etc"):
        world.answers[f"read {folder}/slurm.conf"] = None
    assert output(world, "launcher-match")[0][0] == "ok"


def test_pmi_of_an_mpi_that_is_not_the_first_is_only_worth_knowing() -> None:
    world = Recorded("login-slingshot")
    openmpi = json.loads(json.dumps(world.answers["host_mpis"][0]))
    openmpi["library"] |= {"family": "openmpi", "vendor": "Open MPI", "version": "5.0.11"}
    said = world.answers["run srun --mpi=list"]
    said["stderr"] = "MPI plugin types are...\n\tcray_shasta\n\tpmi2\n"
    world.answers["host_mpis"].append(openmpi)
    assert output(world, "pmi") == [
        ("info", "srun cannot connect ranks of Open MPI 5.0.11: each would be rank 0 of 1")
    ]
    world.answers["host_mpis"] = [openmpi]
    assert output(world, "pmi")[0][0] == "warning"


def test_podman_limits_of_a_root_without_the_capability_are_reported() -> None:
    assert "raises limits" in find(Recorded("root-ready"), "engine-settings").finding.what
    conf = '[containers]\ndefault_ulimits = ["nofile=4096:4096"]\n'
    given = {"read /etc/containers/containers.conf": conf}
    assert output(Recorded("root-ready", **given), "engine-settings")[0][0] == "ok"
    broken = {"read /etc/containers/containers.conf": "[containers"}
    assert output(Recorded("root-ready", **broken), "engine-settings")[0][0] == "info"


@pytest.mark.parametrize(
    ("folder", "remedy"),
    [
        ("/scratch/my tmp", "mkdir -p '/scratch/my tmp', or unset TMPDIR"),
        ("scratch", "unset TMPDIR: a relative path depends on the current folder"),
    ],
)
def test_temporary_folder_of_an_odd_name_has_a_remedy_that_can_be_typed(
    folder: str, remedy: str
) -> None:
    alike = Recorded("user-ready").answers["file_system /tmp"]
    there = {f"access {folder} 0": False, f"file_system {folder}": alike}
    world = with_environ("user-ready", {"TMPDIR": folder}, **there)
    assert find(world, "quotas").finding.remedy == remedy
