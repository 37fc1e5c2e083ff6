"""Records what a real NCCL does with plugins on a GPU: ``python -m tests.recorded.nccl.record_gpu FOLDER > gpu.json``.

``tests/unit/runtime/nccl/test_gpu_record.py`` compares the reading of logs and preflight's word with it. One GPU serves:
two ranks, each with an NCCL_HOSTID of its own, are two hosts to NCCL. FOLDER may have

* ``nccl/VERSION+cudaN.N/libnccl.so.2``: of NVIDIA's wheels, or links to those of this machine;
* ``plugins/RELEASE/lib``: aws-ofi-nccl, as its own build installs it, and ``libfabric/lib``, behind it.

Other plugins are the tests' own (``tests/support/net_plugin.c``). Ranks run ``python3 -m fairlead.prove --nccl-sums``;
:class:`fairlead.proof.nccl.NcclWatch` follows them as in a launch. Kept are facts only: what the log says, how ranks ended.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.compiled import compiled

from fairlead.base.errors import FairleadError, Finding
from fairlead.base.nccl_log import parse
from fairlead.base.nccl_verdict import Expected
from fairlead.base.system import Machine
from fairlead.elf import nccl_symbols, reader
from fairlead.elf.facts import NcclLibrary
from fairlead.nccl.host import discover
from fairlead.nccl.model import NcclRules
from fairlead.nccl.selection import NET, PLUGIN, TUNER
from fairlead.proof.nccl import NcclWatch

SOURCE = (Path(__file__).parents[2] / "support/net_plugin.c").read_text()
TUNER_SOURCE = """
static int ok(void) { return 0; }
void *ncclTunerPlugin_vN[] = { "TestTuner", ok, ok, ok, ok, ok };
"""
SETS: tuple[tuple[int, ...], ...] = (
    *((n,) for n in range(5, 13)), (6, 7, 8, 9, 10, 11), (11, 12), tuple(range(5, 13)), (5, 12), (8, 9, 10),
)  # fmt: skip
FAULTS = ("CONSTRUCTOR", "LOADING", "INIT", "DEVICES", "CONNECT", "DAMAGE")
_NAME = "libnccl-net.so"
# Of a log, what tells something of the network, and the last lines of all.
_KEPT = re.compile(
    r"NET/|Plugin|plugin|network|Init COMPLETE|NCCL version|nNodes|via NET|GPU Direct|WARN|Bootstrap|set by env"
)
_LEFT_OUT = re.compile(
    r"dlvsym|(?:ENV|PROFILER)/Plugin|Topology|socketProgress|Proxy|TUNER/Plugin: Could not"
)
_EDGES = 2  # kept of the lines of connections
_LIMIT_S, _WORKERS = 20.0, 8


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        plugin: the file, or "" for none; it need not be there.
        env: of the ranks; ``NCCL_NET_PLUGIN`` comes from ``plugin``.
        planned: what a launch would expect.
        hosts: each rank is on a host of its own.
    """

    name: str
    library: str
    plugin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    planned: tuple[str, ...] = ("Test",)
    providers: tuple[str, ...] = ()
    ranks: int = 2
    hosts: bool = True
    limit_s: float = _LIMIT_S
    most: int = 1 << 19


def plugins(folder: Path) -> Path:
    """The tests' own, each in a folder of its own."""
    objects = {}
    for n in range(5, 13):
        text = SOURCE.replace("#ifndef VERSION", f"#define VERSION {n}\n#ifndef VERSION")
        source = folder / f"v{n}.c"
        source.write_text(text)
        objects[n] = folder / f"v{n}.o"
        _run("cc", "-O2", "-fPIC", "-w", "-c", source, "-o", objects[n])
    for versions in SETS:
        made = folder / _set(versions) / _NAME
        made.parent.mkdir()
        _run("cc", "-shared", "-o", made, *(objects[n] for n in versions))
    for fault in FAULTS:
        for n in (8, 11):
            words = ("-w", "-O2", f"-DVERSION={n}", f"-DFAULT_{fault}")
            compiled(folder / f"{fault}-v{n}" / _NAME, SOURCE, *words)
    eleven = ("-w", "-O2", "-DVERSION=11")
    behind = compiled(folder / "away/libdepx.so", "int behind(void) { return 1; }")
    compiled(folder / "missing-library" / _NAME, SOURCE, *eleven, "-Wl,--no-as-needed", str(behind))
    behind.unlink()
    more = SOURCE + "extern int fi_nowhere(void);\nint uses(void) { return fi_nowhere(); }\n"
    compiled(folder / "undefined-symbol" / _NAME, more, *eleven)
    content = (folder / "v11" / _NAME).read_bytes()
    other = content[:18] + (183).to_bytes(2, "little") + content[20:]  # EM_AARCH64
    for name, changed in (("truncated", content[:900]), ("architecture", other)):
        (folder / name).mkdir()
        (folder / name / _NAME).write_bytes(changed)
    compiled(folder / "no-interface" / _NAME, "int nothing;")
    for n in range(1, 7):
        code = TUNER_SOURCE.replace("_vN", f"_v{n}")
        compiled(folder / f"tuner-v{n}/libnccl-tuner.so", code)
    return folder


