"""A machine that was recorded by ``tests/recorded/doctor/record.py``, for doctor's checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.base.process import Ran
from fairlead.base.serde import from_json
from fairlead.detect.machine import Profile
from fairlead.doctor.world import ClockState, Driven, FileSystem
from fairlead.engines.model import Engine
from fairlead.mpi.host import HostMpi
from fairlead.nccl.model import HostNccl, HostNetwork

RECORDED = Path(__file__).parents[1] / "recorded/doctor"


class Recorded:
    """A machine that answers from a file, and refuses what was not asked when it was recorded."""

    def __init__(self, name: str, folder: Path = RECORDED, **changed: Any):
        data = self._load(folder / f"{name}.json")
        self.uid: int = data["uid"]
        self.user: str = data["user"]
        self.environ: dict[str, str] = data["environ"]
        self.answers: dict[str, Any] = data["answers"] | changed

    @staticmethod
    def _load(file: Path) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(file.read_text())
        if "like" not in data:
            return data
        other = Recorded._load(file.with_name(f"{data.pop('like')}.json"))
        both = {key: other[key] | data.get(key, {}) for key in ("environ", "answers")}
        return other | data | both

    def read(self, path: str) -> str | None:
        return self.answers[f"read {path}"]

    def access(self, path: str, mode: int) -> bool:
        return self.answers[f"access {path} {mode}"]

    def which(self, program: str) -> str | None:
        return self.answers[f"which {program}"]

    def free_bytes(self, folder: str) -> int:
        return self.answers[f"free_bytes {folder}"]

    def run(self, argv: Sequence[str]) -> Ran:
        return from_json(Ran, self.answers[f"run {' '.join(argv)}"])

    def engine(self) -> str | None:
        return self.answers["engine"]

    def probe_engine(self, compression: str = "") -> Ran:
        question = f"try_image {compression}" if compression else "probe_engine"
        return from_json(Ran, self.answers[question])

    def other_engines(self) -> dict[str, Ran]:
        others = self.answers.get("other_engines", {})
        return {kind: from_json(Ran, ran) for kind, ran in others.items()}

    def host_mpis(self) -> tuple[HostMpi, ...]:
        return tuple(from_json(HostMpi, item) for item in self.answers["host_mpis"])

    def net_plugins(self) -> HostNccl:
        return from_json(HostNccl, self.answers.get("net_plugins", {}))

    def drive_plugin(self, network: HostNetwork) -> Driven:
        return from_json(Driven, self.answers[f"drive_plugin {network.plugin.path}"])

    def real(self, path: str) -> str:
        return self.answers[f"real {path}"]

    def matching(self, pattern: str) -> tuple[str, ...]:
        return tuple(self.answers[f"matching {pattern}"])

    def cores(self) -> int:
        return self.answers["cores"]

    def owner_mode(self, path: str) -> tuple[int, int] | None:
        return self.answers[f"owner_mode {path}"]

    def file_system(self, folder: str) -> FileSystem:
        return from_json(FileSystem, self.answers[f"file_system {folder}"])

    def exposed(self, folder: str, top: str) -> tuple[tuple[str, str], ...]:
        return tuple((part, why) for part, why in self.answers[f"exposed {folder} {top}"])

    def limit(self, name: str) -> tuple[int, int]:
        soft, hard = self.answers[f"limit {name}"]
        return soft, hard

    def clock_state(self) -> ClockState:
        return from_json(ClockState, self.answers["clock_state"])

    def clock_offset_s(self, folder: str) -> float | None:
        return self.answers[f"clock_offset_s {folder}"]

    def try_cma(self) -> Ran:
        return from_json(Ran, self.answers["try_cma"])

    def try_squashfuse(self, compression: str) -> Ran:
        return from_json(Ran, self.answers[f"try_squashfuse {compression}"])

    def look_inside(self) -> tuple[Ran, Ran]:
        outside, inside = (from_json(Ran, ran) for ran in self.answers["look_inside"])
        return outside, inside

    def engine_here(self) -> Engine | None:
        found = self.answers["engine_here"]
        return from_json(Engine, found) if found else None

    def profile(self) -> Profile:
        return from_json(Profile, self.answers["profile"])

    def image_glibcs(self) -> dict[str, str]:
        return self.answers["image_glibcs"]
