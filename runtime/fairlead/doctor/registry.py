"""The checks, in the order in which they are made: what mends one may be what the next needs."""

from __future__ import annotations

from fairlead.doctor.checks import (
    capabilities,
    engine,
    fuse,
    host_mpi,
    packages,
    shm,
    space,
    subids,
    userns,
)
from fairlead.doctor.diagnosis import Check

CHECKS: tuple[Check, ...] = (
    Check(packages.NAME, "the system's packages", packages.examine),
    Check(subids.NAME, "id ranges for user namespaces", subids.examine),
    Check(userns.NAME, "permission to make user namespaces", userns.examine),
    Check(fuse.NAME, "permission to mount images", fuse.examine),
    Check(shm.NAME, "room in /dev/shm", shm.examine),
    Check(space.NAME, "room for images and temporary files", space.examine),
    Check(capabilities.NAME, "what root may do", capabilities.examine),
    Check(engine.NAME, "Apptainer, tried on a tiny image", engine.examine),
    Check(host_mpi.NAME, "a host MPI and its launcher", host_mpi.examine),
)
