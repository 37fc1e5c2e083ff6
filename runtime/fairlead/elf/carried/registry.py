"""The registry of libraries that can be carried into a container below its own MPI."""

from __future__ import annotations

from fairlead.base.registry import Registry
from fairlead.elf.carried.model import CarriedLibrary

LIBRARIES: Registry[CarriedLibrary] = Registry("fairlead.elf.carried", "LIBRARY")
