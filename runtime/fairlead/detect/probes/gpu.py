"""GPUs, as the kernel's drivers list them; no tool of a maker is run, which may take seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import content
from fairlead.detect.model import GpuFact, Unknown

# PCI classes of display controllers that drive no screen of their own: how compute GPUs are marked.
_COMPUTE_CLASSES = ("0x0380", "0x0302", "0x1200")


def probe(world: View) -> dict[str, Any]:
    unknown: list[Unknown] = []
    devices = world.matching("/dev/nvidia[0-9]*")
    facts = [*_nvidia(world), *_amd(world), *_intel(world)]
    if devices and not any(f.vendor == "nvidia" for f in facts):
        facts.append(GpuFact("nvidia", len(devices), "", "", ", ".join(devices)))
        unknown.append(Unknown("driver of the NVIDIA GPUs", "no /proc/driver/nvidia/version"))
    return {"gpus": tuple(facts), "unknown": tuple(unknown)}


def _nvidia(world: View) -> Iterator[GpuFact]:
    cards = world.matching("/proc/driver/nvidia/gpus/*/information")
    text = world.read("/proc/driver/nvidia/version") or ""
    driver = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+[\d.]*)", text)
    models = {
        m[1].strip()
        for c in cards
        if (m := re.search(r"^Model:\s*(.+)$", world.read(c) or "", re.M))
    }
    if cards:
        # A container or a job may be given some of them only.
        given = world.matching("/dev/nvidia[0-9]*")
        count = min(len(given), len(cards)) if given else len(cards)
        model, number = ", ".join(sorted(models)), driver[1] if driver else ""
        yield GpuFact("nvidia", count, model, number, "/proc/driver/nvidia")


def _amd(world: View) -> Iterator[GpuFact]:
    identifiers = world.matching("/sys/class/kfd/kfd/topology/nodes/*/gpu_id")
    if nodes := [path for path in identifiers if content(world, path) not in ("0", "")]:
        name = content(world, f"{nodes[0].rpartition('/')[0]}/name")
        driver = content(world, "/sys/module/amdgpu/version")
        yield GpuFact("amd", len(nodes), name, driver, "/sys/class/kfd/kfd/topology/nodes")
    elif world.access("/dev/kfd", 0):
        cards = _cards(world, "0x1002", compute_only=False)
        yield GpuFact("amd", len(cards), "", "", "/dev/kfd")


def _intel(world: View) -> Iterator[GpuFact]:
    cards = _cards(world, "0x8086", compute_only=True)
    if cards:
        module = "xe" if world.access("/sys/module/xe", 0) else "i915"
        driver = content(world, f"/sys/module/{module}/version")
        device = content(world, f"{cards[0]}/device")
        model = f"PCI device {device}" if device else ""
        yield GpuFact("intel", len(cards), model, driver or module, cards[0])


def _cards(world: View, vendor: str, compute_only: bool) -> list[str]:
    paths = []
    for path in world.matching("/sys/class/drm/card[0-9]*/device"):
        if "-" in path.split("/")[4]:
            continue  # an output of a card
        if content(world, f"{path}/vendor") != vendor:
            continue
        if compute_only and not (world.read(f"{path}/class") or "").startswith(_COMPUTE_CLASSES):
            continue
        paths.append(path)
    return paths
