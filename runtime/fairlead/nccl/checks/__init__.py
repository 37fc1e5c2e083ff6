"""Checks of NCCL's network: one module with a ``CHECK`` for each, and entry points of the group ``fairlead.nccl.checks``."""
