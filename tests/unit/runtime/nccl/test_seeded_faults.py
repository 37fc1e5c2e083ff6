"""Faults of NCCL's network, each seeded into a host that is otherwise in order, and each named before or in place of TCP.

Plugins, libfabrics and drivers are files that gcc makes; a fault is found in them by ``preflight``, or by the wire proof,
which loads and drives them. The number of faults stands in docs/howto/nccl.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.compiled import compiled
from tests.support.nccl import RULES, Does, gpu_ask, gpu_image, gpu_plan, library_of, plugin

from fairlead.base.errors import FairleadError, Finding, Severity
from fairlead.base.system import Machine
from fairlead.elf.facts import ImageFacts
from fairlead.nccl.host import discover
from fairlead.nccl.model import NcclRules
from fairlead.swap import checks

DOCS = Path(__file__).parents[4] / "docs/howto/nccl.md"
FOLDER, FABRIC = "opt/site/plugin/lib", "opt/site/libfabric/lib64"
PROVIDER = {"cxi": "cxip_", "tcp": "xnet_"}


@dataclass
class Host:
    """A machine below a folder, with GPUs, Slingshot and a plugin, and the image that is to run there.

    Attributes:
        rules: of its profile.
        ask: of a launch on two nodes.
        named: --nccl FILE.
        mpi: whose MPI ranks map.
    """

    root: Path
    versions: Sequence[int] = (6, 7, 8, 9, 10, 11)
    release: str = "1.18.0"
    does: Does = field(default_factory=Does)
    words: list[str] = field(default_factory=list)
    more: str = ""
    providers: Sequence[str] = ("cxi", "tcp")
    fabric: str = "1.7"
    image: ImageFacts = field(default_factory=gpu_image)
    rules: NcclRules = field(default_factory=lambda: replace(RULES, libraries=(f"/{FABRIC}",)))
    ask: dict[str, Any] = field(default_factory=dict)
    named: str = ""
    mpi: str = "container"

    @property
    def file(self) -> Path:
        return self.root / FOLDER / "libnccl-net-ofi.so"

    def made(self) -> Host:
        """With its files."""
        (self.root / "etc").mkdir(exist_ok=True)
        behind = libfabric(self.root / FABRIC, self.providers, self.fabric)
        words = ["-Wl,--no-as-needed", str(behind), *self.words]
        plugin(
            self.file, self.versions, release=self.release, does=self.does, more=self.more, words=words
        )  # fmt: skip
        return self

    def findings(self) -> list[Finding]:
        """Of a launch: of the machine and of the plan."""
        try:
            there = discover(self.rules, Machine({}, self.root), {}, self.root, self.named)
        except FairleadError as exc:
            return list(exc.findings)
        given = {"gpu": "nvidia", "driver": "550.54.15", "gpu_model": "NVIDIA A100", **self.ask}
        devices = given.pop("devices", ("/dev/cxi0",))
        facts = {key: given.pop(key) for key in ("gpu", "driver", "gpu_model") if key in given}
        asked = replace(
            gpu_ask(rules=self.rules, mpi_providers=("cxi",)),
            host=replace(there, devices=devices, **facts),
            **given,
        )
        plan = gpu_plan(self.image, asked, mpi=self.mpi)
        done = [f for f in checks.check(plan) if f.check.startswith("nccl")]
        # What a plan repairs has a line that says so.
        repaired = [
            Finding(Severity.INFO, line.what, why=line.why, check=line.kind) for line in plan.lines
        ]
        return [*done, *repaired]


def libfabric(folder: Path, providers: Sequence[str], version: str) -> Path:
    names = ("getinfo", "fabric", "domain", "ep_open", "mr_reg", "rma", "msg")
    code = "#include <stdio.h>\n" + "".join(
        f"void {PROVIDER[one]}{name}(void) {{ puts(__func__); }}\n"
        for one in providers
        for name in names
    )
    script = folder / "versions"
    folder.mkdir(parents=True, exist_ok=True)
    script.write_text(f"FABRIC_{version} {{ global: fi_getinfo; local: none; }};\n")
    words = (f"-Wl,--version-script={script}",)
    return compiled(
        folder / "libfabric.so.1", code + "int fi_getinfo(void) { return 0; }\n", *words
    )


Seed = Callable[[Host], None]
Expected = tuple[str, str]  # the finding's check, and what its words match


def damaged(host: Host) -> None:
    host.file.write_bytes(host.file.read_bytes()[:900])


def other_machine(host: Host) -> None:
    content = bytearray(host.file.read_bytes())
    content[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    host.file.write_bytes(content)


def without(path: str) -> Seed:
    return lambda host: (host.root / path).unlink()


def needing(name: str) -> Callable[[Path], list[str]]:
    """The words that have a plugin need a library which is then taken away."""

    def words(root: Path) -> list[str]:
        return [str(compiled(root / "elsewhere" / name, "int behind(void) { return 1; }"))]

    return words


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        change: of the host before its files are made; ``seed`` of the files.
        finds: check and words of the finding.
    """

    finds: Expected
    change: Callable[[Host], None] = lambda host: None
    seed: Seed = lambda host: None


