"""libfabric: its providers know Slingshot, EFA and Omni-Path. Its interface is compatible within libfabric.so.1."""

from __future__ import annotations

from fairlead.elf.carried.model import CarriedLibrary

LIBRARY = CarriedLibrary(
    title="libfabric",
    sonames=("libfabric.so.1",),
    versions="FABRIC",
    variable="FI_PROVIDER_PATH",
    folders=("/opt/cray/libfabric/*/lib64", "/opt/amazon/efa/lib64", "/opt/amazon/efa/lib"),
)
