"""The documentation's site: it builds strictly, needs nothing from other hosts, and has both APIs whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import comm

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / room) for room in ("", "runtime", "containers"))
HEADER = ROOT / "runtime/native/include/fairlead_comm.h"


def _build(site: Path, *more: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site), *more],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": PATHS, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = _build(folder)
    assert done.returncode == 0, done.stdout
    return folder


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//[^"']+""")
    sheets = re.compile(r"""<link\b[^>]*\bhref=["'](?:https?:)?//[^"']+""")
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not loads.findall(text) and not sheets.findall(text), page


def test_search_works_without_a_server(site: Path) -> None:
    assert "MPICH" in (site / "search/search_index.js").read_text()
    assert (site / "assets/iframe-worker.js").is_file()


def test_site_has_every_name_of_the_python_api(site: Path) -> None:
    text = (site / "reference/python-api.html").read_text()
    ids = set(re.findall(r'id="([\w.]+)"', text))
    assert {f"fairlead.comm.{name}" for name in comm.__all__} <= ids
    assert {"fairlead.comm.Comm.team", "fairlead.prove.main"} <= ids
    assert ":func:`" not in text and ":class:`" not in text


def test_site_shows_every_call_of_the_header(site: Path) -> None:
    declared = set(re.findall(r"\b(fairlead_comm_\w+)\(", HEADER.read_text()))
    page = (site / "reference/c-api.html").read_text()
    assert len(declared) >= 20
    assert declared <= set(re.findall(r"\b(fairlead_comm_\w+)", page))
    named = (ROOT / "docs/reference/c-api.md").read_text()
    assert set(re.findall(r"`(fairlead_comm_\w+)", named)) <= declared


def test_site_shows_the_header_itself(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference/c-api.html").read_text())
    assert "int fairlead_comm_while_waiting(int (*go_on)(void));" in text


def test_site_has_the_options_of_the_program_and_the_keys_of_the_schema(site: Path) -> None:
    commands = (site / "reference/command-line.html").read_text()
    assert 'id="fairlead-site-export"' in commands and "<code>--ranks-per-node</code>" in commands
    assert "FAIRLEAD_COMM_STALL_S" in commands
    assert 'id="fabric"' in (site / "reference/site-profile.html").read_text()


def test_broken_links_fail_the_build(tmp_path: Path) -> None:
    for name in ("tools", "runtime", "examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    config = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(config.partition("\nnav:\n")[0])
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs/index.md"
    broken = ("no.md", "../README.txt", "index.md#nowhere")
    page.write_text("# Home\n\n" + "".join(f"[a]({link})\n" for link in broken))
    refused = _build(tmp_path / "site", cwd=tmp_path)
    assert refused.returncode != 0
    assert all(f"contains a link '{link}'" in refused.stdout for link in broken)
    page.write_text("# Home\n\n[a](index.md#home)\n")
    assert _build(tmp_path / "site", cwd=tmp_path).returncode == 0
