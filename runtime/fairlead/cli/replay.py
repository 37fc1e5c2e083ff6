"""``fairlead replay``: repeats a recorded run, and says what differed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from fairlead.base import bounded_json
from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.base.process import PYTHON
from fairlead.cli.declare import FILE_HERE, FOLDER, FOLDER_HERE, JSON, argument, declared, option
from fairlead.cli.screen import answer, progress, say
from fairlead.image import keys
from fairlead.image.open import open_image
from fairlead.image.sbom_reader import tree_of
from fairlead.record import aside, compare
from fairlead.record import folder as folders
from fairlead.record.code import code_of
from fairlead.record.compare import Difference, Kind
from fairlead.record.data import digest_of, digests
from fairlead.record.folder import Opened
from fairlead.record.gather import machine_facts
from fairlead.record.model import RunRecord
from fairlead.record.secrets import WITHHELD, environment

EPILOG = """\b
Examples:
  fairlead replay run-1
  fairlead replay run-1 --dry-run
  fairlead replay run-1 --folder ~/clone --record run-2
  fairlead replay run-1 --against run-2

\b
Exit codes: 0 same exit code and results; 1 they differ; 121 image, script or inputs are not those of
the record.
"""
_END_S = 60.0  # for a repetition to clear up after a signal


@dataclass(frozen=True, kw_only=True)
class ReplayFlags:
    """The options of ``fairlead replay``."""

    folder: Path | None = option(
        "--folder FOLDER",
        "Run in this folder.  [default: the one that the run was started in]",
        type=FOLDER_HERE,
    )
    image: str = option("--image IMAGE", "Use this image, although it is another one.")
    record: Path | None = option(
        "--record FOLDER", "Keep the record of the repetition in this new folder.", type=FOLDER
    )
    against: Path | None = option(
        "--against OTHER", "Launch nothing; compare with this record.", type=FOLDER
    )
    key: Path | None = option(
        "--key PUB",
        "Accept a signature by this public key, instead of the trusted keys.",
        type=FILE_HERE,
    )
    force: bool = option("--force", "Repeat it although script or inputs have changed.")
    dry_run: bool = option("--dry-run", "Launch nothing; print what differs by now.")
    as_json: bool = JSON


@click.command(epilog=EPILOG)
@declared
def replay(recorded: Path = argument(type=FOLDER, metavar="RECORD"), *, flags: ReplayFlags) -> int:
    """Repeat the run of RECORD, a folder of `fairlead run --record`, and say what differed.

    The signature is verified, if there is one. Image, script and inputs must be those of the record. The
    run's results are set aside meanwhile, and stay; one that the repetition makes differently is kept as
    NAME.replayed.
    """
    named = keys.read_public(flags.key) if flags.key else None
    trusted = {named.id: named} if named else keys.trusted()
    opened = folders.read(recorded.absolute(), trusted)
    if not flags.as_json:
        say(_title(opened))
    if flags.against:
        other = folders.read(flags.against.absolute(), trusted)
        return _answer(
            opened, compare.differences(opened.record, other.record), flags, other.record
        )
    folder = _folder(opened.record, flags)
    line = _line(opened.record, flags)
    changed = tuple(_changed(opened.record, folder, flags.image))
    if flags.dry_run:
        differences = compare.ordered([*changed, *_planned(opened.record, line, folder)])
        return _answer(opened, differences, flags, None)
    decisive = [d for d in changed if d.kind in (Kind.SCRIPT, Kind.INPUT)]
    if decisive and not flags.force:
        raise fail("replay-sources", folder=folder, lines="\n".join(compare.lines(decisive)))
    again = _repeated(opened.record, line, folder, flags)
    return _answer(opened, compare.differences(opened.record, again), flags, again)


def _title(opened: Opened) -> str:
    record = opened.record
    signed = f"signed with key {opened.key}" if opened.key else "not signed"
    how = record.outcome.error or f"exit code {record.outcome.exit_code}"
    return f"record of {record.outcome.began}, {signed}: {shlex.join(record.before.parameters.words)} ({how})"


def _folder(record: RunRecord, flags: ReplayFlags) -> Path:
    place = (flags.folder or Path(record.before.parameters.folder)).absolute()
    if not place.is_dir():
        raise fail("replay-folder", place=place)
    return place


def _line(record: RunRecord, flags: ReplayFlags) -> list[str]:
    """The words behind ``fairlead`` of the repetition, without those on its record."""
    parameters = record.before.parameters
    options = [_given(word) for word in parameters.options]
    for word in (*options, *parameters.command):
        if WITHHELD in word:
            raise fail("replay-withheld", word=word)
    return [*parameters.line(options, flags.image or _image(record))]


def _given(word: str) -> str:
    """A word of ``--env NAME=VALUE`` whose value was withheld, with that of this shell."""
    name, equals, value = word.partition("=")
    return (
        f"{name}={os.environ[name]}"
        if equals and value == WITHHELD and name in os.environ
        else word
    )


def _image(record: RunRecord) -> str:
    """The recorded image: the file, or what has one of its names, with the same content."""
    image = record.before.image
    differences = []
    for name in dict.fromkeys(filter(None, (image.path, image.name, image.recipe))):
        try:
            opened = open_image(name)
        except FairleadError as exc:
            differences.append(f"{name}: {exc.findings[0].what}")
            continue
        digest = opened.digest or tree_of(opened)
        if digest == (image.sha256 or image.tree_sha256):
            return name
        differences.append(f"{name}: sha256 {digest[:16]}…")
    get = f"fairlead build {image.recipe}" if image.recipe else f"fairlead pull {image.name}"
    if image.lock_sha256:
        get += f", whose lock must have sha256 {image.lock_sha256[:16]}…"
    digest = image.sha256 or image.tree_sha256
    raise fail("replay-image", image=image, digest=digest, found="\n".join(differences), get=get)


def _changed(record: RunRecord, folder: Path, image: str) -> Iterator[Difference]:
    """What of the run's sources is another by now."""
    before = record.before
    if image:
        opened = open_image(image)
        yield from compare.image(before, opened.digest or tree_of(opened))
    if before.script:
        script = digest_of(before.script.name, folder)
        yield from compare.data(Kind.SCRIPT, [before.script], [script])
    names = (data.name for data in before.inputs)
    inputs = digests(names, folder, "read the inputs", progress(False))
    yield from compare.data(Kind.INPUT, before.inputs, inputs)
    place = (folder / before.script.name).parent if before.script else folder
    yield from compare.code(before.code, code_of(place))