def _set(versions: Sequence[int]) -> str:
    return "v" + "+".join(map(str, versions))


def cases(folder: Path, own: Path, library: str) -> Iterator[Case]:
    """All of one NCCL."""
    for versions in SETS:
        yield Case(f"interfaces {_set(versions)}", library, str(own / _set(versions) / _NAME))
    for fault in FAULTS:
        for n in (8, 11):
            for net in ("", "Test") if fault in ("INIT", "DEVICES") else ("Test",):
                env = {NET: net} if net else {}
                name = f"fault {fault} v{n}{' required' if net else ''}"
                yield Case(name, library, str(own / f"{fault}-v{n}" / _NAME), env, limit_s=8)
    for name in (
        "missing-library",
        "undefined-symbol",
        "truncated",
        "architecture",
        "no-interface",
        "absent",
    ):
        for net in ("", "Test"):
            env = {NET: net} if net else {}
            words = f"file {name}{' required' if net else ''}"
            yield Case(words, library, str(own / name / _NAME), env)
    yield from _selections(own, library)
    for n in range(1, 7):
        env = {TUNER: str(own / f"tuner-v{n}/libnccl-tuner.so")}
        yield Case(f"tuner v{n}", library, str(own / "v11" / _NAME), env, ranks=1)
    yield Case("no plugin", library, planned=("Libfabric",))
    yield Case("one host", library, planned=("Socket",), hosts=False)
    yield Case("interface that is not there", library, env={"NCCL_SOCKET_IFNAME": "hsn"}, limit_s=6)
    yield from _ofi(folder, library)


