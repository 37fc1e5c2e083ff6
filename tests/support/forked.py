"""The command line in a fork of this process: all that a process of its own has, without starting Python again."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from subprocess import CompletedProcess


def fairlead(
    words: Sequence[str], environ: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """``fairlead WORDS`` with ``environ`` (this process's), and what it wrote."""
    from fairlead.cli.main import entry

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = os.fork()
        if pid == 0:
            _become(entry, list(words), environ, out.fileno(), err.fileno())
        _, status = os.waitpid(pid, 0)
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return CompletedProcess(["fairlead", *words], code, out.read(), err.read())


def _become(entry, words, environ, out: int, err: int) -> None:  # type: ignore[no-untyped-def]
    """Never returns: the fork must not go on as pytest."""
    code: object = 1
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        if environ is not None:
            os.environ.clear()
            os.environ.update(environ)
        sys.argv = ["fairlead", *words]
        code = entry()
    except SystemExit as exc:
        code = exc.code
    except BaseException:  # as the interpreter would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else bool(code))
