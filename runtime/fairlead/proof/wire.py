"""The wire proof: two processes move a pattern through a net plugin of NCCL or RCCL, over host memory.

It needs neither a GPU nor NCCL, and shows what carries NCCL's messages between two hosts before a job is spent on it:
plugin, interface, libfabric's provider, network devices, rate, and whether what arrives is what was sent. It says
nothing about GPUDirect RDMA. ``native/wire.c`` drives the plugin in a process for each side, since a plugin may end the
process that loads it, or never return.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fairlead import native
from fairlead.base import bounded_json
from fairlead.base.errors import Finding, error
from fairlead.base.nccl_log import Record, parse
from fairlead.base.nccl_verdict import Expected, differences
from fairlead.base.paths import cache_dir
from fairlead.native.wire import Drive
from fairlead.native.wire import Settings as Settings
from fairlead.proof.nccl import finding

_MOST = 1 << 22  # bytes of a side's events
_SHOWN = 160  # characters of them in a message: what comes first, not where in the program it was
_WORDS = 2000  # characters of what a side prints
_SOON_S = 2.0  # what the other side may go on once one has failed
_POLL_S = 0.02
_LARGEST = 1e18  # number in an event
# Stages in which a side fails because the other one has.
_WAITING = ("meet", "connect", "move", "close")
_SPEED = 1e9  # bytes


@dataclass(frozen=True)
class Device:
    """A network device, as the plugin describes it.

    Attributes:
        path: in sysfs; "" when the plugin does not say.
        speed: Mbit/s; 0 when the plugin does not say.
    """

    name: str
    path: str
    speed: int
    port: int


@dataclass(frozen=True)
class Side:
    """What one of the two processes has seen.

    Attributes:
        path: of the plugin's file, as the loader found it.
        interface: the version that is used; 0 when there was none.
        name: of the network, as the plugin calls it.
        record: what the plugin itself has logged, as NCCL would have it in its log.
        bytes: that have arrived, and ``errors``: messages that were not as sent.
        seconds: from the first message to the last.
        stage: the last one that it came to.
        failed: why it stopped there, "" when it did not; ``code``: what the plugin's function returned.
        how: ``ended``, ``killed`` when the time was over, or ``died`` of a signal.
        signal: its number; 0 when the plugin caught it, and ``returned`` is how its process ended.
        words: what the process printed.
    """

    host: str
    path: str
    interface: int
    name: str
    record: Record
    devices: tuple[Device, ...]
    bytes: int
    errors: int
    seconds: float
    stage: str
    failed: str
    code: int
    how: str
    signal: int = 0
    returned: int = 0
    words: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing went wrong on this side."""
        return self.how == "ended" and not self.failed and not self.errors


@dataclass(frozen=True)
class Wire:
    """What came of it.

    Attributes:
        plugin: as it was asked for.
        sides: one when only devices were looked at.
    """

    plugin: str
    settings: Settings
    sides: tuple[Side, ...]

    @property
    def holds(self) -> bool:
        """Whether all messages arrived as they were sent."""
        return all(side.holds for side in self.sides)

    @property
    def gb_s(self) -> float:
        """10^9 bytes/s in each direction, with making and checking the pattern; 0 when nothing was moved."""
        slowest = max(side.seconds for side in self.sides)
        return self.sides[0].bytes / slowest / _SPEED if slowest else 0.0

    @cached_property
    def cause(self) -> Side:
        """The side that the other one failed for."""
        return min(
            self.sides,
            key=lambda side: (
                side.holds,
                side.how != "died",
                side.stage in _WAITING,
                side.how != "ended",
            ),
        )

    @property
    def line(self) -> str:
        """In one line, what has carried the messages."""
        first, hosts = self.sides[0], dict.fromkeys(side.host for side in self.sides)
        provider = f", provider {first.record.provider}" if first.record.provider else ""
        moved = sum(side.bytes for side in self.sides)
        traffic = f"; {moved / _SPEED:.2f} GB moved, {self.gb_s:.2f} GB/s each way" if moved else ""
        return (
            f"{first.name} from {first.path}, interface v{first.interface}{provider}, {len(first.devices)} network "
            f"device{'s' * (len(first.devices) != 1)} on {', '.join(hosts)}{traffic}"
        )

    def findings(self, expected: Expected | None = None) -> tuple[Finding, ...]:
        """What went wrong, with its cause; and what is not as ``expected``."""
        if not self.holds:
            return (_failure(self.plugin, self.cause),)
        if expected is None:
            return ()
        problems = (
            (s.host, difference)
            for s in self.sides
            for difference in differences(s.record, expected)
        )
        return tuple(finding(difference, host) for host, difference in problems)

    def to_json(self) -> dict[str, Any]:
        """For records and ``--json``."""
        return {
            "plugin": self.plugin,
            "holds": self.holds,
            "size": self.settings.size,
            "count": self.settings.count,
            "window": self.settings.window,
            "gb_s": round(self.gb_s, 3),
            "sides": [_side_json(side) for side in self.sides],
        }


