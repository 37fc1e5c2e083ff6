"""The folder of a search, kept at a URL as well: checkpoints and records of trials, and the journal of the study.

The files of a trial are there before the study knows that it has ended, and the journal after that: what the journal at the
URL says is there, whenever the tuner is killed. A search whose folder is lost goes on from there.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, Finding, fail
from fairlead.base.paths import atomic_write
from fairlead.objects import workers
from fairlead.objects.budget import Budget
from fairlead.objects.dataset import Folder, Prefix
from fairlead.objects.names import check_storable
from fairlead.objects.registry import open_store
from fairlead.objects.send import Source, check_target, upload
from fairlead.objects.sync import copy
from fairlead.transfer import tree
from fairlead.transfer.job import however_it_ends
from fairlead.transfer.model import Links
from fairlead.transfer.remote import sources_of
from fairlead.tune.launcher import LOCK, outcome_of
from fairlead.tune.study import JOURNAL, alone, has_flock

_ID = "search.json"  # says which search a folder or prefix is of
_LOCK = "artifacts.lock"
_TRIALS = "trials"


def identity(content: bytes) -> object:
    """Which search the files belong to; None if the content names none."""
    try:
        return bounded_json.loads(content)
    except ValueError:
        return None


class Artifacts:
    """A folder and its URL.

    Attributes:
        findings: what the end came to.
    """

    def __init__(self, folder: Path, url: str):
        self._folder, self._url = folder, url
        self._store = open_store(url)
        self._there: dict[int, set[str]] = defaultdict(set)  # names below the folder, by trial
        self._due: set[int] = set()  # trials that are not there yet
        self._gone: set[str] = set()  # names that are to go there
        self._pool = ThreadPoolExecutor(1, "artifacts")
        self.findings: list[Finding] = []

    def begin(self) -> None:
        """Sees that folder and URL are of one search; brings what only the URL has.

        Raises:
            FairleadError: exit code 2; they are not, or the URL is of something else, or ahead; it cannot be reached.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            files = Prefix(self._store).files()
            for name in files:
                self._note(name)
            if _ID not in files:
                check_target(self._store)
                self._begin_there()
                return
            theirs = identity(Prefix(self._store).small(files[_ID]))
            mine = self._mine()
            if mine is None and not (self._folder / JOURNAL).exists():
                mine = theirs
            if not theirs or mine != theirs:
                raise fail("tune-artifacts-other", folder=self._folder, url=self._url)
            journal = self._folder / JOURNAL
            if journal.exists() and JOURNAL in files:
                here = journal.stat().st_size
                if files[JOURNAL].bytes > here:
                    raise fail("tune-artifacts-ahead", folder=self._folder, url=self._url)
            self._bring([name for name in files if not os.path.lexists(self._folder / name)])

    def _alone(self) -> AbstractContextManager[None]:
        """One tuner at a time."""
        return alone(self._folder / _LOCK, has_flock(self._folder / _LOCK))

    def _mine(self) -> object:
        path = self._folder / _ID
        return identity(path.read_bytes()) if path.exists() else None

    def _begin_there(self) -> None:
        if self._mine() is None:
            with atomic_write(self._folder / _ID, "w") as stream:
                json.dump({"search": os.urandom(16).hex()}, stream)
        path = self._folder / _ID
        upload(self._store, [Source(_ID, str(path), path.stat().st_size)])
        # Of a search that has begun without a URL.
        self._due |= {int(path.name) for path in self._trials() if outcome_of(path) is not None}

    def _trials(self) -> Sequence[Path]:
        top = self._folder / _TRIALS
        return sorted(top.iterdir()) if top.is_dir() else ()

    def _bring(self, names: Sequence[str]) -> None:
        # In this order: what has its place is not brought again, and the journal speaks of all the rest.
        last = [name for name in (_ID, JOURNAL) if name in names]
        names = [*(name for name in names if name not in last), *last]
        copy(
            Prefix(self._store), Folder(self._folder), names, defaultdict(str), Budget(0), lambda count: None
        )  # fmt: skip

    def _note(self, name: str) -> None:
        top, _, below = name.partition("/")
        number = below.partition("/")[0]
        if top == _TRIALS and number.isdigit():
            self._there[int(number)].add(name)

    def sent(self, number: int) -> Future[None]:
        """Sends the files of a trial that has ended, in a thread; its result is an error where that fails."""
        return self._pool.submit(self._send, number)

    def _send(self, number: int) -> None:
        self._due.add(number)
        name = f"{_TRIALS}/{number:05}"
        scanned = tree.scan(str(self._folder / name), Links.KEEP, leave_special=True)
        sources = [
            replace(source, name=f"{name}/{source.name}")
            for source in sources_of(scanned)
            if source.name != LOCK and not source.name.endswith("/")
        ]
        check_storable(self._url, [source.name for source in sources])
        upload(self._store, sources)
        self._there[number] |= {source.name for source in sources}
        self._due.discard(number)

    def study_changed(self) -> None:
        """Sends the journal, in a thread: the study knows more."""
        self._pool.submit(self._send_journal)

    def _send_journal(self) -> None:
        """Its whole lines; other tuners may write meanwhile."""
        journal = self._folder / JOURNAL
        with self._alone(), tempfile.NamedTemporaryFile() as kept:
            if not journal.exists() or self._due:
                return
            content = journal.read_bytes()
            kept.write(content[: content.rfind(b"\n") + 1])
            kept.flush()
            upload(self._store, [Source(JOURNAL, kept.name, kept.tell())])

    def discard(self, number: int) -> None:
        """Removes at the URL, in a thread, what the folder of a trial no longer has."""
        gone = [name for name in self._there[number] if not os.path.lexists(self._folder / name)]
        if gone:
            self._there[number].difference_update(gone)
            self._gone.update(gone)
            self._pool.submit(self._remove)

    def _remove(self) -> None:
        for name in sorted(self._gone):
            workers.tried_again(functools.partial(self._store.delete, name))
            self._gone.discard(name)

    def end(self) -> None:
        """Sends what is left to send: trials that could not be sent, the journal and the reports."""
        try:
            self._pool.shutdown()
            for number in sorted(self._due):
                self._send(number)
            self._remove()
            self._send_journal()
            reports = [
                Source(path.name, str(path), path.stat().st_size)
                for path in sorted(self._folder.iterdir())
                if path.is_file() and path.name != JOURNAL and path.suffix != ".lock"
            ]
            upload(self._store, reports)
        except FairleadError as exc:
            self.findings += exc.findings


@contextmanager
def kept(
    folder: Path, url: str, on_interrupt: Callable[[Sequence[Finding]], None]
) -> Iterator[Artifacts | None]:
    """Around a search: its folder is kept at a URL; None without one.

    Raises:
        FairleadError: as :meth:`Artifacts.begin`.
    """
    if not url:
        yield None
        return
    artifacts = Artifacts(folder, url)
    artifacts.begin()
    with however_it_ends(artifacts.end, artifacts.findings, on_interrupt):
        yield artifacts
