"""What becomes of the shell's variables for Python in a container."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.recorded import CACHE, HYDRA, ROOT_ENGINE, SITE, host, image

from fairlead.cli.options import Planning
from fairlead.swap.model import Inputs, Plan, Request
from fairlead.swap.plan import plan
from fairlead.swap.shell_python import PASSED, REMOVED, sort

PAGE = Path(__file__).parents[4] / "docs/howto/swap.md"


def planned(request: Request) -> Plan:
    return plan(Inputs("/no.sif", image(), host(), HYDRA, SITE, ROOT_ENGINE, request, CACHE))


def lines_of(made: Plan) -> dict[str, str]:
    return {line.what: line.why for line in made.lines if "PYTHON" in line.what}


def test_every_variable_that_python_documents_is_in_one_table() -> None:
    line = [sys.executable, "--help-env"]
    text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    documented = set(re.findall(r"PYTHON[A-Z0-9]+", text))
    assert len(documented) > 20 and documented <= REMOVED.keys() | PASSED
    assert not REMOVED.keys() & PASSED


def test_page_lists_the_removed_ones() -> None:
    row = next(line for line in PAGE.read_text().splitlines() if "`PYTHONHOME`" in line)
    row = row.split("|")[1]
    assert set(re.findall(r"`([A-Z_]+)`", row)) == REMOVED.keys()


def test_places_of_this_machine_are_removed_and_the_rest_is_passed() -> None:
    found = sort(
        {
            "PYTHONPATH": "lib", "PYTHONHASHSEED": "3", "PYTHONWARNINGS": "error", "VIRTUAL_ENV": "/v",
            "PYTHON_NEW": "1", "PYTHON_PLACE": "/opt/x", "PYTHONBREAKPOINT": "a/b", "HOME": "/root",
        }
    )  # fmt: skip
    assert found.removed == ("PYTHONPATH", "PYTHON_PLACE", "VIRTUAL_ENV")
    passed = {"PYTHONBREAKPOINT": "a/b", "PYTHONHASHSEED": "3", "PYTHONWARNINGS": "error"}
    assert dict(found.passed) == {**passed, "PYTHON_NEW": "1"}


def test_plan_shows_what_is_passed_and_what_is_not() -> None:
    environ = {"PYTHONHASHSEED": "0", "PYTHONHOME": "/usr"}
    made = planned(Planning(apps=(), binds=(), engine_args=()).request(2, environ=environ))
    assert made.unset == ("PYTHONHOME",) and made.env["PYTHONHASHSEED"] == "0"
    shown = lines_of(made)
    assert shown["PYTHONHASHSEED=0"] == "set in this shell"
    assert "names an installation of this machine" in shown["PYTHONHOME"]
