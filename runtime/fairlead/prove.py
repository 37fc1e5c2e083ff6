"""What one rank sees: which MPI is mapped into it, how many ranks there are, what carries them.

For any container, any engine and any launcher; it imports the standard library only, so it works
with any Python 3 of any image::

    srun -n 128 shifter --image=IMAGE python3 -m fairlead.prove --expects FILE [--accepts cxi,shm] [--json]

It starts MPI the way a program would (through mpi4py, or by the names of MPI libraries), exchanges
messages, and rank 0 prints one line when all is well: as many ranks as the launcher promised, one
and the same MPI on each, transports that are accepted. With the file that --expects or $FAIRLEAD_EXPECTS
names mapped on every rank, that line says *proved*; without such an expectation, *observed*. Else it prints what
every rank saw, and the exit code is 122.

:mod:`fairlead.proof.probe_job` runs it as every rank of a probe job, with a JSON file that says what to load and where to
write: one report for each world that is found, one in all when the ranks are connected, one a rank
when each is alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would cost every rank 5 ms
    from collections.abc import Callable
    from typing import Any

MPI_FILE = re.compile(r"/lib(mpi|mpich)([-_]\w+)?\.so[\d.]*$")
BINDINGS = re.compile(
    r"/lib(mpifort|mpichfort|mpicxx|mpichcxx|mpi_cxx|mpi_mpifh|mpi_usempi\w*|mpi_gtl_\w+|mpi_ilp64|mpi_java|mpi_shm_heap\w*)\.so"
)
# Libraries that belong to one MPI, or open modules: two of one name in a process corrupt each other.
_PARTS = re.compile(
    r"/(lib(?:open-pal|open-rte|open_mpi|oshmem|uc[mpst]|fabric|pmix))(?:-[0-9a-f]{8})?\.so[\d.]*$"
)
_RECORD = 16384  # bytes a rank sends to rank 0; a record is some 2 kB
_FAILED, _TOO_SLOW = 122, 125
_MOST = 1 << 28  # characters of one log
# Where launchers write how many ranks they have started.
_SIZE_VARIABLES = (
    "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE", "SLURM_NTASKS",
)  # fmt: skip
_NAMES = ("libmpi.so.12", "libmpich.so.12", "libmpi.so.40", "libmpi_abi.so.1", "libmpi.so")
_USAGE = (
    "usage: python3 -m fairlead.prove [--expects FILE] [--accepts TRANSPORT,...] [--alone] [--json]\n"
    "       python3 -m fairlead.prove --nccl LOG [--expects FILE] [--networks NAME,...] [--accepts PROVIDER,...]\n"
    "                                 [--interface N] [--gdr] [--json]\n"
    "       python3 -m fairlead.prove --nccl-sums [--library FILE] [--meet FILE] [--most BYTES] [--repeat N]\n"
    "                                 [--at-least GB_S] [--json]"
)
# The MPI that must be mapped, as a container sees it: set by the modules that `site export` writes.
_EXPECTED = "FAIRLEAD_EXPECTS"
RANK_VARIABLES = (
    "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK",
    "ALPS_APP_PE", "SLURM_PROCID",
)  # fmt: skip
_LOCAL_VARIABLES = (
    "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID",
    "JSM_NAMESPACE_LOCAL_RANK", "SLURM_LOCALID",
)  # fmt: skip
# Handles of the MPICH ABI are integers fixed since 3.1 (MPICH ABI Compatibility Initiative).
_MPICH_WORLD, _MPICH_BYTE = 0x44000000, 0x4C00010D
# The MPI-5 standard fixes its own (MPI 5.0, appendix A.1).
_MPI5_WORLD, _MPI5_BYTE = 0x101, 0x247


def main(words: list[str]) -> int:
    """Proves for itself, or reports to a probe when the one word is a file; the exit code."""
    if len(words) == 1 and words[0].endswith(".json") and words[0] != "--json":
        return report(words[0])
    if "--nccl" in words:
        return nccl(words)
    if "--nccl-sums" in words:
        return nccl_sums(words)
    accepts: set[str] = set()
    expected = os.environ.get(_EXPECTED) or _of_the_plan()
    as_json = lone = False
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--accepts" and left:
            accepts = set(left.pop(0).split(","))
        elif word == "--expects" and left:
            expected = left.pop(0)
        elif word == "--json":
            as_json = True
        elif word == "--alone":
            lone = True
        else:
            print(_USAGE, file=sys.stdout if word in ("-h", "--help") else sys.stderr)
            return 0 if word in ("-h", "--help") else 2
    return unplanned(accepts, as_json, lone, expected)


def nccl(words: list[str]) -> int:
    """Proves from NCCL's own log what carries its messages; the exit code.

    The log is a file, or a folder with one for each process. ``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV`` and
    ``NCCL_DEBUG_FILE=FOLDER/nccl.%h.%p`` make NCCL write it; the whole output of a job serves as well.
    """
    given = _nccl_words(words)
    if given is None:
        print(_USAGE, file=sys.stderr)
        return 2
    from fairlead.base.nccl_log import parse  # ranks that prove their MPI do not need it
    from fairlead.base.nccl_verdict import Expected, differences, summary

    expected = Expected(
        networks=tuple(filter(None, given["--networks"].split(","))),
        providers=tuple(filter(None, given["--accepts"].split(","))),
        file=given["--expects"],
        interface=int(given["--interface"] or 0),
        gdr=True if given["--gdr"] else None,
    )
    try:
        texts = _texts(given["--nccl"])
    except OSError as exc:
        print(f"fairlead: {given['--nccl']} cannot be read: {exc.strerror}", file=sys.stderr)
        return 2
    records = [record for text in texts for record in parse(text)]
    wrong = [
        f"{r.host}, process {r.pid}: {w}"
        for r in records
        for w in _nccl_wrong(r, differences(r, expected))
    ]
    silent = [r for r in records if not r.network and not differences(r, expected)]
    if silent or not records:
        wrong.append(
            "NCCL does not say which network it uses: set NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV"
        )
    for r in silent:
        cause = f" ({r.causes[0].kind}: {r.causes[0].text})" if r.causes else ""
        wrong.append(f"{r.host}, process {r.pid}: no network yet{cause}")
    if expected.file and any(r.network and "/" not in r.plugin for r in records):
        wrong.append(
            f"NCCL before 2.28 does not say where its plugin is, {expected.file} was expected"
        )
    how = "observed" if expected == Expected() else "proved"
    where = f"{_count(records, 'process', 'es')}, {_count({r.host for r in records}, 'node')}"
    if given["--json"]:
        holds = False if wrong else True if how == "proved" else None
        print(json.dumps({"holds": holds, "wrong": wrong, "records": [_plain(r) for r in records]}))
    elif wrong:
        print("\n  ".join([f"fairlead: NCCL is not proved on {where}: {summary(records)}", *wrong]))
    else:
        print(f"fairlead: NCCL {how} on {where}: {summary(records)}")
    return _FAILED if wrong else 0


def nccl_sums(words: list[str]) -> int:
    """All-reduces known sums over the ranks' GPUs, and counts wrong values; the exit code.

    Every rank runs it, each with a GPU. Their ranks are those of the launcher, or of RANK and WORLD_SIZE.
    """
    from fairlead.base import nccl_sums as known

    # A folder of the launch, which no other one has, where there is one.
    meet = "/opt/fairlead/run/nccl-sums" if os.path.isdir("/opt/fairlead/run") else "nccl-sums"
    given = {
        "--library": "", "--meet": meet, "--most": str(64 << 20), "--repeat": "20", "--at-least": "0",
    }  # fmt: skip
    left = [word for word in words if word not in ("--nccl-sums", "--json")]
    while left:
        word = left.pop(0)
        if word not in given or not left:
            print(_USAGE, file=sys.stderr)
            return 2
        given[word] = left.pop(0)
    rank = _number(("RANK", *RANK_VARIABLES), 0)
    ranks = _number(("WORLD_SIZE", *_SIZE_VARIABLES), 1)
    local = _number(("LOCAL_RANK", *_LOCAL_VARIABLES), rank)
    options = {name.lstrip("-"): value for name, value in given.items()}
    try:
        results = known.run(options, rank, ranks, local)["ranks"]
    except (known.Failed, OSError, ValueError) as exc:
        print(f"fairlead: NCCL's sums are not proved, rank {rank}: {exc}", file=sys.stderr)
        return _FAILED
    return _report_sums(results, rank, "--json" in words, float(given["--at-least"]))


def _report_sums(results: Any, rank: int, as_json: bool, at_least: float) -> int:
    from fairlead.base import nccl_sums as known

    bad, rate = known.differences(results), known.bus_gb_s(results)
    slow = rank == 0 and rate < at_least
    if rank == 0 and as_json:
        print(json.dumps({"holds": not bad, "gb_s": round(rate, 3), "ranks": results}))
    elif rank == 0:
        print("\n  ".join([f"fairlead: {known.line(results)}", *bad]))
        if slow:
            print(f"  {at_least:g} GB/s were expected")
    return _FAILED if bad else _TOO_SLOW if slow else 0


def _number(names: tuple[str, ...], otherwise: int) -> int:
    """The first variable that is set, as a number."""
    values = (os.environ[name] for name in names if os.environ.get(name, "").isdecimal())
    return int(next(values, otherwise))


def _count(things: Any, name: str, plural: str = "s") -> str:
    return f"{len(things)} {name}{plural * (len(things) != 1)}"


def _nccl_words(words: list[str]) -> dict[str, str] | None:
    """The options by name; None when they are not as in the usage."""
    given = dict.fromkeys(
        ("--nccl", "--expects", "--networks", "--accepts", "--interface", "--gdr", "--json"), ""
    )
    left = list(words)
    while left:
        word = left.pop(0)
        if word in ("--gdr", "--json"):
            given[word] = word
        elif word in given and left:
            given[word] = left.pop(0)
        else:
            return None
    return given if given["--nccl"] and (given["--interface"] or "0").isdecimal() else None


def _nccl_wrong(record: Any, problems: Any) -> list[str]:
    return [
        f"{problem.text}{f' ({problem.cause.text})' if problem.cause else ''}"
        for problem in problems
    ]


def _texts(path: str) -> list[str]:
    """What a file contains, or every file of a folder."""
    paths = [path]
    if os.path.isdir(path):
        paths = [os.path.join(path, name) for name in sorted(os.listdir(path))]
    texts = []
    for file in paths:
        if os.path.isfile(file) or file == path:
            with open(file, encoding="utf-8", errors="replace") as stream:
                texts.append(stream.read(_MOST))
    return texts


def _plain(record: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(record)


def _of_the_plan() -> str:
    """The file that the plan of this launch names to its witness; "" when nobody has planned it."""
    plan = os.environ.get("FAIRLEAD_PROOF", "")
    return plan.split("|", 3)[3] if plan.count("|") > 2 else ""


def unplanned(accepts: set[str], as_json: bool, lone: bool, expected: str = "") -> int:
    """Proves without anybody who has planned: what must hold of every launch.

    Args:
        accepts: transports that may carry messages; any when empty.
        lone: one rank is what is meant, and no launcher has started it.
        expected: the file of the MPI that must be mapped; empty to observe which one is.
    Returns:
        0, or 122 on every rank when something does not hold.
    """
    mine = _surroundings()
    promised = next((int(os.environ[v]) for v in _SIZE_VARIABLES if v in os.environ), 0)
    mine["promised"] = promised or int(lone)
    _ask()
    try:
        library = _load({"via": "mpi4py", "names": ()})
    except (OSError, ImportError) as first:
        try:
            library = _load({"via": "dlopen", "names": _first_found()})
        except OSError:
            print(f"fairlead: no MPI could be loaded: {first}", file=sys.stderr)
            return _FAILED
    mine["mapped"] = _mapped()
    mine["unexpected"] = _unexpected(mine["mapped"], expected)
    mpi = _Mpi(library)
    sink = f"/proc/self/fd/{os.memfd_create('words')}"
    text = mpi.start(sink)
    rank, size = mpi.rank_and_size()
    mine.update(rank=rank, size=size, version=mpi.version(), transport=transports(text))
    mine["ring_ok"] = mpi.ring(rank, size)
    mine["twice"] = _twice()
    everyone = mpi.gather(mine, rank, size)
    wrong = _wrong(everyone, accepts, expected) if everyone is not None else []
    if everyone is not None:
        if as_json:
            holds = False if wrong else True if expected else None
            print(json.dumps({"holds": holds, "wrong": wrong, "ranks": everyone}))
        else:
            _tell(everyone, wrong, expected)
    failed = mpi.agree(bool(wrong))
    mpi.stop(sink)
    return _FAILED if failed else 0


def _first_found() -> list[str]:
    for name in _NAMES:
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return [name]
    raise OSError("none")


def _wrong(ranks: list[Any], accepts: set[str], expected: str = "") -> list[str]:
    """What does not hold, in words."""
    wrong = []
    size, promised = ranks[0]["size"], ranks[0]["promised"]
    if promised and size != promised:
        wrong.append(f"the launcher started {promised} ranks, and MPI sees {size}")
    if not promised and size == 1:
        wrong.append(
            "no variable of a launcher reached this rank, so the expected number of ranks is unknown (pass "
            "them into the container; or say --alone)"
        )
    wrong += _wrong_files(ranks, expected)
    if not all(rank["ring_ok"] for rank in ranks):
        wrong.append("messages arrived damaged")
    used = {p for r in ranks for name in r["transport"]["providers"] for p in name.split(";")}
    if accepts and (foreign := sorted(used - accepts)):
        wrong.append(f"messages go over {', '.join(foreign)}")
    if accepts and size > 1 and not used:
        wrong.append("the MPI does not say what carries messages")
    return wrong


def _wrong_files(ranks: list[Any], expected: str) -> list[str]:
    """What does not hold of the mapped libraries."""
    wrong = []
    for rank in ranks:
        if len(rank["mapped"]) != 1:
            wrong.append(f"rank {rank['rank']} maps {len(rank['mapped'])} MPI libraries")
            break
    for rank in ranks:
        if rank["twice"]:
            wrong.append(f"rank {rank['rank']} maps two {rank['twice'][0]}")
            break
    if len({(r["version"], *(m["path"] for m in r["mapped"])) for r in ranks}) > 1:
        wrong.append("the ranks run on different MPIs")
    others = [path for rank in ranks for path in rank["unexpected"]]
    if others:
        there = "is mapped" if os.path.exists(expected) else "is mapped, and that file is not there"
        wrong.append(f"{expected} must be mapped, {others[0]} {there}")
    return wrong


def _tell(ranks: list[Any], wrong: list[str], expected: str) -> None:
    first = ranks[0]
    hosts = len({rank["host"] for rank in ranks})
    if not wrong:
        carried = sorted({p for rank in ranks for p in rank["transport"]["providers"]})
        open_end = "; nothing was expected: --expects FILE names the MPI that must be mapped"
        print(
            f"fairlead: {'proved' if expected else 'observed'} on {len(ranks)} rank{'s' * (len(ranks) > 1)}, {hosts} "
            f"node{'s' * (hosts > 1)}: {_version(first)} from {first['mapped'][0]['path']}; "
            f"{', '.join(carried) or 'the transport is unknown'}{'' if expected else open_end}",
            flush=True,
        )
        return
    print(f"fairlead: not proved: {'; '.join(wrong)}")
    for rank in ranks:
        paths = ", ".join(m["path"] for m in rank["mapped"])
        over = ", ".join(rank["transport"]["providers"]) or "unknown"
        where = f"  rank {rank['rank']} of {rank['size']} on {rank['host']}"
        print(f"{where}: {_version(rank)}, {paths}; {over}")
    sys.stdout.flush()


def _version(rank: Any) -> str:
    return " ".join(str(rank["version"]).split("\n")[0].split())


def report(spec_path: str) -> int:
    """Reports this rank according to the JSON at ``spec_path``; returns the exit code."""
    with open(spec_path, encoding="utf-8") as stream:
        spec = json.load(stream)
    out = spec["out"]
    me = next((os.environ[v] for v in RANK_VARIABLES if v in os.environ), str(os.getpid()))
    _write(out, f"started.{me}", {"host": os.uname().nodename, "pid": os.getpid()})
    report = _surroundings()
    _ask()
    if spec.get("app"):
        report["app"] = _app_mpi(spec["app"])
    try:
        library = _load(spec)
    except (OSError, ImportError) as exc:
        report["error"] = f"the MPI could not be loaded: {exc}"
        _write(out, f"proof.{me}", {"ranks": [report]})
        return 1
    report["mapped"] = _mapped()
    mpi = _Mpi(library)
    text = mpi.start(os.path.join(out, f"said.{me}"))
    rank, size = mpi.rank_and_size()
    report.update(rank=rank, size=size, version=mpi.version(), transport=transports(text))
    report["ring_ok"] = mpi.ring(rank, size)
    _write(out, f"started.{me}", {"host": report["host"], "pid": report["pid"], "rank": rank})
    everyone = mpi.gather(report, rank, size)
    if everyone is not None:
        _write(out, f"proof.{me}", {"ranks": everyone})
    mpi.stop(os.path.join(out, f"said.{me}"))
    return 0


def _surroundings() -> dict[str, Any]:
    return {
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "library_path": os.environ.get("LD_LIBRARY_PATH", ""),
        "namespaces": _namespaces(),
    }


def _ask() -> None:
    """Makes the library log its transports; call it before the library is loaded."""
    if "|" in os.environ.get("FAIRLEAD_PROOF", ""):
        return  # the launch's own witness asks, and hears
    os.environ.setdefault("MPIR_CVAR_DEBUG_SUMMARY", "1")
    os.environ.setdefault("MPIR_CVAR_CH4_OFI_CAPABILITY_SETS_DEBUG", "1")  # MPICH 3.4
    os.environ.setdefault("UCX_LOG_LEVEL", "info")
    os.environ.setdefault("I_MPI_DEBUG", "5")
    os.environ.setdefault("OMPI_MCA_ompi_display_comm", "mpi_init")  # Open MPI 5
    os.environ.setdefault("MPICH_OFI_VERBOSE", "1")  # Cray MPICH


def _write(folder: str, name: str, value: object) -> None:
    path = os.path.join(folder, name)
    with open(path + ".partial", "w", encoding="utf-8") as stream:
        json.dump(value, stream)
    os.rename(path + ".partial", path)


def _namespaces() -> dict[str, str]:
    hosts = {}
    for name in ("user", "pid", "ipc", "net"):
        try:
            hosts[name] = os.readlink("/proc/self/ns/" + name)
        except OSError:
            hosts[name] = "unknown"
    try:
        hosts["shm"] = str(os.stat("/dev/shm").st_dev)
    except OSError:
        hosts["shm"] = "none"
    return hosts


def _app_mpi(app: str) -> dict[str, Any]:
    """Where the loader takes the program's MPI from: what `ldd` prints, without a shell."""
    import subprocess  # some programs are scripts, and each import is read from the image again

    environ = dict(os.environ, LD_TRACE_LOADED_OBJECTS="1")
    try:
        done = subprocess.run([app], env=environ, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return {"path": app, "error": str(exc)}
    libraries, lost = [], []
    for line in (done.stdout + done.stderr).splitlines():
        match = re.match(r"\s*(\S+) => (\S.*?)(?: \(0x[0-9a-f]+\))?$", line)
        if match and match.group(2) == "not found":
            lost.append(match.group(1))
        elif match and _is_mpi(match.group(2)):
            libraries.append(_file(match.group(2)))
        elif "version `" in line:
            lost.append(line.strip())
    return {"path": app, "mpi": libraries, "not_found": lost}


def _is_mpi(path: str) -> bool:
    return bool(MPI_FILE.search(path)) and not BINDINGS.search(path)


def _file(path: str) -> dict[str, Any]:
    status = os.stat(path)
    return {"path": os.path.realpath(path), "device": status.st_dev, "inode": status.st_ino}


def _load(spec: dict[str, Any]) -> ctypes.CDLL:
    """Loads MPI as the program will; returns a handle of the library that got mapped."""
    if spec["via"] == "mpi4py":
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI  # noqa: F401
    else:
        for name in spec["names"]:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    mapped = _mapped()
    if not mapped:
        raise OSError("no MPI library is mapped after loading {}".format(spec["names"]))
    return ctypes.CDLL(mapped[0]["path"], mode=ctypes.RTLD_GLOBAL)


def _unexpected(mapped: list[dict[str, Any]], expected: str) -> list[str]:
    """The mapped MPIs that are not the expected file, by whichever path: it may be mounted at several."""
    others = []
    for file in mapped if expected else ():
        try:
            same = os.path.samefile(file["path"], expected)
        except OSError:
            same = False
        if not same:
            others.append(file["path"])
    return others


def _twice() -> list[str]:
    """The libraries that belong to an MPI and of which several files are mapped."""
    paths: dict[str, set[str]] = {}
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:
        for line in stream:
            words = line.split(None, 5)
            match = _PARTS.search(words[5].rstrip("\n")) if len(words) == 6 else None
            if match:
                paths.setdefault(match.group(1), set()).add(words[4])
    return sorted(name for name, inodes in paths.items() if len(inodes) > 1)


def _mapped() -> list[dict[str, Any]]:
    """Every MPI library in this process, each real file once."""
    mapped = {}
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:
        for line in stream:
            words = line.split(None, 5)
            if len(words) == 6:
                path = words[5].rstrip("\n")
                if path.startswith("/") and _is_mpi(path):
                    mapped[(words[3], words[4])] = path
    return [
        {"path": path, "inode": int(inode), "device": device}
        for (device, inode), path in mapped.items()
    ]


class _Mpi:
    """The few MPI calls of a probe, by ctypes, for either way of writing handles."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.lib = library
        self.world: Any
        self.byte: Any
        if hasattr(library, "ompi_mpi_comm_world"):
            self.world, self.byte = (
                ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, name)))
                for name in ("ompi_mpi_comm_world", "ompi_mpi_byte")
            )
        elif "mpi_abi" in library._name:
            self.world, self.byte = ctypes.c_void_p(_MPI5_WORLD), ctypes.c_void_p(_MPI5_BYTE)
        else:
            self.world, self.byte = ctypes.c_int(_MPICH_WORLD), ctypes.c_int(_MPICH_BYTE)

    def start(self, sink_path: str) -> str:
        """MPI_Init and a barrier; returns what the library printed about itself meanwhile."""

        def work() -> None:
            self._init()
            self._call("MPI_Barrier", self.world)

        return _captured(work, sink_path)

    def _init(self) -> None:
        init = self.lib.MPI_Init
        if "|" in os.environ.get("FAIRLEAD_PROOF", ""):
            init = ctypes.CDLL(None).MPI_Init  # the witness of this launch stands before it
        if code := init(None, None):
            raise SystemExit(f"MPI_Init failed with code {code}")

    def agree(self, failed: bool) -> bool:
        """What rank 0 says, on every rank."""
        flag = ctypes.c_ubyte(failed)
        self._call("MPI_Bcast", ctypes.byref(flag), 1, self.byte, 0, self.world)
        return bool(flag.value)

    def stop(self, sink_path: str) -> None:
        """MPI_Finalize; what it prints is not for the user."""
        _captured(lambda: self._call("MPI_Finalize"), sink_path)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.lib, name)(*arguments)
        if code:
            raise SystemExit(f"{name} failed with code {code}")

    def rank_and_size(self) -> tuple[int, int]:
        rank, size = ctypes.c_int(-1), ctypes.c_int(-1)
        self._call("MPI_Comm_rank", self.world, ctypes.byref(rank))
        self._call("MPI_Comm_size", self.world, ctypes.byref(size))
        return rank.value, size.value

    def version(self) -> str:
        text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
        self._call("MPI_Get_library_version", text, ctypes.byref(length))
        return text.value.decode(errors="replace").strip()

    def ring(self, rank: int, size: int) -> bool:
        """Sends 64 KiB to the next rank and checks what came from the one before."""
        count = 65536
        send = (ctypes.c_ubyte * count)(*([rank % 251] * count))
        receive = (ctypes.c_ubyte * count)()
        status = (ctypes.c_int * 64)()
        before, after = (rank - 1) % size, (rank + 1) % size
        self._call(
            "MPI_Sendrecv",
            send, count, self.byte, after, 7,
            receive, count, self.byte, before, 7,
            self.world, status,
        )  # fmt: skip
        return bytes(receive) == bytes([before % 251]) * count

    def gather(self, report: dict[str, Any], rank: int, size: int) -> list[Any] | None:
        """Everybody's report on rank 0, None elsewhere."""
        data = json.dumps(report).encode()
        if len(data) > _RECORD:
            raise SystemExit(f"a rank's report has {len(data)} bytes, more than {_RECORD}")
        send = ctypes.create_string_buffer(data, _RECORD)
        receive = ctypes.create_string_buffer(_RECORD * size) if rank == 0 else None
        self._call(
            "MPI_Gather", send, _RECORD, self.byte, receive, _RECORD, self.byte, 0, self.world
        )
        if receive is None:
            return None
        parts = [receive.raw[i * _RECORD : (i + 1) * _RECORD] for i in range(size)]
        return [json.loads(part.split(b"\0", 1)[0]) for part in parts]


def _captured(work: Callable[[], None], sink_path: str) -> str:
    """Runs ``work`` with descriptors 1 and 2 led to ``sink_path``; returns what was written there.

    A file with a name, because MPI_Abort ends the process inside ``work``: the host reads its last
    words from there.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with open(sink_path, "w+b") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        try:
            work()
        finally:
            ctypes.CDLL(None).fflush(None)
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            os.close(saved[0])
            os.close(saved[1])
        sink.seek(0)
        return sink.read().decode(errors="replace")


def transports(text: str) -> dict[str, Any]:
    """The transports that the library names: ``{"netmod": "ucx", "providers": [...], ...}``."""
    netmod, providers = "", set[str]()
    if "UCX netmod" in text or "ucp_context" in text:
        netmod = "ucx"
        for cell in re.findall(r"(?:self|intra-node|inter-node) cfg#\d+ (.*)", text):
            # `tag(rc_mlx5/mlx5_0:1 cma/memory)`: a transport, and the device that it uses.
            providers.update(re.findall(r"(\w+)/[^\s()]+", cell))
    for match in re.findall(r"MPIDI_OFI\w*.*?provider: ([\w;]+)", text):
        netmod = netmod or "ofi"
        providers.add(match)
    if match := re.search(r"libfabric provider: ([\w;-]+)", text):
        netmod, providers = "ofi", {match.group(1)}
    # Cray MPICH, with MPICH_OFI_VERBOSE=1 (intro_mpi(3)).
    if match := re.search(r"OFI netmod using ([\w;-]+) provider", text):
        netmod, providers = "ofi", {match.group(1)}
    if match := re.search(r"Connection summary: \((\w+)\)", text):
        netmod = match.group(1)
        named = set(re.findall(r"^ +o\w+-host: +all connections are (\w+)$", text, re.M))
        named |= set(re.findall(r"^ +o\w+-host: .* some connections are (\w+)", text, re.M))
        # Where UCX carries its messages, Open MPI names no more than that: UCX itself says what it uses.
        providers = (named - {"ucx"}) | providers if "ucx" in named and providers else named
    if "Load tuning file" in text and "_shm" in text and not providers:
        netmod, providers = "shm", {"shm"}
    return {
        "netmod": netmod,
        "providers": sorted(providers),
        "said": "" if providers else text[:1500],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
