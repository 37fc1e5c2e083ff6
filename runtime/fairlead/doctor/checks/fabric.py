"""Does MPI reach this machine's fabric, or would it silently use TCP?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.site_expectations import DEVICES, FABRICS, fast_devices, says, variables
from fairlead.doctor.world import World
from fairlead.elf.facts import AbiFamily
from fairlead.mpi.host import HostMpi
from fairlead.schedulers.registry import in_job
from fairlead.site import Site

# Libraries and modules behind an MPI by which it knows a fabric: rdma-core, UCX, libfabric, Cray.
_KNOWS = {
    "infiniband": re.compile(
        r"(libibverbs|libuct_(ib|rc|dc|ud)|libmlx5|libverbs-fi|mca_btl_openib)"
    ),
    "omni-path": re.compile(r"(libpsm2|libpsm_infinipath|libopx|libpsmx2-fi|mca_mtl_psm2)"),
    "slingshot": re.compile(r"(libcxi)"),
    "aries": re.compile(r"(libugni)"),
    "efa": re.compile(r"(libefa)"),
}
_TCP = re.compile(r"(tcp|sockets|net|udp)(;ofi_rx[md])?")
_LOCAL = frozenset({"tcp", "self", "sm", "shm", "posix", "sysv", "cma", "mm", "knem", "xpmem"})


def examine(world: World) -> Iterator[Diagnosis]:
    site = world.profile().site
    devices = fast_devices(world)
    expected = site.fabric.kind if site and site.fabric.kind in FABRICS else ""
    problems = []
    if site and expected and expected not in devices:
        problems.append(_no_device(world, site, expected))
    problems += _unreached(world, devices)
    if devices or expected:
        problems += _forced(world.environ, "this shell")
        if site:
            problems += _profile_forces(site)
            problems += _profile_accepts(site)
    here = ", ".join(f"{FABRICS[kind]} ({path})" for kind, path in devices.items())
    none = "no fabric on this machine: shared memory within the node, TCP beyond"
    yield from problems or [well(f"{here}: the MPIs of this machine support it" if here else none)]


def _no_device(world: World, site: Site, kind: str) -> Diagnosis:
    says_so, fabric = says(site, "fabric.kind", kind), FABRICS[kind]
    device = DEVICES.get(kind, "/sys/class/infiniband/*")
    if in_job(world.environ):
        return ill("fabric-device-missing", fabric=fabric, device=device, says=says_so, site=site)
    return note("fabric-login-node", fabric=fabric, device=device, says=says_so)


def _unreached(world: World, devices: Mapping[str, str]) -> Iterator[Diagnosis]:
    mpis = [m for m in world.host_mpis() if m.library.family is not AbiFamily.UNKNOWN]
    for kind, path in devices.items():
        if not mpis or any(knows(mpi, kind) for mpi in mpis):
            continue
        names = ", ".join(dict.fromkeys(m.library.title for m in mpis))
        yield ill("fabric-no-mpi-supports", fabrics=FABRICS[kind], path=path, names=names)


def knows(mpi: HostMpi, kind: str) -> bool:
    """Whether an MPI has behind it, or among its modules, what speaks a fabric's language."""
    sonames = [elf.soname for elf in (*mpi.closure, *mpi.optional)]
    modules = [PurePosixPath(file).name for plugin in mpi.plugins for file in plugin.files]
    needed = [name for elf in (mpi.library.elf, *mpi.closure) for name in elf.needed]
    return any(_KNOWS[kind].match(name) for name in (*sonames, *modules, *needed))


def _profile_forces(site: Site) -> Iterator[Diagnosis]:
    """A site may have its reasons; users who measure there must know."""
    for key, values in variables(site).items():
        for diagnosis in _forced(values, f"the profile `{site.name}`"):
            says_so = says(site, key, diagnosis.finding.where)
            yield ill("fabric-profile-note", found=diagnosis.finding, says=says_so, site=site)


def _profile_accepts(site: Site) -> Iterator[Diagnosis]:
    """A proof that takes TCP for the fabric proves nothing of speed."""
    kernel = [name for name in site.fabric.accepts if _TCP.fullmatch(name)]
    if kernel and site.fabric.kind in FABRICS:
        names = ", ".join(kernel)
        yield ill(
            "fabric-profile-accepts-kernel",
            kernel=names,
            says=says(site, "fabric.accepts", names),
            fabrics=FABRICS[site.fabric.kind],
            site=site,
        )


def _forced(values: Mapping[str, str], who: str) -> Iterator[Diagnosis]:
    for name in _tcp_only(values):
        yield ill("fabric-variable", name=name, values=values[name], who=who)


def _tcp_only(values: Mapping[str, str]) -> Iterator[str]:
    """Variables that leave TCP alone: libfabric's fi_provider(7), UCX' FAQ, Intel's and Open MPI's."""
    for name in ("FI_PROVIDER", "I_MPI_OFI_PROVIDER"):
        value = values.get(name, "")
        kept = [] if value.startswith("^") else [part.strip() for part in value.split(",") if part]
        if kept and all(_TCP.fullmatch(part) for part in kept):
            yield name
    tls = [part for part in values.get("UCX_TLS", "").split(",") if part]
    if "tcp" in tls and not values["UCX_TLS"].startswith("^") and set(tls) <= _LOCAL:
        yield "UCX_TLS"
    devices = [part for part in values.get("UCX_NET_DEVICES", "").split(",") if part]
    if devices and all(re.fullmatch(r"(lo|eth|en|em|bond|ib|hsn|ipogif)\w*", d) for d in devices):
        yield "UCX_NET_DEVICES"
    btl = [part for part in values.get("OMPI_MCA_btl", "").split(",") if part]
    kernel_only = values.get("OMPI_MCA_pml") == "ob1" and not {"openib", "uct", "ofi"} & set(btl)
    if "tcp" in btl and kernel_only:
        yield "OMPI_MCA_btl"


CHECK = Check("fabric", "fabrics, and whether MPI uses them", examine, Topic.NETWORK, order=30)
