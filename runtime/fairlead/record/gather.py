"""What a record says of a launch: gathered from its plan before, and from its ranks' notes after."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead import __version__
from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.base.progress import Progress
from fairlead.base.system import Machine
from fairlead.image.open import Image
from fairlead.image.sbom_reader import materials_of, tree_of
from fairlead.proof.verdict import Proof
from fairlead.record import secrets
from fairlead.record.code import code_of
from fairlead.record.data import digest_of, digests
from fairlead.record.model import (
    Before,
    Data,
    HostFacts,
    ImageUsed,
    Library,
    Mpi,
    OtherLibraries,
    Parameters,
    RankGroup,
    Ranks,
    ranges,
)
from fairlead.schedulers.model import Allocation
from fairlead.session.model import Prepared
from fairlead.swap import staging
from fairlead.swap.model import CARRIED_MOUNT, MOUNT, NCCL_MOUNT, ROOM, Plan

MAPS = "FAIRLEAD_PROOF_MAPS"  # asks the witness for what ranks map
_MOST_LISTS = 64  # of mapped files: they differ where ranks load what they have compiled themselves


@dataclass(frozen=True)
class Asked:
    """What the user has asked for.

    Attributes:
        inputs: files and folders that the run reads.
        variables: of ``--env``.
    """

    options: tuple[str, ...]
    image: str
    command: tuple[str, ...]
    inputs: tuple[str, ...]
    variables: Mapping[str, str]
    results: tuple[str, ...] = ()
    verb: str = "run"


@dataclass(frozen=True)
class Attached:
    """What lies in the record next to it: the image's bill of materials and lock, compressed; None where there is none."""

    sbom: bytes | None
    lock: bytes | None


def before(
    prepared: Prepared, asked: Asked, allocation: Allocation | None, progress: Progress,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Before, Attached]:  # fmt: skip
    """What is known before the launch.

    Raises:
        FairleadError: exit code 2; an input is absent, or cannot be read.
    """
    plan, folder = prepared.plan, Path.cwd()
    script = script_of(asked.command, folder, asked.results) if asked.verb == "run" else None
    inputs = digests(asked.inputs, folder, "read the inputs", progress)
    if absent := next((data for data in inputs if data.kind == "absent"), None):
        raise fail("record-input-absent", name=absent.name, path=absent.path)
    attached, sbom_sha256 = _attached(prepared.image, environ)
    options, command = secrets.words(asked.options), secrets.words(asked.command)
    state = Before(
        image=_image(prepared, sbom_sha256, environ, progress),
        parameters=Parameters(options, secrets.text(asked.image), command, str(folder), asked.verb),
        script=script,
        code=code_of(Path(script.path).parent if script else folder),
        inputs=inputs,
        environment=secrets.environment(environ, {**plan.env, **asked.variables}, asked.variables),
        host=host_facts(plan, allocation, environ),
        mpi=Mpi(plan.mode, plan.planned_title, plan.planned_file),
        fairlead=__version__,
    )
    return state, attached


def script_of(command: Sequence[str], folder: Path, results: Sequence[str] = ()) -> Data | None:
    """The first word of a command that is a file of this machine, and no result."""
    for word in command:
        if word.startswith("-") or word in results or "\0" in word:
            continue
        with suppress(OSError):
            if (folder / word).is_file() and ("/" in word or "." in word or word != command[0]):
                return digest_of(word, folder)
    return None


def host_facts(
    plan: Plan, allocation: Allocation | None, environ: Mapping[str, str] = os.environ
) -> HostFacts:
    """The machine, and what of it the plan uses."""
    engine = plan.engine
    return HostFacts(
        **machine_facts(environ),
        site=plan.site.name,
        engine=f"{engine.kind} {engine.version}".strip(),
        launcher=plan.launcher.title,
        scheduler=allocation.scheduler if allocation else "",
        job=allocation.job if allocation else "",
        user=Machine(environ).user,
    )


