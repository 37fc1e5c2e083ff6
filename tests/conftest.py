"""``--results=FILE``: the outcome of every test as JSON, merged into what the file has, for ``make test-full``.

``--update``: golden files are rewritten instead of compared.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests import outcomes

from fairlead import __version__
from fairlead.base.paths import atomic_write
from fairlead.engines.apptainer import private_apptainer
from fairlead.launch import shm_cleanup

# Machines are shared: how long an example takes says nothing. A test that takes a fixture makes a folder for each example.
_COMMON = settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.function_scoped_fixture,
    ],
)
settings.register_profile("shared", _COMMON, max_examples=30)
# `make test` tries the same examples each time, so that a change is judged by what it changed;
# `make test-full`, and pytest by hand, look for new ones.
settings.register_profile("fixed", _COMMON, max_examples=30, derandomize=True)
settings.register_profile("thorough", _COMMON, max_examples=300)
settings.load_profile("shared")


class _Seen:
    """What a session has seen: reports of outcomes, also of pytest-xdist's workers, and the names of all tests.

    Attributes:
        names: None where workers have looked for tests.
    """

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []
        self.names: set[str] | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.reports.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.names = {item.nodeid for item in items}


_SEEN = pytest.StashKey[_Seen]()
_BEGUN = pytest.StashKey[float]()
_COMMIT = pytest.StashKey[str]()
_MEMORY = pytest.StashKey[frozenset[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="write every test's outcome to this JSON file")
    parser.addoption("--update", action="store_true", help="rewrite golden files")


def pytest_configure(config: pytest.Config) -> None:
    # Programs of tests inherit these: a shell starts background jobs with SIGINT and SIGQUIT ignored, nohup with
    # SIGHUP, a batch system may block signals, and a login may have a umask of its own.
    defaults = {signal.SIGINT: signal.default_int_handler}
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, defaults.get(number, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    # fairlead hands the shell's PYTHONUNBUFFERED and the like on to ranks, where lines would mix.
    for name in [n for n in os.environ if n.startswith("PYTHON") and n != "PYTHONPATH"]:
        del os.environ[name]
    _put_apptainer_first(config)
    config.stash[_SEEN] = _Seen()
    config.pluginmanager.register(config.stash[_SEEN])
    config.stash[_BEGUN] = time.time()
    config.stash[_COMMIT] = (
        outcomes.commit(config.rootpath) if config.getoption("--results") else ""
    )
    config.stash[_MEMORY] = shm_cleanup.listing()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: more than there are cores, since many tests wait for a process that they have started."""
    return len(os.sched_getaffinity(0)) + 2


def _put_apptainer_first(config: pytest.Config) -> None:
    """The engine of the tests is the Apptainer of `make setup`, also where a Singularity is on PATH, which would win."""
    private = private_apptainer()
    if shutil.which("singularity") and not shutil.which("apptainer") and private.exists():
        folder = tempfile.TemporaryDirectory(prefix="fairlead-tests-path-")
        config.add_cleanup(folder.cleanup)
        Path(folder.name, "apptainer").symlink_to(private)
        os.environ["PATH"] = f"{folder.name}:{os.environ['PATH']}"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return  # pytest-xdist's; others of its workers still run ranks
    # Some tests kill ranks that were started without fairlead, which would have cleaned up.
    shm_cleanup.clear(session.config.stash[_MEMORY])
    path: Path | None = session.config.getoption("--results")
    if path is None:
        return
    begun = session.config.stash[_BEGUN]
    run = {
        "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun)),
        "duration_s": round(time.time() - begun, 1),
        "exit_code": int(exitstatus),
        "commit": session.config.stash[_COMMIT],
        "fairlead": __version__,
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "python": platform.python_version(),
    }
    seen = session.config.stash[_SEEN]
    rows = [
        {"test": r.nodeid, "outcome": r.outcome, "duration_s": round(r.duration, 2)}
        for r in seen.reports
    ]
    asked = session.config.args_source is pytest.Config.ArgsSource.ARGS
    whole = not asked and not session.config.option.keyword
    known = seen.names if whole else None
    document = outcomes.merged(outcomes.read(path), run, rows, known)
    with atomic_write(path, "w") as stream:
        json.dump(document, stream, indent=1)
        stream.write("\n")
