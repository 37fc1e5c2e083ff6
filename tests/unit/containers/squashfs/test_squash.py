"""Tools behind pipes: whatever they write, and whichever is killed, nothing waits forever."""

from __future__ import annotations

import os
import signal
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead_build.base import proc
from fairlead_build.squashfs import squash
from fairlead_build.squashfs.squash import Compression, squashing
from fairlead_build.tools import tool_tree

HOW = Compression("gzip", 1, 0)
MORE_THAN_A_PIPE_HOLDS = "i=0; while [ $i -lt 3000 ]; do echo 'skipping a socket, of which there are many' >&2; i=$((i+1)); done"


def ends(action: Callable[[], object]) -> BaseException | None:
    """What an action raises; the test fails if it does not end."""
    raised: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits for ever"
    return raised[0] if raised else None


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell command in the place of the writer."""

    def put(script: str) -> None:
        monkeypatch.setattr(tool_tree, "command", lambda name, cache: ["sh", "-c", script, name])

    return put


def into(target: Path, work: Callable[[squash.Sink], object]) -> Callable[[], None]:
    def act() -> None:
        with squashing(target, HOW, "run it again") as sink:
            work(sink)

    return act


def test_writer_that_complains_about_every_file_is_read(
    tmp_path: Path, writer: Callable[[str], None]
) -> None:
    writer(f"{MORE_THAN_A_PIPE_HOLDS}; cat >/dev/null")
    assert ends(into(tmp_path / "a", lambda sink: sink.write(bytes(1 << 20)))) is None
    writer(f"{MORE_THAN_A_PIPE_HOLDS}; cat >/dev/null; echo 'the last words' >&2; exit 3")
    wrong = ends(into(tmp_path / "a", lambda sink: sink.write(bytes(1 << 20))))
    assert isinstance(wrong, FairleadError) and wrong.findings[0].why.endswith("the last words")


def test_pipe_that_breaks_elsewhere_in_the_block_ends_the_writer(
    tmp_path: Path, writer: Callable[[str], None]
) -> None:
    """As when a process that is given something in the block is killed."""
    writer("cat >/dev/null")

    def broken(sink: squash.Sink) -> None:
        sink.write(b"x")
        reads, writes = os.pipe()
        os.close(reads)
        try:
            os.write(writes, b"x")
        finally:
            os.close(writes)

    wrong = ends(into(tmp_path / "a", broken))
    assert type(wrong) is BrokenPipeError  # and not what the writer would have said


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_writer_that_is_killed_is_reported(
    tmp_path: Path, writer: Callable[[str], None], number: int
) -> None:
    writer(f"kill -{int(number)} $$; sleep 100")

    def much(sink: squash.Sink) -> None:
        for _ in range(100):
            sink.write(bytes(1 << 20))

    wrong = ends(into(tmp_path / "a", much))
    assert isinstance(wrong, FairleadError)
    assert wrong.findings[0].why == f"it was killed by signal {int(number)}"


def test_reader_that_complains_about_every_file_is_read() -> None:
    def read(end: str) -> Callable[[], None]:
        def act() -> None:
            words = ["sh", "-c", f"{MORE_THAN_A_PIPE_HOLDS}; echo content{end}"]
            with proc.piped(words, doing="read it", remedy="none") as stream:
                assert stream.read() == b"content\n"

        return act

    assert ends(read("")) is None
    assert isinstance(ends(read("; exit 4")), FairleadError)


def test_reader_whose_output_is_no_tar_is_reported_by_its_own_words() -> None:
    def act() -> None:
        words = ["sh", "-c", "echo content; echo 'the image is damaged' >&2"]
        with proc.piped(words, doing="read it", remedy="none") as stream:
            raise tarfile.ReadError(stream.read().decode())

    wrong = ends(act)
    assert isinstance(wrong, FairleadError) and "the image is damaged" in wrong.findings[0].why
