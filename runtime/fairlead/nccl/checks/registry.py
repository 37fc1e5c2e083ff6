"""The registry of the checks of NCCL's network."""

from __future__ import annotations

from fairlead.base.registry import Registry
from fairlead.nccl.checks.model import Check

CHECKS: Registry[Check] = Registry("fairlead.nccl.checks", "CHECK")
