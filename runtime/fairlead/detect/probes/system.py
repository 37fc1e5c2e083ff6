"""The operating system, and whether this is the machine itself or something within one."""

from __future__ import annotations

import re
import shlex
from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import answers, words
from fairlead.detect.model import SystemFact
from fairlead.engines.registry import ENGINES

# What container engines leave for a process inside. A disk made of an image has these files too, so
# that the engine has mounted something must be seen as well.
_MOUNTED = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")


def probe(world: View) -> dict[str, Any]:
    release, machine = world.kernel
    name, where = "", ""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        if text := world.read(path):
            name, where = _value(text, "PRETTY_NAME") or _value(text, "NAME"), path
            break
    words_of_getconf = words(answers(world, {"": ("getconf", "GNU_LIBC_VERSION")})[""])
    glibc = re.search(r"glibc (\d+\.\d+)", words_of_getconf)
    inside, mark = _inside(world)
    evidence = ", ".join(filter(None, [where, "uname", "getconf" if glibc else "", mark]))
    return {
        "system": SystemFact(name, release, machine, glibc[1] if glibc else "", inside, evidence)
    }


def _value(text: str, key: str) -> str:
    """A value of os-release(5); ``platform.freedesktop_os_release`` reads no other machine's."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == key:
            try:
                return " ".join(shlex.split(value))
            except ValueError:
                return value.strip().strip('"')
    return ""


def _inside(world: View) -> tuple[str, str]:
    for driver in ENGINES:
        for variable in driver.inside_variables:
            if variable in world.environ:
                return f"container: {driver.kind}", f"${variable}"
    mounts = world.read("/proc/self/mounts")
    folders = {line.split()[1] for line in (mounts or "").splitlines() if line.count(" ") > 1}
    for driver in ENGINES:
        for path in driver.inside_files:
            if world.access(path, 0) and (mounts is None or folders & set(_MOUNTED)):
                return f"container: {driver.kind}", path
    groups = world.read("/proc/1/cgroup") or ""
    if match := re.search(r"/(docker|kubepods|lxc|libpod)\b", groups):
        return f"container: {match[1]}", "/proc/1/cgroup"
    # cpuid's bit for it, as the kernel shows it.
    if re.search(r"^flags\s*:.* hypervisor\b", world.read("/proc/cpuinfo") or "", re.MULTILINE):
        return "virtual machine", "/proc/cpuinfo: hypervisor"
    return "", ""
