"""`fairlead site compare`: values side by side, contradictions marked, sources numbered."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.main import main


def compared(tmp_path: Path, *words: str) -> str:
    env = {f"XDG_{n}_HOME": str(tmp_path / n) for n in ("CACHE", "CONFIG", "DATA")}
    done = CliRunner().invoke(main, ["site", "compare", *words], env=env, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_contradiction_is_marked_with_its_sites_and_each_value_names_its_source(
    tmp_path: Path,
) -> None:
    shown = compared(tmp_path, "alps", "frontier", "polaris")
    head, body = re.split(r"\nsources\n", shown)
    line = next(x for x in head.splitlines() if x.startswith("FI_CXI_DEFAULT_TX_SIZE"))
    assert line.endswith("contradiction: between sites on slingshot; within alps")
    block = head.split(line)[1].split("\nFI_")[0]
    assert re.search(r"\n  16384  set by alps \[\d+\]; stated by alps \[\d+\]", block)
    assert re.search(
        r"\n  2048   set by frontier \[\d+\]; stated by cray-ex-slingshot \[\d+\]", block
    )
    assert re.search(r"\n  -      not set by polaris", block)
    numbers = set(re.findall(r"\[(\d+)\]", head))
    assert numbers == set(re.findall(r"^  \[(\d+)\]", body, re.MULTILINE))
    assert body.count("read 2026-") == len(numbers)
    assert "HPE, shs-ccl-docs" in body
    assert re.search(
        r"\d+ variables, \d+ with contradictions; compared: alps, frontier, polaris", shown
    )


def test_only_contradictions_are_shown_where_asked(tmp_path: Path) -> None:
    shown = compared(tmp_path, "alps", "frontier", "--contradictions")
    variables = re.findall(r"^[A-Z_]{3,}.*", shown, re.MULTILINE)
    assert len(variables) > 2 and all("contradiction: " in line for line in variables)


def test_without_a_site_all_with_variables_are_compared(tmp_path: Path) -> None:
    said = json.loads(compared(tmp_path, "--json"))
    assert (said["schema"], said["version"]) == ("fairlead/site-compare", 1)
    assert {"alps", "frontier", "perlmutter", "olivia", "isambard-ai"} <= set(said["sites"])
    assert "laptop" not in said["sites"] and "efa" not in said["sites"]
    marked = {v["name"] for v in said["variables"] if v["within"] or v["between"]}
    assert {"FI_CXI_DEFAULT_TX_SIZE", "FI_MR_CACHE_MONITOR", "NCCL_CROSS_NIC"} <= marked
    assert len(marked) == said["contradictions"]


def test_profiles_without_variables_say_so(tmp_path: Path) -> None:
    shown = compared(tmp_path, "laptop")
    assert shown.strip() == "0 variables, 0 with contradictions; compared: laptop"


def test_site_that_is_unknown_is_refused(tmp_path: Path) -> None:
    from tests.unit.runtime.cli.test_cli import call

    code, out, err = call("site", "compare", "alpes", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert code == 2 and not out and "Did you mean `alps`" in err


@pytest.mark.parametrize("columns", ["60", "200"])
def test_lines_keep_to_the_width(
    columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = compared(tmp_path, "alps", "frontier").splitlines()
    assert all(len(x) <= min(int(columns), 120) for x in lines if x.startswith("  "))


def test_words_of_a_profile_steer_no_terminal(tmp_path: Path) -> None:
    profile = tmp_path / "theirs.toml"
    profile.write_text("""[site]
name = "theirs"
summary = "x"
extends = "laptop"
[sources.x]
text = "a \\u001b[31mguide\\u202e"
status = "documented"
read = 2026-11-01
[nccl]
source = "x"
env = { NCCL_PROTO = "\\u202eSimple" }
""")
    shown = compared(tmp_path, str(profile))
    assert "NCCL_PROTO" in shown and "Simple" in shown and "guide" in shown
    assert "\x1b" not in shown and "\u202e" not in shown
