"""Our own wheel, byte for byte the same from a checkout and from an installed copy.

The image carries the very code that builds it. A checkout's wheel is made by hatchling, which compiles the native
libraries with a pinned compiler; either way it is then packed again in one normal form: sorted, dated 1980, hashed by
its content alone.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import os
import re
import tempfile
import tomllib
import zipfile
from contextlib import suppress
from pathlib import Path, PurePosixPath

from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write, checkout
from fairlead_build.cache.store import Cache, workspace
from fairlead_build.recipe.model import Recipe

_KEPT = 4
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SOURCES = ("runtime", "containers/fairlead_build", "recipes", "sitecfg")
_FILES = ("pyproject.toml", "LICENSE", "tools/native_libraries.py")
# Written by an installer, so not part of a wheel.
_INSTALLER_FILES = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")


def runtime_requirements() -> tuple[str, ...]:
    """What the fairlead runtime needs, as requirements; extras are left out."""
    root = checkout()
    if root is not None:
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
        return tuple(project["dependencies"])
    declared = importlib.metadata.requires("fairlead") or []
    return tuple(re.sub(r"\s+", "", text) for text in declared if "extra ==" not in text)


def requirements_in(recipe: Recipe) -> tuple[str, ...]:
    """What an image of ``recipe`` carries for the fairlead runtime; nothing where its Python cannot run it."""
    return runtime_requirements() if recipe.ships_fairlead else ()


def own_wheel(cache: Cache) -> bytes:
    """Our wheel, from the cache unless the code changed.

    Raises:
        FairleadError: the code is incomplete.
    """
    root = checkout()
    files = _checkout_files(root) if root else _installed_files()
    digest = _digest(files)
    target = cache.wheel(digest)
    with suppress(FileNotFoundError):
        wheel = target.read_bytes()
        os.utime(target)
        return wheel
    wheel = pack(
        _build(root, cache) if root else {name: path.read_bytes() for name, path in files.items()}
    )
    with atomic_write(target) as out:
        out.write(wheel)
    _remove_old(target.parent)
    return wheel


def _remove_old(folder: Path) -> None:
    """Keeps the wheels used last: a checkout and an installed copy may share one cache."""
    used = []
    for path in folder.glob("*.whl"):  # not what another build is just writing
        with suppress(FileNotFoundError):
            used.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(used)[:-_KEPT]:
        path.unlink(missing_ok=True)


def pack(members: dict[str, bytes], programs: frozenset[str] = frozenset()) -> bytes:
    """A wheel of these members, RECORD renewed, in normal form; ``programs`` may be executed."""
    metadata = next((name for name in members if name.endswith(".dist-info/METADATA")), None)
    if metadata is None:
        raise fail("own-wheel-no-metadata")
    record = metadata.removesuffix("METADATA") + "RECORD"
    kept = {n: b for n, b in members.items() if not _by_installer(n)}
    # The headers alone: a word changed in the README must not change every image.
    headers = kept[metadata].split(b"\n\n", 1)[0].splitlines()
    headers = [h for h in headers if not h.startswith(b"Description-Content-Type")]
    kept[metadata] = b"\n".join(headers) + b"\n"
    rows = []
    for name, body in sorted(kept.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(body)}\n")
    kept[record] = "".join([*rows, f"{record},,\n"]).encode()
    buffer = io.BytesIO()
    # Stored, not deflated: zlib's output differs between versions, and the squashfs compresses it.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, body in sorted(kept.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = (0o100755 if name in programs else 0o100644) << 16
            entry.create_system = 3
            archive.writestr(entry, body)
    return buffer.getvalue()


def _by_installer(name: str) -> bool:
    path = PurePosixPath(name)
    return path.parent.name.endswith(".dist-info") and path.name in _INSTALLER_FILES


def _checkout_files(root: Path) -> dict[str, Path]:
    files = {name: root / name for name in _FILES}
    for folder in _SOURCES:
        for path in (root / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                files[str(path.relative_to(root))] = path
    return files


def _installed_files() -> dict[str, Path]:
    distribution = importlib.metadata.distribution("fairlead")
    files = {str(e): Path(str(distribution.locate_file(e))) for e in distribution.files or ()}
    # Not the console script, which lies elsewhere, nor what the installer made.
    kept = (n for n in files if not (n.startswith("..") or n.endswith(".pyc") or _by_installer(n)))
    return {name: files[name] for name in kept}


def _digest(files: dict[str, Path]) -> str:
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        try:
            body = path.read_bytes()
        except OSError as exc:
            reason = exc.strerror or str(exc)
            raise fail("own-wheel-file-missing", path=path, reason=reason) from None
        total.update(f"{name}\0{len(body)}\0".encode() + body)
    return total.hexdigest()


def _build(root: Path, cache: Cache) -> dict[str, bytes]:
    try:
        from hatchling.builders.wheel import WheelBuilder
    except ImportError:
        raise fail("tool-missing-hatchling-not-installed") from None
    before = tempfile.tempdir
    with workspace(cache.root / "work", "wheel-") as folder:
        builder = WheelBuilder(str(root))
        try:
            # hatchling's own temporary files go with the folder, also those that a kill leaves.
            tempfile.tempdir = str(folder)
            path = next(iter(builder.build(directory=str(folder), versions=["standard"])))
        except RuntimeError as exc:  # of the build hook
            raise fail("own-wheel-native-libraries", root=root, reason=exc) from None
        finally:
            tempfile.tempdir = before
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
