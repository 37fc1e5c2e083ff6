"""Records what doctor's checks ask this machine, and its answers: ``python record.py > NAME.json``.

``tests/unit/test_doctor_checks.py`` plays the recordings back, and says what each must find.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fairlead.doctor.fix import examine
from fairlead.doctor.process import Ran
from fairlead.doctor.registry import CHECKS
from fairlead.doctor.world import Machine
from fairlead.hostmpi import HostMpi
from fairlead.serial import to_json

KEPT = ("HOME", "PATH", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "FAIRLEAD_MPI")


class Recorder(Machine):
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
            text = "".join(line + "\n" for line in text.splitlines() if line.startswith("Cap"))
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

    def probe_engine(self) -> Ran:
        return self._note(("probe_engine",), super().probe_engine())

    def host_mpis(self) -> tuple[HostMpi, ...]:
        found = tuple(_short(mpi) for mpi in super().host_mpis())
        return self._note(("host_mpis",), found)


def _short(mpi: HostMpi) -> HostMpi:
    """Without what no check looks at: thousands of symbols."""
    elf = replace(mpi.library.elf, mpi_exports=(), mpi_imports=())
    library = replace(mpi.library, elf=elf)
    return replace(mpi, library=library, closure=(), companions=(), plugins=())


def main() -> None:
    machine = Recorder()
    for diagnosis in examine(machine, CHECKS):
        print(diagnosis.finding.severity.value, diagnosis.finding.what, file=sys.stderr)
    who = {"uid": machine.uid, "user": machine.user, "environ": machine.environ}
    json.dump({**who, "answers": machine.notes}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