def _planned(record: RunRecord, line: list[str], folder: Path) -> Iterator[Difference]:
    """What differs in the plan of a launch here."""
    verb, *rest = line
    words = [*PYTHON, "-m", "fairlead", verb, "--dry-run", "--json", *rest]
    done = subprocess.run(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False
    )
    try:
        document = bounded_json.loads(done.stdout)
        mpi, engine = document["mpi"], document["engine"]
        now: dict[str, str] = {
            "site": document["site"]["name"],
            "engine": f"{engine['kind']} {engine['version']}".strip(),
            "launcher": document["launcher"]["title"],
            **machine_facts(),
        }
    except (ValueError, LookupError, TypeError):
        raise fail("replay-unrecorded", line=shlex.join(words), status=done.returncode) from None
    planned = f"{mpi['planned']} ({mpi['mode']})"
    shell = environment(os.environ, {}, record.before.environment.shell).shell
    yield from compare.planned(record.before, planned, now, shell)


def _repeated(record: RunRecord, line: list[str], folder: Path, flags: ReplayFlags) -> RunRecord:
    """The record of the repetition."""
    before, (verb, *rest) = record.before, line
    files = [data for data in record.results if data.kind != "weights"]
    with tempfile.TemporaryDirectory(prefix="fairlead-replay-") as temporary:
        place = flags.record.absolute() if flags.record else Path(temporary, "record")
        own = ["--record", str(place)]
        own += [word for data in before.inputs for word in ("--input", data.name)]
        own += [word for data in files for word in ("--result", data.name)]
        own += ["-o", str(Path(temporary, "report"))] if verb == "train" else []
        words = [*PYTHON, "-m", "fairlead", verb, *own, *rest]
        with aside.set_aside(files, folder):
            code = _run(words, folder, to_stderr=flags.as_json)
        if not folders.is_record(place):
            raise fail("replay-unrecorded", line=shlex.join(words[2:]), status=code)
        again = folders.read(place, None).record
    recorded = {data.name: data.sha256 for data in files}
    same = [data.name for data in again.results if data.sha256 == recorded.get(data.name)]
    aside.drop_equal(same, folder)
    return again


def _run(words: Sequence[str], folder: Path, *, to_stderr: bool) -> int:
    """Runs it to its end; returns its exit code. A signal for this process ends it first."""
    process = subprocess.Popen(
        words,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if to_stderr else None,
        process_group=0,  # Ctrl-C comes here alone, and is passed on once
    )
    try:
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _answer(
    opened: Opened, differences: Sequence[Difference], flags: ReplayFlags, again: RunRecord | None
) -> int:
    """Shows what differs; the exit code."""
    outcomes = [difference for difference in differences if difference.kind in compare.OUTCOMES]
    sources = [difference for difference in differences if difference.kind in compare.SOURCES]
    record = opened.record
    document = {
        "record": opened.path,
        "signed_by": opened.key or None,
        "dry_run": flags.dry_run,
        "same": not outcomes if again else None,
        "differences": differences,
        "results": [data.name for data in record.results],
        "seconds": {
            "recorded": record.outcome.seconds,
            "now": again.outcome.seconds if again else None,
        },
    }
    answer(
        flags.as_json,
        "replay",
        document,
        "\n".join([_verdict(record, again, outcomes), *compare.lines(differences)]),
    )
    if again is None:
        return ExitCode.PREFLIGHT_REFUSED if sources else ExitCode.DONE
    return ExitCode.FAILED if outcomes else ExitCode.DONE


def _verdict(record: RunRecord, again: RunRecord | None, outcomes: Sequence[Difference]) -> str:
    if again is None:
        return "would be repeated; what differs from the recorded run by now:"
    took = f"{again.outcome.seconds:.1f} s, recorded {record.outcome.seconds:.1f} s"
    code, count = again.outcome.exit_code, len(record.results)
    if outcomes:
        names = ", ".join(dict.fromkeys(difference.name for difference in outcomes))
        return f"differs: {names} ({took})"
    if not count:
        return f"same: exit code {code}; the record names no results (--result) to compare ({took})"
    return f"same: exit code {code}, {count} result{'s' * (count > 1)} byte for byte ({took})"
