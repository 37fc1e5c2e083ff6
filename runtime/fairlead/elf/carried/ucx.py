"""UCX: its transports know InfiniBand and RoCE. Its four libraries are of one build, and open modules of that build."""

from __future__ import annotations

from fairlead.elf.carried.model import CarriedLibrary

LIBRARY = CarriedLibrary(
    title="UCX",
    sonames=("libucp.so.0", "libuct.so.0", "libucs.so.0", "libucm.so.0"),
    variable="UCX_MODULE_DIR",
    folders=("/opt/mellanox/ucx/lib", "/opt/hpcx/ucx/lib", "/opt/ucx/lib"),
)