def sets(**values: Any) -> Callable[[Host], None]:
    def change(host: Host) -> None:
        for name, value in values.items():
            setattr(host, name, value)

    return change


def asks(**values: Any) -> Callable[[Host], None]:
    return lambda host: host.ask.update(values)


def links(name: str) -> Callable[[Host], None]:
    return lambda host: host.words.extend(needing(name)(host.root))


def newer_driver(host: Host) -> None:
    host.image = replace(host.image, glibc="2.30")
    host.ask["injects"] = True
    code = "#include <dlfcn.h>\nvoid *open(void) { return dlopen(0, 2); }"
    compiled(host.root / "usr/lib/libcuda.so.1", code)


def newer_fabric(host: Host) -> None:
    """The plugin needs a newer libfabric than the host's MPI brings, and a process maps one."""
    host.mpi, host.fabric = "host", "1.99"
    host.more = "extern int fi_getinfo(void);\nint behind(void) { return fi_getinfo(); }\n"


def ngc(host: Host) -> None:
    host.ask["image"] = {"NCCL_NET_PLUGIN": "spcx"}


PREFLIGHT: dict[str, Fault] = {
    "plugin older than NCCL's interfaces": Fault(
        ("nccl-interface", "v5"), sets(versions=(4, 5), image=gpu_image("2.30.7"))
    ),
    "plugin newer than NCCL's interfaces": Fault(
        ("nccl-interface", "v12"), sets(versions=(12,), image=gpu_image("2.21.5"))
    ),
    "named file without an interface": Fault(
        ("nccl-plugin", "not a network plugin"),
        seed=lambda host: setattr(host, "named", str(compiled(host.root / "x.so", "int nothing;"))),
    ),
    "library that nobody has": Fault(
        ("nccl-closure", "libhwloc.so.99"), links("libhwloc.so.99"), without("elsewhere/libhwloc.so.99")
    ),
    "libfabric itself gone": Fault(
        ("nccl-closure", "libfabric.so.1"), seed=without(f"{FABRIC}/libfabric.so.1")
    ),
    "libfabric newer than the MPI's": Fault(("nccl-libfabric", "FABRIC_1.99"), newer_fabric),
    "plugin for another processor": Fault(("nccl-architecture", "AArch64"), seed=other_machine),
    "plugin cut short": Fault(("nccl-damaged", "libnccl-net-ofi.so"), seed=damaged),
    "plugin for another CUDA": Fault(("nccl-runtime", "cuda13"), links("libcudart.so.13")),
    "plugin for ROCm in an image with CUDA": Fault(
        ("nccl-runtime", "rocm6"), links("libamdhip64.so.6")
    ),
    "run time that the image has not": Fault(
        ("nccl-runtime", "libcudart.so"),
        sets(does=Does(("libcudart.so",)), image=replace(gpu_image(), gpu_libraries={})),
    ),
    "driver's library without a version": Fault(
        ("alias", "libcuda.so -> libcuda.so.1"), sets(does=Does(("libcuda.so",)))
    ),
    "glibc newer than the image's": Fault(
        ("nccl-glibc", r"GLIBC_2\.\d+"),
        sets(does=Does(("libother.so",)), image=replace(gpu_image(), glibc="2.30")),
    ),
    "libfabric without the fabric's provider": Fault(
        ("nccl-provider", "no provider cxi"), sets(providers=("tcp",))
    ),
    "FI_PROVIDER that means TCP": Fault(
        ("nccl-provider", "FI_PROVIDER=tcp"), asks(user={"FI_PROVIDER": "tcp"})
    ),
    "folder of the profile gone": Fault(
        ("nccl-plugin", "/opt/site/plugin/lib"),
        seed=lambda host: host.file.parent.rename(host.root / "away"),
    ),
    "no plugin where the fabric needs one": Fault(
        ("nccl-plugin", "slingshot"), sets(rules=NcclRules()),
    ),
    "two NCCLs in the image": Fault(
        ("nccl-several", "2.18.3"),
        sets(image=replace(gpu_image(), nccl=(library_of(), replace(library_of("2.18.3"), path="/usr/lib/libnccl.so.2")))),
    ),
    "NGC's own plugin selected": Fault(("undone", "NCCL_NET_PLUGIN=spcx"), ngc),
    "user's variable that leaves the plugin out": Fault(
        ("nccl-user", "NCCL_NET=Socket"), asks(user={"NCCL_NET": "Socket"})
    ),
    "LL128 on GH200 over Slingshot": Fault(
        ("nccl-ll128", "2001"),
        lambda host: (
            sets(image=gpu_image("2.27.5"))(host),
            asks(gpu_model="NVIDIA GH200 120GB", user={"NCCL_PROTO": "LL,LL128"})(host),
        )[0],
    ),
    "memory hooks": Fault(("nccl-memhooks", "deadlock"), asks(user={"FI_MR_CACHE_MONITOR": "memhooks"})),
    "rendezvous without the job's option": Fault(
        ("nccl-job-network", "disable_rdzv_get"), asks(user={"FI_CXI_RDZV_PROTO": "alt_read"})
    ),
    "MPI between GPUs next to NCCL": Fault(("nccl-gpu-mpi", "deadlock"), asks(gpu_mpi=True)),
    "driver older than the image's CUDA": Fault(("nccl-driver", "470"), asks(driver="470.57.02")),
    "releases that hang together": Fault(
        ("nccl-known-fault", "1055"),
        lambda host: (
            sets(release="1.17.3", image=gpu_image("2.28.9"))(host),
            asks(fabric="efa", devices=())(host),
        )[0],
    ),
    "plugin that crashes over an old libfabric": Fault(
        ("nccl-known-fault", "SIGSEGV"),
        lambda host: (
            sets(release="1.16.3", fabric="1.6")(host),
            asks(fabric="ethernet", devices=())(host),
        )[0],
    ),
    "provider that hangs": Fault(
        ("nccl-known-fault", "8963"),
        asks(user={"FI_PROVIDER": "tcp"}, fabric="ethernet", devices=()),
    ),
    "tuner of another interface": Fault(
        ("nccl-tuner", "v9"), sets(more="void *ncclTunerPlugin_v9[] = { 0 };\n")
    ),
    "GPU library of the engine on a newer glibc": Fault(("nccl-injected", "libcuda.so.1"), newer_driver),
    "release that cannot be enforced": Fault(
        ("nccl-not-enforced", "uses TCP without an error"), sets(image=gpu_image("2.8.4"), versions=(4,))
    ),
}  # fmt: skip
# By what the tests' own plugin does: the stage or the words by which the wire proof names it.
WIRE = {
    "FAULT_CONSTRUCTOR": "SIGABRT",
    "FAULT_LOADING": "did not return from stage `load`",
    "FAULT_INIT": "Failed to find CUDA Driver library",
    "FAULT_DEVICES": "no network device",
    "FAULT_CONNECT": "did not connect",
    "FAULT_HANG": "connect",
    "FAULT_STUCK": "messages did not get on",
    "FAULT_DAMAGE": "arrived damaged",
}
COUNT = len(PREFLIGHT) + len(WIRE)


