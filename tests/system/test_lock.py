"""Locks by the real apt and the real pip, on small indexes made here; and an archive without network."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead_build.base.platform import Architecture
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import AptIndex, Deb, Wheel, inputs_of
from fairlead_build.resolve import apt_solve
from fairlead_build.resolve.apt_solve import Pins, add_folder, apt_root, locked, solve
from fairlead_build.resolve.apt_sources import AptSource
from fairlead_build.resolve.archive import kept_in
from fairlead_build.resolve.fetch import fetch_wheels
from fairlead_build.resolve.pip import Target, settings, target_of
from fairlead_build.resolve.pip_solve import PipSolver
from fairlead_build.resolve.sources import Place, download, source_archive

FAIRLEAD = Path(sys.executable).with_name("fairlead")


# --- apt: a distribution of three packages, and its corrections ---------------------------------

MAIN = AptIndex("debian", "tiny", ("main",))


def deb(folder: Path, name: str, version: str, depends: str = "", provides: str = "") -> None:
    """A package with nothing in it."""
    root = folder / "work" / f"{name}-{version}"
    (root / "DEBIAN").mkdir(parents=True)
    lines = [f"Package: {name}", f"Version: {version}", "Architecture: amd64"]
    lines += ["Maintainer: nobody <nobody@localhost>", "Description: empty"]
    lines += [f"Depends: {depends}"] if depends else []
    lines += [f"Provides: {provides}"] if provides else []
    (root / "DEBIAN" / "control").write_text("\n".join(lines) + "\n")
    pool = folder / "pool" / "main" / name
    pool.mkdir(parents=True, exist_ok=True)
    argv = ["dpkg-deb", "--root-owner-group", "-b", root, pool / f"{name}_{version}_amd64.deb"]
    subprocess.run(argv, check=True, capture_output=True)


def publish(folder: Path, suite: str, origin: str = "Debian") -> None:
    """The index of all packages below ``folder``."""
    place = folder / "dists" / suite / "main" / "binary-amd64"
    place.mkdir(parents=True, exist_ok=True)
    stanzas = []
    for path in sorted(folder.glob("pool/main/*/*.deb")):
        control = subprocess.run(
            ["dpkg-deb", "--field", path], check=True, capture_output=True, text=True
        ).stdout
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        stanzas.append(
            f"{control.rstrip()}\nFilename: {path.relative_to(folder)}\n"
            f"Size: {path.stat().st_size}\nSHA256: {digest}\n"
        )
    body = "\n".join(stanzas).encode()
    (place / "Packages").write_bytes(body)
    (place.parents[1] / "Release").write_text(
        f"Origin: {origin}\nSuite: {suite}\nCodename: {suite}\nArchitectures: amd64\n"
        "Components: main\nDate: Sat, 21 Nov 2026 10:00:00 UTC\nSHA256:\n"
        f" {hashlib.sha256(body).hexdigest()} {len(body)} main/binary-amd64/Packages\n"
    )


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release with app 1, lib 1 and tool 1; its corrections bring app 2 and lib 2."""
    for name in ("main", "security"):
        (tmp_path / name).mkdir()
    deb(tmp_path / "main", "app", "1", "lib (= 1)")
    deb(tmp_path / "main", "lib", "1")
    deb(tmp_path / "main", "tool", "1")
    deb(tmp_path / "security", "app", "2", "lib (= 2)")
    deb(tmp_path / "security", "lib", "2")
    deb(tmp_path / "security", "tool", "2")
    publish(tmp_path / "main", "tiny")
    publish(tmp_path / "security", "tiny-security")

    def sources(index: AptIndex) -> tuple[AptSource, ...]:
        part = "security" if index.suite.endswith("-security") else "main"
        uri = f"copy:{tmp_path}/{part}"
        return (AptSource(uri, (index.suite,), ("main",), trusted=True, origin="the test"),)

    # A repository of one's own has no signature that Debian's keyring knows.
    monkeypatch.setattr(apt_solve, "apt_sources", sources)
    return tmp_path


