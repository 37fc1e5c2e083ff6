"""The processors, by archspec name, with their number and the node's memory."""

from __future__ import annotations

import re
from typing import Any

from fairlead.base.system import View
from fairlead.detect.model import ProcessorFact, Unknown


def probe(world: View) -> dict[str, Any]:
    text = world.read("/proc/cpuinfo") or ""
    memory = re.search(r"^MemTotal:\s*(\d+) kB", world.read("/proc/meminfo") or "", re.MULTILINE)
    blocks = [_fields(block) for block in re.split(r"\n\s*\n", text) if "processor" in block]
    data = blocks[0] if blocks else {}
    target = _target(world.kernel[1], text)
    model = data.get("model name") or data.get("cpu") or ""
    sockets = len({b["physical id"] for b in blocks if "physical id" in b})
    fact = ProcessorFact(
        target=target,
        model=" ".join(model.split()),
        cores=world.cores(),
        online=len(blocks),
        sockets=sockets,
        memory_bytes=int(memory[1]) * 1024 if memory else 0,
        seen="/proc/cpuinfo, /proc/meminfo, sched_getaffinity" if text else "sched_getaffinity",
    )
    unknown = (
        () if target else (Unknown("processor", "/proc/cpuinfo names none that archspec knows"),)
    )
    return {"processor": fact, "unknown": unknown}


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, mark, value in pairs if mark}


def _target(machine: str, text: str) -> str:
    """The processor as archspec names it, from its kernel's words; archspec itself reads this machine's."""
    if not text:
        return ""
    # 30 ms, and only detection wants it.
    from archspec.cpu import TARGETS
    from archspec.cpu.detect import partial_uarch

    data = _fields(text.split("\n\n")[0])
    if machine in ("x86_64", "amd64"):
        machine = "x86_64"
        info = partial_uarch(
            vendor=data.get("vendor_id", "generic"), features=set(data.get("flags", "").split())
        )
    elif machine == "aarch64":
        from archspec.cpu.schema import TARGETS_JSON

        code = data.get("CPU implementer", "")
        info = partial_uarch(
            vendor=TARGETS_JSON["conversions"]["arm_vendors"].get(code, code),
            features=set(data.get("Features", "").split()),
            cpu_part=data.get("CPU part", ""),
        )
    elif machine in ("ppc64le", "ppc64"):
        # archspec's own check asks which machine it runs on itself.
        match = re.search(r"POWER(\d+)", text)
        name = f"power{match[1]}{machine[5:]}" if match else machine
        return name if name in TARGETS else machine
    else:
        return ""
    return str(_best(info, machine))


def _best(info: Any, machine: str) -> Any:
    """Of all targets that a processor can run the most specific, as archspec's ``host()`` chooses."""
    from archspec.cpu import TARGETS
    from archspec.cpu.detect import COMPATIBILITY_CHECKS

    def order(target: Any) -> tuple[int, int]:
        return len(target.ancestors), len(target.features)

    fitting = [t for t in TARGETS.values() if COMPATIBILITY_CHECKS[machine](info, t)]
    generic = max((t for t in fitting if t.vendor == "generic"), key=order)
    if info.cpu_part and any(t.cpu_part == info.cpu_part for t in fitting):
        fitting = [t for t in fitting if t.cpu_part == info.cpu_part]
    return max((t for t in fitting if t > generic), key=order, default=generic)