def _side_json(side: Side) -> dict[str, Any]:
    record = side.record
    return {
        "host": side.host,
        "path": side.path,
        "interface": side.interface,
        "network": side.name,
        "release": record.release,
        "libfabric": record.libfabric,
        "provider": record.provider,
        "protocol": record.protocol,
        "devices": [vars(device) for device in side.devices],
        "bytes": side.bytes,
        "errors": side.errors,
        "seconds": round(side.seconds, 3),
        "stage": side.stage,
        "failed": side.failed,
        "how": side.how,
    }


def wire(
    plugin: str,
    settings: Settings | None = None,
    starts: Sequence[Sequence[str]] = ((), ()),
    folder: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Wire:
    """Moves messages through a plugin between two processes, or looks at it in one.

    Args:
        plugin: path of its file, or a name that the loader of the processes finds.
        starts: the words that run a command on each host; none for this one.
        folder: that both see, in which a folder is made for what they write; this host's temporary one by default.
        environ: of the processes: LD_LIBRARY_PATH finds what the plugin needs.
    Raises:
        FairleadError: what drives the plugin cannot be compiled.
        OSError: the folder cannot be written.
    """
    settings = settings or Settings()
    if "/" in plugin:
        plugin = str(Path(plugin).absolute())  # another host has another working folder
    library = str(native.ensure(native.WIRE, cache_dir(environ), environ))
    seed = random.getrandbits(48)
    with ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="wire-", dir=folder))
        sides = [
            _Started(Drive(library, plugin, settings, made, rank, seed), start, environ)
            for rank, start in enumerate(starts[: 2 if settings.count else 1])
        ]
        try:
            _wait(sides, settings)
        finally:
            for side in sides:
                side.kill()
        return Wire(plugin, settings, tuple(side.result() for side in sides))


