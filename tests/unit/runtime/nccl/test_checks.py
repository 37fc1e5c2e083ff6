"""Each check of NCCL's network, with a plan that passes it and seeded faults that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.nccl import RULES, gpu_ask, gpu_image, gpu_plan, library_of, network, plugin_of
from tests.support.recorded import host

from fairlead.base.errors import Severity
from fairlead.elf.facts import Elf, NetPlugin
from fairlead.nccl.checks.ll128 import allows_ll128
from fairlead.nccl.checks.registry import CHECKS
from fairlead.nccl.model import Ask, HostNetwork
from fairlead.swap import checks
from fairlead.swap.model import Plan

CXI_OF_MPI = {"mpi_providers": ("cxi", "tcp")}  # the recorded MPI brings a libfabric


def asked(*networks: HostNetwork, **changes) -> Ask:
    return gpu_ask(*networks, **{**CXI_OF_MPI, **changes})


def found(plan: Plan, severity: Severity = Severity.ERROR) -> dict[str, str]:
    """What a plan's checks of NCCL find: all words of a finding, by the check's name."""
    all_ = [f for f in checks.check(plan) if f.severity is severity and f.check.startswith("nccl")]
    for finding in all_:
        if severity is not Severity.OK:
            assert finding.what and finding.where and finding.why
            assert finding.remedy or severity is Severity.INFO
            assert "{" not in f"{finding}", finding
    return {f.check: f"{f.what} {f.where} {f.why} {f.remedy}" for f in all_}


def test_good_plan_is_approved_without_a_warning() -> None:
    plan = gpu_plan(asked=asked())
    assert not found(plan) and not found(plan, Severity.WARNING)
    assert "serves NCCL 2.21.5" in found(plan, Severity.OK)["nccl"]
    assert "v8" in found(plan, Severity.OK)["nccl"]


def test_launch_without_gpus_or_nccl_is_not_looked_at() -> None:
    for plan in (
        gpu_plan(asked=asked(gpus=False)),
        gpu_plan(replace(gpu_image(), nccl=())),
    ):
        assert not [f for f in checks.check(plan) if f.check.startswith("nccl")]


def test_plugin_for_an_image_without_nccl_is_a_warning() -> None:
    plan = gpu_plan(replace(gpu_image(), nccl=()), asked(want="host"))
    assert "no NCCL was found" in found(plan, Severity.WARNING)["nccl-plugin"]


def of(plugin: NetPlugin, **changes) -> Plan:
    return gpu_plan(asked=asked(network(plugin), **changes))


def old_nccl() -> Plan:
    newer = network(plugin_of(range(6, 12), "1.19.2"))
    return gpu_plan(gpu_image("2.11.4", runtime="cuda11.4"), asked(newer))


def new_nccl() -> Plan:
    return gpu_plan(gpu_image("2.26.2"), asked(network(plugin_of((2, 3, 4, 5), "1.4.0"))))


def missing_hwloc() -> Plan:
    lacks = network(missing=(("libhwloc.so.15", "/opt/site/plugin/lib/libnccl-net-ofi.so"),))
    return gpu_plan(asked=asked(lacks))


def new_glibc() -> Plan:
    return of(plugin_of(needs={"GLIBC": "2.99"}))


def new_libstdcxx() -> Plan:
    return of(plugin_of(needs={"GLIBCXX": "3.4.99"}))


def new_glibc_below() -> Plan:
    plugin = network()
    hwloc = replace(plugin.closure[1], needs={"GLIBC": "2.99"})
    return gpu_plan(asked=asked(replace(plugin, closure=(hwloc,))))


def other_processor() -> Plan:
    return of(plugin_of(machine="AArch64"))


def other_cuda() -> Plan:
    return gpu_plan(gpu_image("2.27.5"), asked(network(plugin_of(runtime="cuda13"))))


def cuda_for_rocm() -> Plan:
    rccl = gpu_image("2.20.5", runtime="rocm6.2", kind="rccl")
    return gpu_plan(rccl, asked(network(plugin_of(runtime="cuda12"))))


def no_run_time() -> Plan:
    needs = plugin_of(needed=("libcudart.so.12", "libfabric.so.1"), runtime="cuda12", opens=())
    return gpu_plan(gpu_image(gpu_libraries={}), asked(network(needs)))


def no_run_time_to_open() -> Plan:
    return gpu_plan(gpu_image(gpu_libraries={}), asked())


def provider_of_user() -> Plan:
    return gpu_plan(asked=asked(user={"FI_PROVIDER": "tcp;ofi_rxm"}))


def provider_of_image() -> Plan:
    return gpu_plan(asked=asked(image={"FI_PROVIDER": "sockets"}))


def provider_of_conf() -> Plan:
    return gpu_plan(gpu_image(nccl_conf={"FI_PROVIDER": "tcp"}), asked())


def no_provider() -> Plan:
    return gpu_plan(
        asked=gpu_ask(
            network(providers=("tcp", "verbs")), **CXI_OF_MPI | {"mpi_providers": ("tcp",)}
        )
    )


def ll128_of_user() -> Plan:
    arm = network(plugin_of(machine="AArch64"))
    gh200 = {"gpu_model": "NVIDIA GH200 120GB", "user": {"NCCL_PROTO": "LL,LL128,Simple"}}
    return gpu_plan(gpu_image("2.27.5", machine="AArch64"), asked(arm, **gh200))


def memhooks_of_image() -> Plan:
    rules = replace(RULES, env={})
    return gpu_plan(asked=asked(image={"FI_MR_CACHE_MONITOR": "memhooks"}, rules=rules))


def memhooks_of_user() -> Plan:
    return gpu_plan(asked=asked(user={"FI_MR_CACHE_MONITOR": "memhooks"}))


def old_driver() -> Plan:
    return gpu_plan(gpu_image("2.27.5", runtime="cuda13.0"), asked(driver="570.86.15"))


def folder_gone() -> Plan:
    return gpu_plan(asked=asked(networks=(), gone=RULES.folders))


def no_plugin() -> Plan:
    return gpu_plan(asked=asked(networks=(), rules=replace(RULES, folders=())))


def no_plugin_wanted() -> Plan:
    return gpu_plan(asked=asked(networks=(), want="host", fabric="none", devices=()))


def old_libfabric_of_mpi() -> Plan:
    return of(plugin_of(needs={"FABRIC": "1.99"}))


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (old_nccl, "nccl-interface", ["1.19.2", "NCCL 2.11.4", "v4", "v6", "an older plugin"]),
        (new_nccl, "nccl-interface", ["NCCL 2.26.2", "v5", "a newer plugin"]),
        (missing_hwloc, "nccl-closure", ["libhwloc.so.15", "LD_LIBRARY_PATH"]),
        (new_glibc, "nccl-glibc", ["GLIBC_2.99", "2.36"]),
        (new_libstdcxx, "nccl-glibc", ["GLIBCXX_3.4.99", "libstdc++"]),
        (new_glibc_below, "nccl-glibc", ["libhwloc"]),
        (other_processor, "nccl-architecture", ["AArch64", "x64"]),
        (other_cuda, "nccl-runtime", ["cuda13", "cuda12"]),
        (cuda_for_rocm, "nccl-runtime", ["cuda12", "rocm6"]),
        (no_run_time, "nccl-runtime", ["libcudart.so.12", "does not have"]),
        (no_run_time_to_open, "nccl-runtime", ["libcudart.so,"]),
        (provider_of_user, "nccl-provider", ["FI_PROVIDER=tcp;ofi_rxm", "slingshot", "cxi"]),
        (provider_of_image, "nccl-provider", ["FI_PROVIDER=sockets"]),
        (provider_of_conf, "nccl-provider", ["FI_PROVIDER=tcp"]),
        (no_provider, "nccl-provider", ["no provider cxi", "it has tcp"]),
        (ll128_of_user, "nccl-ll128", ["NCCL_PROTO=LL,LL128,Simple", "^LL128", "#2001"]),
        (memhooks_of_image, "nccl-memhooks", ["FI_MR_CACHE_MONITOR=userfaultfd"]),
        (memhooks_of_user, "nccl-memhooks", ["FI_MR_CACHE_MONITOR=userfaultfd"]),
        (old_driver, "nccl-driver", ["570.86.15", "580.65.06", "cuda13.0"]),
        (folder_gone, "nccl-plugin", ["/opt/site/plugin/lib", "--nccl image"]),
        (no_plugin, "nccl-plugin", ["slingshot", "--nccl FILE"]),
        (no_plugin_wanted, "nccl-plugin", ["--nccl FILE"]),
        (old_libfabric_of_mpi, "nccl-libfabric", ["FABRIC_1.99", "--mpi PREFIX"]),
    ],
)
def test_fault_is_refused_by_name_with_a_remedy(
    make: Callable[[], Plan], check: str, words: list[str]
) -> None:
    plan = make()
    errors = found(plan)
    assert list(errors) == [check]
    for word in words:
        assert word in errors[check]
    assert checks.refused(checks.check(plan))
    assert "nccl" not in found(plan, Severity.OK)


def unknown_version() -> Plan:
    return gpu_plan(gpu_image(""), asked())


def newer_than_known() -> Plan:
    return gpu_plan(gpu_image("2.33.1"), asked())


def two_nccls() -> Plan:
    other = replace(library_of("2.19.3"), path="/usr/lib/libnccl.so.2.19.3")
    return gpu_plan(replace(gpu_image("2.27.5"), nccl=(library_of("2.27.5"), other)), asked())


def two_in_use() -> Plan:
    old, new = replace(library_of("2.11.4"), path="/usr/lib/libnccl.so.2"), library_of("2.27.5")
    uses = {"/opt/a.so": old.path, "/opt/b.so": new.path, "/opt/c.so": new.path}
    facts = replace(gpu_image("2.27.5"), nccl=(new, old), nccl_mapped=uses)
    return gpu_plan(facts, asked(network(plugin_of(range(6, 12), "1.19.2"))))


def job_without_option() -> Plan:
    return gpu_plan(asked=asked(user={"FI_CXI_RDZV_PROTO": "alt_read"}))


def gpu_aware_mpi() -> Plan:
    return gpu_plan(asked=asked(gpu_mpi=True))


def compatible_driver() -> Plan:
    facts = gpu_image(
        "2.27.5", runtime="cuda13.0", drivers=("/usr/local/cuda/compat/libcuda.so.1",)
    )
    return gpu_plan(facts, asked(driver="570.86.15"))


def damaged_plugin() -> Plan:
    return gpu_plan(asked=asked(damaged=(("/opt/x/libnccl-net.so", "is not an ELF file"),)))


def before_selection() -> Plan:
    return gpu_plan(gpu_image("2.11.4"), asked())


def nameless() -> Plan:
    return of(plugin_of(release=""))


def users_plugin() -> Plan:
    return gpu_plan(asked=asked(user={"NCCL_NET_PLUGIN": "none"}))


def users_network() -> Plan:
    return gpu_plan(asked=asked(user={"NCCL_NET": "Socket"}))


def image_alone() -> Plan:
    return gpu_plan(asked=asked(want="image"))


def unknown_providers() -> Plan:
    return gpu_plan(asked=gpu_ask())  # of the MPI's libfabric nothing is known


def over_efa() -> Plan:
    rules = replace(RULES, providers=("efa",))
    efa = network(plugin_of(release="1.17.3"), providers=("efa", "tcp"))
    ask = asked(efa, rules=rules, fabric="efa", devices=(), mpi_providers=("efa",))
    return gpu_plan(gpu_image("2.28.9"), ask)


def one_node(release: str = "2.28.3", versions: range = range(2, 11), **changes: int) -> Plan:
    plugin = network(plugin_of(versions, "1.16.3"), providers=("cxi",))
    return gpu_plan(gpu_image(release), asked(plugin, **{"nodes": 1, **changes}))


def tcp_alone(fabric: str = "1.7") -> Plan:
    rules = replace(RULES, providers=("tcp",))
    libfabric, *others = network().closure
    over = network(closure=(replace(libfabric, offers={"FABRIC": fabric}), *others))
    ask = asked(over, user={"FI_PROVIDER": "tcp"}, rules=rules, fabric="ethernet", devices=())
    return gpu_plan(asked=ask)


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (unknown_version, "nccl-interface", ["not known", "NCCL_DEBUG=INFO"]),
        (newer_than_known, "nccl-interface", ["2.33.1", "v11"]),
        (two_nccls, "nccl-several", ["NCCL 2.27.5", "NCCL 2.19.3"]),
        (two_in_use, "nccl-several", ["/opt/a.so", "does not serve NCCL 2.11.4"]),
        (job_without_option, "nccl-job-network", ["--network=disable_rdzv_get"]),
        (gpu_aware_mpi, "nccl-gpu-mpi", ["MPICH_GPU_SUPPORT_ENABLED"]),
        (compatible_driver, "nccl-driver", ["/usr/local/cuda/compat/libcuda.so.1"]),
        (damaged_plugin, "nccl-damaged", ["/opt/x/libnccl-net.so"]),
        (before_selection, "nccl-not-enforced", ["2.11.4", "TCP"]),
        (nameless, "nccl-not-enforced", ["name of its network"]),
        (users_plugin, "nccl-user", ["NCCL_NET_PLUGIN=none", "unset NCCL_NET_PLUGIN"]),
        (users_network, "nccl-user", ["NCCL_NET=Socket", "unset NCCL_NET"]),
        (image_alone, "nccl-plugin", ["slingshot", "--nccl image"]),
        (unknown_providers, "nccl-provider", ["not known", "fi_info -p cxi"]),
        (over_efa, "nccl-known-fault", ["2.28.9", "1.17.3", "#1055"]),
        (tcp_alone, "nccl-known-fault", ["FI_PROVIDER=tcp;ofi_rxm", "#8963"]),
        (one_node, "nccl-known-fault", ["2.28.3", "SIGSEGV", "1.17"]),
    ],
)
def test_doubt_is_a_warning_by_name_with_a_remedy(
    make: Callable[[], Plan], check: str, words: list[str]
) -> None:
    plan = make()
    warnings = found(plan, Severity.WARNING)
    assert check in warnings
    for word in words:
        assert word in warnings[check]
    assert not found(plan)


def test_machine_of_which_nothing_is_known_is_said_to_be_unknown() -> None:
    plan = gpu_plan(asked=replace(asked(), host=None))
    assert "nothing is known" in found(plan, Severity.INFO)["nccl-plugin"]
    assert not found(plan) and "nccl" not in found(plan, Severity.OK)


def test_one_node_needs_no_plugin_and_no_protocol() -> None:
    assert not found(gpu_plan(asked=asked(networks=(), gone=RULES.folders, nodes=1)))
    assert not found(gpu_plan(gpu_image(), asked(nodes=1)), Severity.WARNING)


def test_plugin_that_is_asked_for_and_not_there_is_an_error_on_one_node_too() -> None:
    wanted = asked(networks=(), want="host", fabric="none", devices=(), nodes=1)
    assert "nccl-plugin" in found(gpu_plan(asked=wanted))


def test_network_that_nccl_has_itself_needs_no_plugin() -> None:
    ask = asked(networks=(), rules=replace(RULES, folders=()), fabric="infiniband", devices=())
    assert not found(gpu_plan(asked=ask))


def test_image_with_a_plugin_of_its_own_may_keep_it() -> None:
    facts = gpu_image(net_plugins=(plugin_of(),))
    assert not found(gpu_plan(facts, asked(want="image")), Severity.WARNING)


def test_job_with_the_network_option_is_fine() -> None:
    user = {"FI_CXI_RDZV_PROTO": "alt_read"}
    ask = asked(user=user, job=("--network=single_node_vni,disable_rdzv_get",))
    assert "nccl-job-network" not in found(gpu_plan(asked=ask), Severity.WARNING)


def test_ll128_without_eager_messages_is_fine() -> None:
    plan = ll128_of_user()
    user = {"NCCL_PROTO": "LL128", "FI_CXI_RDZV_THRESHOLD": "0", "FI_CXI_RDZV_GET_MIN": "0"}
    calm = replace(plan.nccl_ask, user=user)
    assert "nccl-ll128" not in found(gpu_plan(plan.facts, calm))


@pytest.mark.parametrize("value", ["", "LL128", "ll128,Simple", "^LL", "^Simple,LL"])
def test_protocol_leaves_ll128(value: str) -> None:
    assert allows_ll128(value)


@pytest.mark.parametrize("value", ["^LL128", "^ll128", "^LL,LL128", "Simple", "LL,Simple"])
def test_protocol_excludes_ll128(value: str) -> None:
    assert not allows_ll128(value)


def test_libfabric_of_the_mpi_from_the_same_file_is_shared_silently() -> None:
    own = next(e for e in host().closure if e.name.startswith("libfabric.so"))
    plugin = network(closure=(own, Elf("/usr/lib64/libhwloc.so.15", "x64", "libhwloc.so.15")))
    plan = gpu_plan(asked=asked(plugin, mpi_providers=()))
    assert "nccl-libfabric" not in found(plan, Severity.INFO)
    assert plan.nccl_staging
    assert not [f for f in plan.nccl_staging.files if "libfabric" in f.target]


def test_every_check_says_what_it_looks_for() -> None:
    for name in CHECKS.names():
        about = CHECKS.get(name).about
        assert about and not about.endswith("."), name


def driver(name: str, glibc: str, machine: str = "x64") -> Elf:
    return Elf(f"/usr/lib64/{name}", machine, name, needs={"GLIBC": glibc})


@pytest.mark.parametrize(
    ("gpu", "name", "severity"),
    [
        ("nvidia", "libcuda.so.1", Severity.ERROR),
        ("nvidia", "libnvidia-ml.so.1", Severity.ERROR),
        ("nvidia", "libOpenCL.so.1", Severity.WARNING),
        ("amd", "libdrm_amdgpu.so.1", Severity.ERROR),
        ("amd", "libnuma.so.1", Severity.ERROR),
    ],
)
def test_gpu_library_that_needs_a_newer_glibc_is_refused(gpu, name, severity) -> None:
    drivers = (driver(name, "2.38"), driver("libother.so.1", "2.99"))
    given = {"gpu": gpu, "drivers": drivers, "injects": True}
    words = found(gpu_plan(asked=asked(**given)), severity)["nccl-injected"]
    assert f"/usr/lib64/{name}" in words and "GLIBC_2.38" in words and "2.36" in words
    other = "amd" if gpu == "nvidia" else "nvidia"
    for harmless in (
        {**given, "injects": False},
        {**given, "drivers": (driver(name, "2.17"),)},
        {**given, "drivers": (driver(name, "2.38", "x86"),)},
        {**given, "gpu": other} if name != "libOpenCL.so.1" else {**given, "gpu": ""},
    ):
        assert "nccl-injected" not in found(gpu_plan(asked=asked(**harmless)), severity)


def test_crash_without_a_network_is_a_warning_only_where_it_can_come() -> None:
    assert "nccl-known-fault" in found(one_node(), Severity.WARNING)
    for plan in (
        one_node("2.27.5"),
        one_node("2.29.2"),
        one_node(versions=range(2, 12)),
        one_node(nodes=2),
    ):
        assert "nccl-known-fault" not in found(plan, Severity.WARNING)


def test_provider_tcp_is_in_order_since_libfabric_2() -> None:
    assert "nccl-known-fault" not in found(tcp_alone("1.8"), Severity.WARNING)