def machine_facts(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of :class:`HostFacts`, what is known without a plan."""
    machine = Machine(environ)
    kernel, arch = machine.kernel
    return {
        "name": machine.hostname,
        "os": _of_file(machine, "/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)'),
        "kernel": kernel,
        "arch": arch,
        "processor": _of_file(machine, "/proc/cpuinfo", r"^model name\s*: (.*)"),
    }


def _of_file(machine: Machine, path: str, pattern: str) -> str:
    match = re.search(pattern, machine.read(path) or "", re.M)
    return match[1].strip() if match else ""


def _image(
    prepared: Prepared, sbom_sha256: str, environ: Mapping[str, str], progress: Progress
) -> ImageUsed:
    image = prepared.image
    tree = str(image.record.get("tree_sha256", ""))
    if not image.digest:  # a folder, which may have changed since its record
        tree = tree_of(image, environ, progress)
    return ImageUsed(
        name=secrets.text(image.name),
        path=image.path,
        format=image.format,
        sha256=image.digest,
        tree_sha256=tree,
        recipe=str(image.record.get("recipe", "")),
        lock_sha256=str(image.record.get("lock_sha256", "")),
        sbom_sha256=sbom_sha256,
        signed_by=prepared.verified.key if prepared.verified else "",
    )


def _attached(image: Image, environ: Mapping[str, str]) -> tuple[Attached, str]:
    """Bill of materials and lock of an image, and the digest of the former. A look into an image takes long: it is kept."""
    kept = cache_dir(environ) / "facts" / f"sbom-{image.digest}.json.gz"
    sbom = b""
    if image.digest:
        with suppress(OSError, ValueError, EOFError):
            sbom = gzip.decompress(kept.read_bytes())
    if not sbom:
        with suppress(FairleadError):  # a machine that cannot look into images
            sbom = materials_of(image, environ).encode()
        if image.digest and sbom:
            with suppress(OSError), atomic_write(kept) as out:
                out.write(_packed(sbom))
    lock = _lock_of(image, environ)
    attached = Attached(_packed(sbom) if sbom else None, _packed(lock) if lock else None)
    return attached, hashlib.sha256(sbom).hexdigest() if sbom else ""


def _packed(text: bytes) -> bytes:
    return gzip.compress(text, 9, mtime=0)


def _lock_of(image: Image, environ: Mapping[str, str]) -> bytes:
    """The lock that an image was built from, where this machine still has it; an image holds its digest only."""
    wanted, recipe = image.record.get("lock_sha256"), str(image.record.get("recipe", ""))
    index = cache_dir(environ) / "images/by-name"
    for path in index.glob(f"{recipe.split(':')[0]}*.json") if wanted and recipe else ():
        with suppress(OSError, ValueError, KeyError, TypeError):
            folder = Path(bounded_json.loads(path.read_bytes())["recipe_path"])
            for lock in folder.glob("lock*.toml"):
                text = lock.read_bytes()
                if hashlib.sha256(text).hexdigest() == wanted:
                    return text
    return b""


def ranks_of(
    plan: Plan, count: int, proof: Proof | None, folder: Path | None, cache: Path
) -> Ranks:
    """What the ranks have seen, those together that have seen the same.

    Args:
        folder: the run's, with their notes; None if nothing was launched.
    """
    groups: dict[tuple[str, str, str, tuple[str, ...]], list[int]] = defaultdict(list)
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank in proof.ranks if proof else ():
        hosts[rank.host].append(rank.rank)
        groups[rank.mpi_path, rank.version, rank.transport, rank.devices].append(rank.rank)
    mapped, unlisted = _mapped(folder) if folder else ({}, [])
    counts: Counter[str] = Counter()
    for files, numbers in mapped.items():
        counts.update(dict.fromkeys(files, len(numbers)))
    half = sum(map(len, mapped.values())) / 2
    most = frozenset(path for path, n in counts.items() if n > half)
    name = _namer(plan, cache)
    return Ranks(
        count=count,
        proved=proof.holds if proof else None,
        hosts={host: ranges(numbers) for host, numbers in sorted(hosts.items())},
        groups=tuple(RankGroup(ranges(numbers), *observed) for observed, numbers in groups.items()),
        libraries=tuple(map(name, sorted(most))),
        others=tuple(
            OtherLibraries(ranges(ranks), tuple(sorted(files - most)), tuple(sorted(most - files)))
            for files, ranks in sorted(mapped.items(), key=lambda pair: min(pair[1]))
            if files != most
        ),
        unlisted=ranges(unlisted),
    )


def _mapped(folder: Path) -> tuple[dict[frozenset[str], list[int]], list[int]]:
    """The ranks by the files that they have mapped, as the witness has noted them; and those whose list was not read."""
    by_hash: dict[str, list[int]] = defaultdict(list)
    for name in os.listdir(folder):  # noqa: PTH208 (a thousand paths would cost more than their content)
        kind, _, rank = name.partition(".")
        if kind != "maps" or not rank.isdecimal():
            continue
        with suppress(OSError, ValueError), open(f"{folder}/{name}", encoding="utf-8") as stream:
            _, key = stream.read(64).split()
            if key.isalnum():
                by_hash[key].append(int(rank))
    ranks_by_files: dict[frozenset[str], list[int]] = defaultdict(list)
    keys = sorted(by_hash, key=lambda key: (-len(by_hash[key]), min(by_hash[key])))
    for key in keys[:_MOST_LISTS]:
        with suppress(OSError):
            lines = (folder / f"code.{key}").read_text("utf-8", "replace").splitlines()
            ranks_by_files[frozenset(line.removesuffix(" (deleted)") for line in lines)] += by_hash[
                key
            ]
    return ranks_by_files, [rank for key in keys[_MOST_LISTS:] for rank in by_hash[key]]


def _namer(plan: Plan, cache: Path) -> Callable[[str], Library]:
    """What makes a :class:`Library` of a path that ranks map."""
    staged: dict[str, str] = {}
    for mount, part in (
        (MOUNT, plan.staging),
        (NCCL_MOUNT, plan.nccl_staging),
        (CARRIED_MOUNT, plan.carried_staging),
    ):
        for target, sha256 in staging.digests(part, cache).items() if part else ():
            staged[f"{mount}/{target}"] = sha256
    if plan.host and plan.staging:  # it is shown over files of the image
        own = staged.get(f"{MOUNT}/lib/{plan.host.library.soname}", "")
        staged |= dict.fromkeys(plan.bound, own)
    binds = (bind.target.rstrip("/") for bind in (*plan.binds, *plan.request.binds))
    bound = tuple(f"{target}/" for target in binds if not target.startswith(ROOM))

    def name(path: str) -> Library:
        if path in staged or path.startswith(f"{ROOM}/"):
            return Library(path, "host", staged.get(path, ""))
        return Library(path, "bound" if path.startswith(bound) else "image")

    return name
