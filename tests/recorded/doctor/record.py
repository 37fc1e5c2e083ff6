"""Records what doctor's checks ask this machine, and its answers: ``python record.py > NAME.json``.

``tests/unit/runtime/doctor/test_doctor_checks.py`` plays the recordings back, and says what each must find. A machine
that differs from a recorded one in a few answers is a file that says so: ``like`` names the recorded one,
``environ`` and ``answers`` what differs.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.base.process import Ran
from fairlead.base.serde import to_json
from fairlead.detect.machine import Profile
from fairlead.doctor.fix import SetupErrors, look
from fairlead.doctor.registry import ordered
from fairlead.doctor.world import ClockState, Driven, FileSystem, World
from fairlead.elf.facts import Elf
from fairlead.engines.model import Engine
from fairlead.mpi.host import HostMpi
from fairlead.nccl.model import HostNccl, HostNetwork

KEPT = ("HOME", "PATH", "USER", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "FAIRLEAD_MPI")
HOME = "/home/alice"  # of everybody, in a recording


class Recorder(World):
    """The machine, taking notes: question, then answer."""

    def __init__(self) -> None:
        super().__init__({k: v for k, v in os.environ.items() if k in KEPT})
        self.notes: dict[str, Any] = {}

    def _note(self, question: Sequence[object], answer: Any) -> Any:
        self.notes[" ".join(map(str, question))] = to_json(answer)
        return answer

    def read(self, path: str) -> str | None:
        text = super().read(path)
        if text and path == "/proc/self/status":
            text = _lines(text, "Cap", "NoNewPrivs")
        elif text and path == "/proc/meminfo":
            text = _lines(text, "Huge")
        elif text and path.endswith(".conf"):
            kept = [line for line in text.splitlines() if line and not line.startswith("#")]
            text = "".join(line + "\n" for line in kept)
        return self._note(("read", path), text)

    def access(self, path: str, mode: int) -> bool:
        return self._note(("access", path, mode), super().access(path, mode))

    def which(self, program: str) -> str | None:
        return self._note(("which", program), super().which(program))

    def free_bytes(self, folder: str) -> int:
        return self._note(("free_bytes", folder), super().free_bytes(folder))

    def run(self, argv: Sequence[str]) -> Ran:
        return self._note(("run", *argv), super().run(argv))

    def engine(self) -> str | None:
        return self._note(("engine",), super().engine())

    def probe_engine(self, compression: str = "") -> Ran:
        if not compression:
            return self._note(("probe_engine",), super().probe_engine())
        return self._note(("try_image", compression), super().probe_engine(compression))

    def other_engines(self) -> Mapping[str, Ran]:
        return self._note(("other_engines",), dict(super().other_engines()))

    def host_mpis(self) -> tuple[HostMpi, ...]:
        found = tuple(_short(mpi) for mpi in super().host_mpis())
        return self._note(("host_mpis",), found)

    def net_plugins(self) -> HostNccl:
        return self._note(("net_plugins",), super().net_plugins())

    def drive_plugin(self, network: HostNetwork) -> Driven:
        return self._note(("drive_plugin", network.plugin.path), super().drive_plugin(network))

    def real(self, path: str) -> str:
        return self._note(("real", path), super().real(path))

    def matching(self, pattern: str) -> tuple[str, ...]:
        return self._note(("matching", pattern), super().matching(pattern))

    def cores(self) -> int:
        return self._note(("cores",), super().cores())

    def exposed(self, folder: str, top: str) -> tuple[tuple[str, str], ...]:
        return self._note(("exposed", folder, top), super().exposed(folder, top))

    def owner_mode(self, path: str) -> tuple[int, int] | None:
        return self._note(("owner_mode", path), super().owner_mode(path))

    def file_system(self, folder: str) -> FileSystem:
        return self._note(("file_system", folder), super().file_system(folder))

    def limit(self, name: str) -> tuple[int, int]:
        return self._note(("limit", name), super().limit(name))

    def clock_state(self) -> ClockState:
        return self._note(("clock_state",), super().clock_state())

    def clock_offset_s(self, folder: str) -> float | None:
        return self._note(("clock_offset_s", folder), super().clock_offset_s(folder))

    def try_cma(self) -> Ran:
        return self._note(("try_cma",), super().try_cma())

    def try_squashfuse(self, compression: str) -> Ran:
        return self._note(
            ("try_squashfuse", compression), _brief(super().try_squashfuse(compression))
        )

    def look_inside(self) -> tuple[Ran, Ran]:
        outside, inside = super().look_inside()
        return self._note(("look_inside",), (_brief(outside), _brief(inside)))

    def engine_here(self) -> Engine | None:
        return self._note(("engine_here",), super().engine_here())

    def profile(self) -> Profile:
        return self._note(("profile",), super().profile())

    def image_glibcs(self) -> Mapping[str, str]:
        return self._note(("image_glibcs",), super().image_glibcs())


def _lines(text: str, *beginnings: str) -> str:
    return "".join(line + "\n" for line in text.splitlines() if line.startswith(beginnings))


def _brief(ran: Ran) -> Ran:
    """Without the script, which the code has."""
    return replace(ran, argv=ran.argv[:1])


def _short(mpi: HostMpi) -> HostMpi:
    """Without what no check looks at: thousands of symbols."""
    return replace(
        mpi,
        library=replace(mpi.library, elf=_bare(mpi.library.elf)),
        closure=tuple(map(_bare, mpi.closure)),
        companions=tuple(map(_bare, mpi.companions)),
        glibc=tuple(map(_bare, mpi.glibc)),
        optional=(),
    )


def _bare(elf: Elf) -> Elf:
    kept = {"GLIBC"} if elf.soname == "libc.so.6" else set()
    return replace(
        elf,
        mpi_exports=(),
        mpi_imports=(),
        build_id="",
        rpath=(),
        runpath=(),
        offers={k: v for k, v in elf.offers.items() if k in kept},
    )


def main() -> None:
    machine = Recorder()
    for check in ordered():
        for diagnosis in look(machine, check, SetupErrors()):
            print(diagnosis.finding.severity.value, diagnosis.finding.what, file=sys.stderr)
    who = {"uid": machine.uid, "user": machine.user, "environ": machine.environ}
    text = json.dumps({**who, "answers": machine.notes}, indent=1)
    python = json.dumps(sys.executable)[1:-1]
    checkout = str(Path(__file__).resolve().parents[3])
    for here, there in (
        (python, "python3"),
        (checkout, f"{HOME}/fairlead"),
        (str(Path.home()), HOME),
    ):
        text = text.replace(here, there)
    print(re.sub(r"/fairlead-probe-\w+/", "/fairlead-probe-x/", text))


if __name__ == "__main__":
    main()