def matching(found: Sequence[Finding], expected: Expected) -> list[Finding]:
    check, words = expected
    return [
        one
        for one in found
        if one.check == check and re.search(words, f"{one.what} {one.where} {one.why} {one.remedy}")
    ]


def test_host_without_a_fault_has_no_finding(tmp_path: Path) -> None:
    found = [f for f in Host(tmp_path).made().findings() if f.check.startswith("nccl")]
    assert [f.severity for f in found if f.check == "nccl"] == [Severity.OK]
    assert not [f for f in found if f.severity in (Severity.WARNING, Severity.ERROR)], found


@pytest.mark.parametrize("name", PREFLIGHT)
def test_seeded_fault_is_named_before_the_launch(tmp_path: Path, name: str) -> None:
    fault, host = PREFLIGHT[name], Host(tmp_path)
    fault.change(host)
    host.made()
    fault.seed(host)
    found = host.findings()
    named = matching(found, fault.finds)
    assert named, [f"{f.check}: {f.what}" for f in found if f.severity is not Severity.OK]
    if fault.finds[0].startswith("nccl"):
        assert named[0].severity in (Severity.WARNING, Severity.ERROR)
        assert named[0].remedy


def test_documentation_has_the_number_of_faults() -> None:
    assert COUNT >= 25
    assert f"{COUNT} seeded faults" in DOCS.read_text()
