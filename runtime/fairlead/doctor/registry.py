"""The checks, in the order in which they are made: what mends one may be what the next needs."""

from __future__ import annotations

from fairlead.doctor.checks import (
    capabilities,
    cgroups,
    clocks,
    cma,
    engine,
    engine_settings,
    fabric,
    fuse,
    glibc_distance,
    host_mpi,
    hugepages,
    launcher_match,
    library_path,
    locked_memory,
    mpi_variables,
    packages,
    pmi,
    quotas,
    scheduler_plugins,
    setuid,
    sharing,
    shm,
    site_profile,
    space,
    squashfs,
    subids,
    userns,
)
from fairlead.doctor.diagnosis import Check

_MACHINE, _ENGINE, _NODE = "This machine", "Container engines", "Ranks of one node"
_MPI, _NETWORK = "MPI and its launcher", "Between nodes"

CHECKS: tuple[Check, ...] = (
    Check(site_profile.NAME, "what is known of this site", site_profile.examine, _MACHINE),
    Check(packages.NAME, "the system's packages", packages.examine, _MACHINE),
    Check(subids.NAME, "id ranges for user namespaces", subids.examine, _MACHINE),
    Check(userns.NAME, "permission to make user namespaces", userns.examine, _MACHINE),
    Check(fuse.NAME, "permission to mount images", fuse.examine, _MACHINE),
    Check(space.NAME, "room for images and temporary files", space.examine, _MACHINE),
    Check(quotas.NAME, "folders that take files, quotas, noexec", quotas.examine, _MACHINE),
    Check(cgroups.NAME, "control groups, and who can use them", cgroups.examine, _MACHINE),
    Check(clocks.NAME, "clocks of the machine and its file systems", clocks.examine, _MACHINE),
    Check(capabilities.NAME, "what root may do", capabilities.examine, _ENGINE),
    # An engine may be given up after a minute, and here it is started twice.
    Check(engine.NAME, "container engines, tried on a tiny image", engine.examine, _ENGINE, 120),
    Check(setuid.NAME, "whether a setuid Apptainer is heeded", setuid.examine, _ENGINE),
    Check(squashfs.NAME, "images of zstd and gzip, tried", squashfs.examine, _ENGINE, 150),
    Check(
        engine_settings.NAME,
        "apptainer.conf, Podman's files",
        engine_settings.examine,
        _ENGINE,
    ),
    Check(shm.NAME, "room in /dev/shm", shm.examine, _NODE),
    Check(sharing.NAME, "what containers of a node share, tried", sharing.examine, _NODE, 90),
    Check(cma.NAME, "reading another rank's memory, tried", cma.examine, _NODE),
    Check(locked_memory.NAME, "memory that may be locked", locked_memory.examine, _NODE),
    Check(hugepages.NAME, "huge pages", hugepages.examine, _NODE),
    Check(host_mpi.NAME, "a host MPI and its launcher", host_mpi.examine, _MPI),
    Check(glibc_distance.NAME, "host MPIs against images' glibc", glibc_distance.examine, _MPI),
    Check(launcher_match.NAME, "launcher and MPI of one family", launcher_match.examine, _MPI),
    Check(mpi_variables.NAME, "variables that spoil runs", mpi_variables.examine, _MPI),
    Check(library_path.NAME, "LD_LIBRARY_PATH and LD_PRELOAD", library_path.examine, _MPI),
    Check(pmi.NAME, "how srun connects ranks", pmi.examine, _NETWORK),
    Check(
        scheduler_plugins.NAME,
        "SPANK plugins, PALS",
        scheduler_plugins.examine,
        _NETWORK,
    ),
    Check(fabric.NAME, "a fabric, and whether MPI reaches it", fabric.examine, _NETWORK),
)