class _Started:
    """One of the two processes."""

    def __init__(self, drive: Drive, start: Sequence[str], environ: Mapping[str, str]) -> None:
        self._drive, self._killed = drive, False
        self._log = Path(drive.folder, f"said.{drive.rank}")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*start, *drive.words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environ),
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Ends it and what it has started."""
        if self.process.poll() is None:
            self._killed = True
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def result(self) -> Side:
        events, words = (
            path.read_bytes()[:_MOST].decode("utf-8", "replace") if path.is_file() else ""
            for path in (Path(self._drive.events), self._log)
        )
        return side_of(Ended(events, words[:_WORDS], self.process.returncode, self._killed))


@dataclass(frozen=True)
class Ended:
    """What is left of one of the two processes.

    Attributes:
        events: what it wrote down; the last line may be cut short.
        words: what it printed.
        killed: it had to be ended.
    """

    events: str
    words: str
    code: int
    killed: bool


def side_of(ended: Ended) -> Side:
    """What a process has seen, from what is left of it."""
    events, code, words = list(_events(ended.events)), ended.code, ended.words.strip()
    last: dict[str, dict[str, Any]] = {event["event"]: event for event in events}
    failed = last.get("failed", {})
    interface, moved = last.get("interface", {}), last.get("moved", {})
    # A program that starts another one on a host passes its signal on as 128 + n.
    number = -code if code < 0 else code - 128 if 128 < code < 193 else 0
    path, name = str(last.get("loaded", {}).get("path", "")), str(interface.get("name", ""))
    version = int(_number(interface, "version"))
    # Libraries of a fabric catch signals, print where they came from, and end with a code of their own.
    died = code != 0 and not failed and not ended.killed
    return Side(
        host=str(last.get("started", {}).get("host", "")),
        path=path,
        interface=version,
        name=name,
        record=replace(_record(events), network=name, name=name, plugin=path, interface=version),
        devices=tuple(_devices(events)),
        bytes=int(_number(moved, "bytes")),
        errors=int(_number(moved, "errors")),
        seconds=_number(moved, "seconds"),
        stage=str(failed.get("stage") or last.get("stage", {}).get("stage", "start")),
        failed=str(failed.get("what", "")),
        code=int(_number(failed, "code")),
        how="killed" if ended.killed else "died" if died else "ended",
        signal=number if died else 0,
        returned=code,
        words=words,
    )


def _wait(sides: Sequence[_Started], settings: Settings) -> None:
    end = time.monotonic() + settings.limit_s
    while time.monotonic() < end:
        codes = [side.process.poll() for side in sides]
        if None not in codes:
            return
        if any(codes):
            end = min(end, time.monotonic() + _SOON_S) if end - time.monotonic() > _SOON_S else end
        time.sleep(_POLL_S)


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with suppress(ValueError):
            event = bounded_json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                yield event


def _number(event: Mapping[str, Any], key: str) -> float:
    value = event.get(key)
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST else 0.0


def _record(events: Sequence[Mapping[str, Any]]) -> Record:
    lines = [
        f"wire:1:1 [0] {'plugin:0 ' if event.get('level') == 'WARN' else ''}NCCL {event.get('level')} {event.get('text')}"
        for event in events
        if event["event"] == "log"
    ]
    records = parse("\n".join(lines))
    return records[0] if records else Record("wire", 1)


def _devices(events: Sequence[Mapping[str, Any]]) -> Iterator[Device]:
    for event in events:
        if event["event"] == "device" and event.get("name"):
            speed, port = int(_number(event, "speed")), int(_number(event, "port"))
            yield Device(str(event["name"]), str(event.get("path", "")), speed, port)


def _failure(plugin: str, side: Side) -> Finding:
    """The finding of a side that did not do what it should."""
    where = f"{side.host}: {side.path or plugin}" if side.host else plugin
    why = _why(side)
    if side.how == "died":
        words = "; ".join(filter(None, (" ".join(side.words.split())[:_SHOWN], why)))
        return error(
            "nccl-wire-died", where=where, stage=side.stage, signal=_signal(side), words=words
        )
    if side.how == "killed":
        return error("nccl-wire-hangs", where=where, stage=side.stage)
    if side.errors:
        return error("nccl-wire-damaged", where=where, errors=side.errors)
    failed = f"{side.failed} ({side.code})" if side.code else side.failed
    return error(
        _FAILURES.get(side.stage, "nccl-wire-error"), where=where, stage=side.stage, failed=failed, why=why or failed
    )  # fmt: skip


def _why(side: Side) -> str:
    """What the plugin itself has said last about what went wrong."""
    record = side.record
    return record.causes[0].text if record.causes else "; ".join(record.warnings[-2:])


def _signal(side: Side) -> str:
    if not side.signal:
        return f"code {side.returned}"
    known = side.signal in set(signal.Signals)
    return signal.Signals(side.signal).name if known else f"signal {side.signal}"


# By the stage in which a side failed.
_FAILURES = {
    "load": "nccl-wire-load",
    "interface": "nccl-wire-interface",
    "init": "nccl-wire-init",
    "devices": "nccl-wire-devices",
    "meet": "nccl-wire-connect",
    "connect": "nccl-wire-connect",
    "accept": "nccl-wire-connect",
    "move": "nccl-wire-stuck",
}