def chosen(pins: Pins, *indexes: AptIndex, old: tuple[Deb, ...] = ()) -> list[Deb]:
    with apt_root(indexes or (MAIN,), "amd64", remedy="again") as root:
        pairs = solve(root, ["app", "tool"], pins, doing="resolve", remedy="again")
        return locked(root, pairs, old)


def test_apt_resolution_names_version_hash_and_index(mirror: Path) -> None:
    found = chosen(Pins())
    assert [(d.name, d.version, d.index) for d in found] == [
        (name, "1", "Debian tiny main") for name in ("app", "lib", "tool")
    ]
    app = mirror / "main" / found[0].path
    assert found[0].sha256 == hashlib.sha256(app.read_bytes()).hexdigest()


def test_apt_virtual_package_names_those_that_provide_it(mirror: Path) -> None:
    deb(mirror / "main", "first", "1", provides="mail-agent")
    deb(mirror / "main", "second", "1", provides="other, mail-agent (= 1.0), last")
    deb(mirror / "main", "third", "1", provides="mail-agent-helper")
    publish(mirror / "main", "tiny")
    with apt_root((MAIN,), "amd64", remedy="again") as root:
        assert root.providers("mail-agent") == ["first", "second"]
        assert root.providers("last") == ["second"] and not root.providers("agent")


def test_apt_upgrade_takes_along_what_it_forces_and_no_more(mirror: Path) -> None:
    before = tuple(chosen(Pins()))
    pins = Pins({"lib": "1", "tool": "1"}, {"app"}, "tiny-security")
    after = chosen(pins, MAIN, MAIN.security, old=before)
    assert {d.name: (d.version, d.index) for d in after} == {
        "app": ("2", "Debian tiny-security main"),
        "lib": ("2", "Debian tiny-security main"),  # app 2 needs it
        "tool": ("1", "Debian tiny main"),
    }
    assert before[2] in after


def test_apt_corrections_stay_when_everything_else_is_resolved_again(mirror: Path) -> None:
    found = chosen(Pins(security={"tool"}, security_suite="tiny-security"), MAIN, MAIN.security)
    assert {d.name: d.version for d in found} == {"app": "1", "lib": "1", "tool": "2"}


def test_apt_package_that_vanished_stays_from_the_store(mirror: Path) -> None:
    before = tuple(chosen(Pins()))
    cache = Cache(mirror / "cache")
    cache.make()
    for old in before:
        cache.blob(old.sha256).write_bytes((mirror / "main" / old.path).read_bytes())
        (mirror / "main" / old.path).unlink()
    deb(mirror / "main", "app", "1.1", "lib (= 1.1)")
    deb(mirror / "main", "lib", "1.1")
    deb(mirror / "main", "tool", "1.1")
    publish(mirror / "main", "tiny")
    with apt_root((MAIN,), "amd64", remedy="again") as root:
        add_folder(root, before, cache, "again")
        pins = Pins({"app": "1", "lib": "1"})
        pairs = solve(root, ["app", "tool"], pins, doing="resolve", remedy="again")
        found = locked(root, pairs, before)
    assert {d.name: d.version for d in found} == {"app": "1", "lib": "1", "tool": "1.1"}
    assert [d for d in found if d.version == "1"] == list(before[:2])


def test_apt_on_a_base_image_installs_only_what_that_lacks(mirror: Path) -> None:
    status = (
        "Package: lib\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n"
        "Maintainer: nobody <nobody@localhost>\nDescription: empty\n"
    )
    with apt_root((MAIN,), "amd64", remedy="again", status=status) as root:
        pairs = solve(root, ["app"], Pins(), doing="resolve", remedy="again")
    assert pairs == [("app", "1")]


def test_apt_archive_of_another_publisher_is_refused(mirror: Path) -> None:
    publish(mirror / "main", "tiny", origin="Somebody")
    with pytest.raises(FairleadError) as caught:
        chosen(Pins())
    (finding,) = caught.value.findings
    assert finding.check == "apt-source-missing" and "Somebody" in finding.why


# --- pip: an index of a few empty wheels --------------------------------------------------------


def wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    text += "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", text)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip that knows one folder of wheels and nothing else."""
    usual = tmp_path / "usual"
    for name in ("pip", "app", "lib", "other"):
        wheel(usual, name, "1")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    monkeypatch.setenv("PIP_FIND_LINKS", str(usual))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return tmp_path


def solver(folder: Path, packages: str, **more: Any) -> PipSolver:
    (folder / "recipe.toml").write_text(
        '[recipe]\nname = "tiny"\n[base]\nsuite = "bookworm"\n[python]\nversion = "3.11"\n'
        f"[packages]\n{packages}\n"
    )
    loaded = load_recipe(folder)
    more = {"target": Target(("--only-binary=:all:",), {}), **more}
    return PipSolver(loaded, inputs_of(loaded.recipe, ()), **more)


def found(of: PipSolver) -> dict[str, str]:
    return {w.name: f"{w.version} {w.index}" for w in of.wheels(lambda note: None)}


def in_lock(of: PipSolver, cache: Cache) -> tuple[Wheel, ...]:
    wanted = of.wheels(lambda note: None)
    assert {w.size for w in wanted} == {None}  # pip does not say, so nobody pretends to know
    fetch_wheels(wanted, of.target, cache, Silent(), "tiny")
    return tuple(
        Wheel(
            name=w.name,
            version=w.version,
            size=cache.blob(w.sha256).stat().st_size,
            sha256=w.sha256,
            index=w.index,
            file=w.file,
            role=w.role,
        )
        for w in wanted
    )


def test_pip_index_by_name_comes_from_its_own_folder(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(wheels / "cpu", "app", "0.9+cpu")
    monkeypatch.setenv("FAIRLEAD_INDEX_TINY_CPU", str(wheels / "cpu"))
    of = solver(wheels, 'pip = ["app", "other"]\nindex = { app = "Tiny CPU" }')
    # PyPI's app 1 is newer, and still not what was asked for.
    assert found(of) == {"app": "0.9+cpu Tiny CPU", "other": "1 PyPI", "pip": "1 PyPI"}
    cache = Cache(wheels / "cache")
    cache.make()
    assert len(in_lock(of, cache)) == 3


@pytest.mark.parametrize(
    ("python", "release", "arch", "extra"),
    [
        ("3.8", "", "amd64", {"below310", "below311", "intel", "early"}),
        ("3.9", "3.9.2", "amd64", {"below310", "below311", "intel", "early"}),
        ("3.10", "3.10.12", "amd64", {"below311", "intel"}),
        ("3.11", "3.11.2", "amd64", {"intel"}),
        ("3.11", "3.11.2", "arm64", {"arm"}),
        ("3.13", "3.13.5", "arm64", {"arm", "late"}),
    ],
)
def test_pip_evaluates_conditions_for_the_image_and_not_for_this_python(
    python: str, release: str, arch: Architecture, extra: set[str], wheels: Path
) -> None:
    conditions = {
        "below310": "python_version < '3.10'",
        "below311": "python_version < '3.11'",
        "late": "python_full_version >= '3.13.1'",
        "early": "implementation_version < '3.9.3'",
        "intel": "platform_machine == 'x86_64'",
        "arm": "platform_machine == 'aarch64' and sys_platform == 'linux'",
        "never": "os_name == 'nt' or implementation_name == 'pypy' or platform_system == 'Darwin'",
    }
    for name in conditions:
        wheel(wheels / "usual", name, "1")
    needs = [f"{name} ; {condition}" for name, condition in conditions.items()]
    wheel(wheels / "usual", "asks", "1", *needs)
    target = target_of(python, arch, "2.31", release)
    names = set(found(solver(wheels, 'pip = ["asks"]', target=target)))
    assert names == {"asks", "pip", *extra}


def test_pip_configured_for_other_work_resolves_the_same(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(wheels / "usual", "asks", "1", "lib")
    wheel(wheels / "usual", "asks", "2rc1", "lib")
    (wheels / "pip.conf").write_text(
        "[global]\nrequire-virtualenv = true\n[install]\nuser = true\npre = true\nno-deps = true\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(wheels / "pip.conf"))
    monkeypatch.setenv("PIP_IGNORE_REQUIRES_PYTHON", "1")
    of = solver(wheels, 'pip = ["asks"]')
    assert found(of) == {"asks": "1 PyPI", "lib": "1 PyPI", "pip": "1 PyPI"}


@pytest.mark.parametrize(
    ("asked", "why"),
    [("nunpy", "misspelt"), ("app==7", "are of 1"), ("asks", "misspelt")],
)
def test_pip_requirement_that_no_wheel_answers_is_named(wheels: Path, asked: str, why: str) -> None:
    wheel(wheels / "usual", "asks", "1", "lacks")
    with pytest.raises(FairleadError) as caught:
        found(solver(wheels, f'pip = ["{asked}"]'))
    (finding,) = caught.value.findings
    assert finding.check == "pip-unknown" and why in finding.why
    assert ("lacks" if asked == "asks" else asked) in finding.what


def test_pip_version_that_its_index_has_withdrawn_is_noted(wheels: Path) -> None:
    wheel(wheels / "empty/app", "app", "0.5")
    (wheels / "empty/app/index.html").write_text(
        '<a href="app-0.5-py3-none-any.whl" data-yanked="breaks">app-0.5-py3-none-any.whl</a>'
    )
    of = solver(wheels, 'pip = ["app==0.5", "other"]')
    assert found(of)["app"] == "0.5 PyPI" and of.yanked == {"app 0.5"}
    of = solver(wheels, 'pip = ["app"]')
    assert found(of)["app"] == "1 PyPI" and not of.yanked


def test_pip_extra_that_the_locked_version_lacks_is_noted(wheels: Path) -> None:
    wheel(wheels / "usual", "asks", "1", "lib[fast]")
    of = solver(wheels, 'pip = ["app[al]", "asks"]')
    assert set(found(of)) == {"app", "asks", "lib", "pip"}
    assert of.extras == {"app 1": {"al"}, "lib 1": {"fast"}}


def test_pip_version_that_is_unsound_is_not_called_missing(wheels: Path) -> None:
    wheel(wheels / "usual", "asks", "1", "lib (>=1.*)")
    with pytest.raises(FairleadError) as caught:
        found(solver(wheels, 'pip = ["asks"]'))
    (finding,) = caught.value.findings
    assert finding.check == "tool-failed" and "has invalid metadata" in finding.why


def test_pip_requirement_at_a_url_is_refused_with_its_place(wheels: Path) -> None:
    wheel(wheels / "elsewhere", "direct", "1")
    url = (wheels / "elsewhere/direct-1-py3-none-any.whl").as_uri()
    wheel(wheels / "usual", "asks", "1", f"direct @ {url}")
    with pytest.raises(FairleadError) as caught:
        found(solver(wheels, 'pip = ["asks"]'))
    (finding,) = caught.value.findings
    assert finding.check == "pip-direct" and url in finding.why and "direct" in finding.what


def test_pip_that_cannot_take_the_images_conditions_is_refused(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pip of another make: nothing is resolved for the wrong Python in silence."""
    other = wheels / "other-pip"
    for name in ("_internal/cli", "_vendor/packaging"):
        (other / "pip" / name).mkdir(parents=True)
    (other / "pip/__init__.py").write_text("__version__ = '99'\n")
    (other / "pip/_internal/cli/main.py").write_text("def main(words):\n    raise SystemExit(0)\n")
    (other / "pip/_vendor/packaging/markers.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(other))
    with pytest.raises(FairleadError) as caught:
        found(solver(wheels, 'pip = ["app"]', target=target_of("3.9", "amd64", "2.31")))
    assert "pip 99 evaluates conditions" in caught.value.findings[0].why


def test_pip_local_version_without_a_named_index_is_refused(wheels: Path) -> None:
    wheel(wheels / "usual", "app", "2+cpu")
    with pytest.raises(FairleadError) as caught:
        found(solver(wheels, 'pip = ["app"]'))
    (finding,) = caught.value.findings
    assert finding.check == "index-unnamed" and 'index = { app = "PyTorch CPU" }' in finding.remedy


def test_pip_index_known_nowhere_names_the_variable(wheels: Path) -> None:
    of = solver(wheels, 'pip = ["nothing"]\nindex = { nothing = "Far Away" }')
    with pytest.raises(FairleadError) as caught:
        found(of)
    (finding,) = caught.value.findings
    assert finding.check == "index-place" and "export FAIRLEAD_INDEX_FAR_AWAY=" in finding.remedy


def test_pip_upgrade_moves_one_with_what_it_forces(wheels: Path) -> None:
    packages = 'pip = ["app", "other"]'
    wheel(wheels / "usual", "app", "1", "lib<2")
    cache = Cache(wheels / "cache")
    cache.make()
    old = in_lock(solver(wheels, packages), cache)
    wheel(wheels / "usual", "app", "2", "lib>=2")
    wheel(wheels / "usual", "lib", "2")
    wheel(wheels / "usual", "other", "2")
    held = solver(wheels, packages, old=old, stay=True, moved=frozenset({"other"}))
    assert found(held) == {"app": "1 PyPI", "lib": "1 PyPI", "other": "2 PyPI", "pip": "1 PyPI"}
    moved = solver(wheels, packages, old=old, stay=True, moved=frozenset({"app"}))
    assert found(moved) == {"app": "2 PyPI", "lib": "2 PyPI", "other": "1 PyPI", "pip": "1 PyPI"}


# --- sources and downloads over http ------------------------------------------------------------


class _Handler(http.server.BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes]] = {}
    cuts = 0
    ranges: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        body = self.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        self.ranges.append(self.headers.get("Range", ""))
        self.send_response(206 if asked else 200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        rest = body[start:]
        if type(self).cuts and len(body) > 5000:
            type(self).cuts -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(files: dict[str, bytes], cuts: int = 0) -> Iterator[tuple[str, list[str]]]:
    handler: Any = type("Handler", (_Handler,), {"files": files, "cuts": cuts, "ranges": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.ranges
        finally:
            server.shutdown()
            thread.join()


def sdist(name: str, version: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        info = tarfile.TarInfo(f"{name}-{version}/random")
        body = os.urandom(40_000)
        info.size = len(body)
        archive.addfile(info, io.BytesIO(body))
    return out.getvalue()


@pytest.mark.parametrize("form", ["html", "json"])
def test_source_archive_is_found_by_name_and_version(
    wheels: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    body = sdist("My_Tool", "1.0")
    digest = hashlib.sha256(body).hexdigest()
    name = "My_Tool-1.0.tar.gz"
    page = f'<a href="/files/{name}#sha256={digest}">{name}</a><a href="x-2.0.tar.gz">x</a>'
    if form == "json":
        output = {"filename": name, "url": f"/files/{name}", "hashes": {"sha256": digest}}
        page = json.dumps({"meta": {"api-version": "1.1"}, "files": [output]})
        monkeypatch.setattr(
            _Handler,
            "send_header",
            lambda self, key, value: http.server.BaseHTTPRequestHandler.send_header(
                self,
                key,
                "application/vnd.pypi.simple.v1+json" if value == "text/html" else value,
            ),
        )
    files = {"/simple/my-tool/": page.encode(), f"/files/{name}": body}
    with serving(files) as (url, _):
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
        pip = settings()
        archive = source_archive("my.tool", "1", pip, "again")
        assert (archive.file, archive.sha256) == (name, digest)
        with pytest.raises(FairleadError) as caught:
            source_archive("my.tool", "2.0", pip, "again")
    (finding,) = caught.value.findings
    assert finding.check == "source-unknown" and "1.0" in finding.why


def test_download_goes_on_after_cut_connections_and_in_another_process(tmp_path: Path) -> None:
    body, partial = sdist("tool", "1"), tmp_path / "part"
    partial.write_bytes(body[:1000])  # as a killed process left it
    came: list[float] = []
    with serving({"/t": body}, cuts=2) as (url, ranges):
        download(Place(f"{url}/t"), partial, came.append)
    assert partial.read_bytes() == body
    assert sum(came) == len(body)
    assert ranges[0] == "bytes=1000-" and len(ranges) == 3


def test_download_of_nothing_names_the_place_without_a_password(tmp_path: Path) -> None:
    with serving({}) as (url, _), pytest.raises(FairleadError) as caught:
        place = url.replace("http://", "http://me:secret@")
        download(Place(f"{place}/t"), tmp_path / "part", lambda amount: None)
    (finding,) = caught.value.findings
    assert finding.check == "download" and "404" in finding.why
    assert "secret" not in f"{finding}"


# --- an archive, and no network -----------------------------------------------------------------


def fairlead(*words: str | Path, env: dict[str, str], offline: bool = False) -> Any:
    argv = [*(["unshare", "--net"] if offline else []), FAIRLEAD, *words]
    return subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **env})


@pytest.mark.full
def test_upgrade_keeps_the_archive_that_is_named_for_good_current(tmp_path: Path) -> None:
    """Made new, then brought up to date; and one that cannot be written is reported."""
    recipe, archive = tmp_path / "least", tmp_path / "archive"
    recipe.mkdir()
    (recipe / "recipe.toml").write_text(
        '[recipe]\nname = "least"\n[base]\nsuite = "bookworm"\n[image]\nlevel = 1\n'
    )
    env = {"FAIRLEAD_ARCHIVE": str(archive)}
    done = fairlead("recipe", "lock", recipe, env=env)
    assert done.returncode == 0 and f"{archive}: has every file" in done.stdout, done.stderr
    (victim,) = (p for p in (archive / "sha256").iterdir() if p.name in deb_of(recipe, "libc-bin"))
    victim.unlink()
    done = fairlead("recipe", "lock", recipe, "--upgrade", "libc-bin", "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["archive"] == str(archive)
    assert any(p.name in deb_of(recipe, "libc-bin") for p in (archive / "sha256").iterdir())


def deb_of(recipe: Path, name: str) -> set[str]:
    """The sha256 of a package in a lock."""
    text = (recipe / "lock.toml").read_text()
    return set(re.findall(rf'name = "{name}".*?sha256 = "([0-9a-f]+)"', text))


def test_archive_on_a_read_only_file_system_is_reported() -> None:
    assert_behind(Path("/proc/1"))


def assert_behind(archive: Path) -> None:
    kept, said = kept_in(None, Cache(Path("/nowhere"), archive))
    assert kept is None and str(archive) in said[0].where
    assert kept_in(Path("/else"), Cache(Path("/nowhere"), archive)) == (Path("/else"), ())
    assert kept_in(None, Cache(Path("/nowhere"))) == (None, ())


@pytest.mark.full
@pytest.mark.skipif(os.getuid() != 0, reason="cutting the network off needs root")
def test_build_from_lock_and_archive_needs_no_network(tmp_path: Path) -> None:
    recipe, archive = tmp_path / "least", tmp_path / "archive"
    recipe.mkdir()
    (recipe / "recipe.toml").write_text(
        '[recipe]\nname = "least"\n[base]\nsuite = "bookworm"\n[image]\nlevel = 1\n'
    )
    done = fairlead("recipe", "lock", recipe, "--archive", archive, env={})
    assert done.returncode == 0, done.stderr
    index = (archive / "index.tsv").read_text().splitlines()
    assert {line.split("\t")[0] for line in index[1:]} == {
        path.name for path in (archive / "sha256").iterdir()
    }
    empty = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = fairlead("build", recipe, env=empty, offline=True)
    assert done.returncode == 1 and "FAIL" in done.stderr  # there really is no network

    # One flipped byte anywhere in the archive is found, and the file is named.
    victim = sorted((archive / "sha256").iterdir())[0]
    sound = victim.read_bytes()
    victim.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    done = fairlead("build", recipe, "--archive", archive, env=empty, offline=True)
    assert done.returncode == 1
    assert "archive-rotten" in done.stderr and str(victim) in done.stderr

    victim.write_bytes(sound)
    done = fairlead("build", recipe, env={**empty, "FAIRLEAD_ARCHIVE": str(archive)}, offline=True)
    assert done.returncode == 0, done.stderr
    assert "built: least" in done.stderr
