"""What an image starts from: a Debian or Ubuntu of a hub becomes the mirror's, others stay."""

from __future__ import annotations

import re

from pydantic import TypeAdapter, ValidationError

from fairlead_build.importing.ledger import Ledger
from fairlead_build.importing.located import Located
from fairlead_build.recipe.checks import SUITE_PYTHON
from fairlead_build.recipe.model import ImageReference

_REFERENCE: TypeAdapter[str] = TypeAdapter(ImageReference)
_SUITES = {
    "debian": {"11": "bullseye", "12": "bookworm", "13": "trixie"},
    "ubuntu": {"20.04": "focal", "22.04": "jammy", "24.04": "noble"},
}


def set_base(ledger: Ledger, where: Located, image: str) -> bool:
    """Sets [base] to the image of a FROM line. Returns whether the line was carried whole."""
    ledger.base_place = where
    image = image.removeprefix("docker://").strip()
    if not image or image == "scratch":
        why = "it starts from nothing" if image else "what it starts from is not known here"
        return ledger.lose(where, why, "[base] with a suite of Debian or Ubuntu")
    short = re.sub(r"^((index\.|registry-1\.)?docker\.io/)?(library/)?", "", image)
    match = re.fullmatch(r"(debian|ubuntu):([a-z]+|[0-9]+(?:\.[0-9]+)?)((?:-[a-z0-9.]+)*)", short)
    suite = _suite(match[1], match[2]) if match else None
    if match is None or suite is None:
        try:
            ledger.base = {"image": _REFERENCE.validate_python(f"docker://{image}")}
        except ValidationError:
            return ledger.lose(where, "it is not a reference of a registry", "image in [base]")
        return True
    ledger.base = {"distribution": match[1], "suite": suite}
    left = set(match[3].split("-")) - {"", "slim"}
    point = "." in match[2] and match[1] == "debian"
    if left or point:
        instead = f'the versions are in lock.toml; or image = "docker://{image}" in [base]'
        return ledger.lose(where, f"{suite} of today's archive is taken", instead, f"FROM {image}")
    return True


def _suite(distribution: str, release: str) -> str | None:
    known = _SUITES[distribution]
    if release in known.values():
        return release
    # A point release of Debian is the release.
    major = release.split(".")[0] if distribution == "debian" else release
    return known.get(release) or known.get(major)


def python_of(base: dict[str, str]) -> str:
    """The Python that the distribution under ``base`` calls python3; empty when not known."""
    if suite := base.get("suite"):
        return SUITE_PYTHON.get(suite, "")
    image = base.get("image", "")
    if own := re.search(r"(?:^|/)python:(3\.[0-9]{1,2})(?![0-9])", image):
        return own[1]
    for words in (*_SUITES["debian"].items(), *_SUITES["ubuntu"].items()):
        for word in words:
            # `12` alone is too short to mean a Debian: CUDA has versions too.
            if len(word) > 2 and re.search(rf"(?<![0-9.]){re.escape(word)}(?![0-9])", image):
                return SUITE_PYTHON[words[1]]
    return ""