def _selections(own: Path, library: str) -> Iterator[Case]:
    path = {"LD_LIBRARY_PATH": f"{own / 'v11'}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    here, failing = own / "v11" / _NAME, own / "INIT-v11" / _NAME
    values = {
        "by its name": {}, "none": {PLUGIN: "none"}, "NONE": {PLUGIN: "NONE"}, "spcx": {PLUGIN: "spcx"},
        "empty": {PLUGIN: ""}, "list, first absent": {PLUGIN: f"absent,{here}"}, "list with none": {PLUGIN: f"none,{here}"},
        "list, first fails": {PLUGIN: f"{failing},{here}"}, "other case": {PLUGIN: str(here), NET: "tEST"},
        "wrong name": {PLUGIN: str(here), NET: "OFI"}, "Socket": {PLUGIN: str(here), NET: "Socket"},
    }  # fmt: skip
    for name, env in values.items():
        yield Case(f"selection {name}", library, env={**path, **env}, ranks=1)


def _ofi(folder: Path, library: str) -> Iterator[Case]:
    found = os.environ.get("LD_LIBRARY_PATH", "")
    behind = {"LD_LIBRARY_PATH": f"{folder / 'libfabric/lib'}:{found}"}
    names = ("AWS Libfabric", "Libfabric", "OFI")
    for release in sorted(folder.glob("plugins/*/lib")):
        plugin = str(sorted(release.glob("libnccl-net*.so"))[0])
        for provider in ("tcp", "cxi"):
            for net in ("", "AWS Libfabric", "OFI"):
                env = {**behind, "FI_PROVIDER": provider, **({NET: net} if net else {})}
                how = f" as {net}" if net else ""
                yield Case(
                    f"aws-ofi-nccl {release.parent.name}, {provider}{how}", library, plugin, env, names, (provider,),
                    most=1 << 25 if provider == "tcp" else 1 << 19,
                )  # fmt: skip
        env = {NET: "AWS Libfabric"}
        name = f"aws-ofi-nccl {release.parent.name} without its libfabric"
        yield Case(name, library, plugin, env, names)


def libraries(folder: Path) -> dict[str, tuple[Path, NcclLibrary]]:
    found = {}
    for path in sorted(folder.glob("nccl/*/libnccl.so.2")):
        library = nccl_symbols.library(path, reader.read(path.resolve()))
        assert library, path
        found[library.version] = path.resolve(), library
    return found


def exported(plugin: str) -> list[int]:
    """The interfaces in a plugin's file, as preflight reads them; empty where it reads none."""
    with suppress(FairleadError):
        found = discover(NcclRules(), Machine({}), {}, named=plugin).networks
        return [*found[0].plugin.interfaces.get("net", ())] if found else []
    return []


def run(case: Case, library: Path, work: Path) -> dict[str, Any]:
    """The facts of one run."""
    folder = Path(tempfile.mkdtemp(dir=work))
    ranks = [_started(case, library, folder, rank) for rank in range(case.ranks)]
    expected = Expected(
        case.planned, case.providers, case.plugin,
        _inode(case.plugin), library=str(library),
    )  # fmt: skip
    proofs: list[Any] = []
    watch = NcclWatch(expected, case.ranks, folder, on_proof=proofs.append)
    findings: list[Finding] = []
    end, decided, after, hung = time.monotonic() + case.limit_s, 0.0, None, False
    code = 0
    try:
        while any(rank.poll() is None for rank in ranks):
            decided = decided or (time.monotonic() if _decided(folder) else 0.0)
            watch.look()
            if time.monotonic() > end:
                hung = True
                break
            time.sleep(0.05)
        watch.last_look(findings.append)
    except FairleadError as exc:
        code, findings = int(exc.code), list(exc.findings)
        after = round(time.monotonic() - decided, 2) if decided else None
    codes, printed = zip(*map(_ended, ranks), strict=True)
    logs = [path.read_text(errors="replace") for path in sorted(folder.glob("nccl.*"))]
    log = next((text for text in logs if "NCCL version" in text), logs[0] if logs else "")
    shutil.rmtree(folder)
    (record,) = parse(log) or (None,)
    return {
        "name": case.name, "nccl": case.library, "ranks": case.ranks,
        "planned": {"networks": case.planned, "providers": case.providers, "plugin": case.plugin},
        "exports": exported(case.plugin) if case.plugin else [],
        "codes": [*codes], "hung": hung,
        "network": record.network if record else "", "interface": record.interface if record else 0,
        "tuner": record.tuner if record else "", "provider": record.provider if record else "",
        "causes": [cause.kind for cause in record.causes] if record else [],
        "proof": {"code": code, "proved": bool(proofs), "after_s": after, "found": [[f.what, f.why] for f in findings]},
        "said": [text.strip().splitlines()[-1] for text in printed if text.strip()][:1],
        "log": kept(log),
    }  # fmt: skip


def _inode(plugin: str) -> int:
    return Path(plugin).stat().st_ino if plugin and Path(plugin).exists() else 0


def _decided(folder: Path) -> bool:
    return any("Using network" in p.read_text(errors="replace") for p in folder.glob("nccl.*"))


def _started(case: Case, library: Path, folder: Path, rank: int) -> subprocess.Popen[bytes]:
    own = ("NCCL_", "FI_", "OFI_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    environ |= {
        "FAIRLEAD_RUN_ID": folder.name, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
        "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p", "RANK": str(rank), "WORLD_SIZE": str(case.ranks), "LOCAL_RANK": "0",
    }  # fmt: skip
    environ |= {"NCCL_HOSTID": f"host{rank}"} if case.hosts else {}
    environ |= {PLUGIN: case.plugin} if case.plugin else {}
    words = (
        "--library",
        str(library),
        "--meet",
        f"{folder}/meet",
        "--most",
        str(case.most),
        "--repeat",
        "3",
    )
    return subprocess.Popen(
        [sys.executable, "-m", "fairlead.prove", "--nccl-sums", *words],
        env={**environ, **case.env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def _ended(rank: subprocess.Popen[bytes]) -> tuple[int, str]:
    if rank.poll() is None:
        with suppress(OSError):
            os.killpg(rank.pid, signal.SIGKILL)
    out, _ = rank.communicate()
    return rank.returncode, out.decode(errors="replace")


def kept(log: str) -> list[str]:
    """The lines that tell something."""
    lines, edges = [], 0
    for line in log.splitlines():
        edges += " via NET" in line
        if (
            _KEPT.search(line)
            and not _LEFT_OUT.search(line)
            and not (" via NET" in line and edges > _EDGES)
        ):
            lines.append(line)
    return lines


def _shown(facts: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Without this machine's paths and addresses."""
    text = json.dumps(facts)
    for path, name in names.items():
        text = text.replace(path, name)
    text = re.sub(r"\b(\d+\.\d+\.\d+\.\d+)(<\d+>|/\d+)", r"192.0.2.2\2", text)
    return dict(json.loads(text))


def main(folder: Path) -> dict[str, Any]:
    found = libraries(folder)
    with tempfile.TemporaryDirectory() as scratch, ProcessPoolExecutor(_WORKERS) as pool:
        work, own = Path(scratch, "runs"), Path(scratch, "plugins").resolve()
        for made in (work, own):
            made.mkdir()
        plugins(own)
        every = [case for version in found for case in cases(folder, own, version)]
        done = [(case, pool.submit(run, case, found[case.library][0], work)) for case in every]
        names = {str(own): "/plugins", str(work): "/runs", str(folder): ""}
        names |= {str(path): "/opt/nccl/libnccl.so.2" for path, _ in found.values()}
        runs = []
        for case, future in done:
            try:
                runs.append(_shown(future.result(), names))
            except Exception as exc:  # one that cannot be recorded must not lose the others
                sys.stderr.write(f"{case.name}: {exc!r}\n")
    known = [
        {"version": one.version, "runtime": one.runtime, "asks": asdict(one)["asks"]}
        for _, one in found.values()
    ]
    for fact in runs:
        one = found[fact["nccl"]][1]
        fact["word"] = max(set(one.asks["net"]) & set(fact["exports"]), default=0)
    return {"gpu": _gpu(), "libraries": known, "runs": runs}


def _gpu() -> str:
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    with suppress(FileNotFoundError):
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def _run(*words: object) -> None:
    subprocess.run([*map(str, words)], check=True)


if __name__ == "__main__":
    print(
        json.dumps(main(Path(sys.argv[1]).resolve()), separators=(",", ":")).replace(
            '},{"name"', '},\n{"name"'
        )
    )
