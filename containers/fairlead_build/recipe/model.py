"""What may stand in a ``recipe.toml``: the types, and what each key means.

``Written`` is one file; ``Recipe`` is what comes of it and of all that it extends
(``inherit.py``). The published JSON Schema is made of ``Written``, and the words under the keys
are what an editor shows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from fairlead.base.toml import Strict
from fairlead_build.base.platform import Architecture

# Of Python 3: the `requires-python` of our wheel.
OLDEST_MINOR = 11

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
AptName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
Suite = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*$")]
PyMinor = Annotated[str, StringConstraints(pattern=r"^3\.[0-9]{1,2}$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
OneLine = Annotated[
    str, StringConstraints(pattern=r"^[^\x00-\x08\x0a-\x1f\x7f]*$", max_length=4096)
]
# A Python project's name (PEP 508).
ProjectName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=200)
]
# How a lock names an index: by a title, never by a host.
IndexName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9._-]*( [A-Za-z0-9._-]+)*$", max_length=200)
]
# An image in a registry; the tag and the digest may be left out.
ImageReference = Annotated[
    str,
    StringConstraints(
        pattern=r"^docker://[A-Za-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?$", max_length=500
    ),
]
Version = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+~:!_-]*$", max_length=200)
]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
SourceUrl = Annotated[
    str, StringConstraints(pattern=r"^https?://[^\s\x00-\x1f]+$", max_length=2000)
]
Accelerator = Literal["none", "nvidia", "amd"]
Component = Literal[
    "main", "contrib", "non-free", "non-free-firmware", "universe", "restricted", "multiverse"
]


class _Table(Strict):
    """The text under a field is its description in the published schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Head(_Table):
    """What it is called and what it is for."""

    name: Name
    """The name by which `fairlead run` finds the image: small letters, digits and `-`."""
    summary: OneLine = ""
    """One line for people."""
    accelerator: Accelerator = "none"
    """The accelerator that its programs are made for."""


def _one_of(*keys: str) -> dict[str, Any]:
    """Exactly one of ``keys``, for an editor; ``checks.py`` says it in words."""
    return {"oneOf": [{"required": [key]} for key in keys]}


class Base(_Table):
    """What the image starts from: a distribution's mirror, or an image in a registry."""

    model_config = ConfigDict(json_schema_extra=_one_of("suite", "image"))

    distribution: Literal["debian", "ubuntu"] = "debian"
    """The distribution."""
    suite: Suite | None = None
    """Its release, e.g. `bookworm`. It fixes the image's glibc."""
    components: tuple[Component, ...] = ("main",)
    """The parts of the archive to take packages from."""
    image: ImageReference | None = None
    """An image to start from instead: `docker://HOST/REPOSITORY:TAG`; the lock pins its digest."""


class Mpi(_Table):
    """The image's own MPI, the one that the host's replaces."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"source": {"const": "wheel"}}},
            "then": {"required": ["version"]},
        }
    )

    family: Literal["mpich", "openmpi"]
    """Which MPIs can replace it."""
    source: Literal["wheel", "apt"]
    """Where it comes from."""
    package: AptName | None = None
    """The wheel or Debian package; the family's name otherwise."""
    version: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)+$")] | None = None
    """The exact version; a wheel needs it. The older, the more hosts can replace it."""
    prefix: str | None = None
    """Where a wheel goes: /opt/FAMILY otherwise; never inside the Python prefix."""
    floor: Annotated[str, StringConstraints(pattern=r"^[1-9]\.[0-9]$")] | None = None
    """The newest MPI standard whose functions the image's own programs may need, e.g. `3.1`."""

    @property
    def distribution(self) -> str:
        """The wheel or Debian package."""
        return self.package or self.family

    @property
    def home(self) -> str:
        """Where a wheel is installed: outside every Python prefix, or mpi4py finds it first."""
        return self.prefix or f"/opt/{self.family}"


class Python(_Table):
    """A virtual environment on the distribution's own Python."""

    version: PyMinor
    """The distribution's own version, e.g. `3.11` of bookworm."""
    prefix: str = "/opt/python"
    """Where the environment lies; its `bin` is first on the image's PATH."""

    @property
    def site(self) -> str:
        """Where wheels are installed."""
        return f"{self.prefix}/lib/python{self.version}/site-packages"


def _requirements(value: tuple[str, ...]) -> tuple[str, ...]:
    from packaging.requirements import InvalidRequirement

    from fairlead_build.base.requirements import parse_requirement

    for text in value:
        try:
            requirement = parse_requirement(text)
        except InvalidRequirement as exc:
            raise ValueError(f"{text!r} is not a requirement: {str(exc).splitlines()[0]}") from None
        if requirement.url:
            raise ValueError(
                f"{text!r} names a URL; a lock names an index: write `{requirement.name}`"
            )
    return value


Requirements = Annotated[tuple[str, ...], AfterValidator(_requirements)]


class Packages(_Table):
    """What is installed, dependencies excluded."""

    apt: tuple[AptName, ...] = ()
    """Packages of the distribution; what they recommend is not installed."""
    pip: Requirements = ()
    """Requirements as pip knows them; only wheels are taken."""
    without: tuple[str, ...] = ()
    """Names of inherited packages, apt's or pip's, and sources to leave out."""
    index: dict[ProjectName, IndexName] = Field(default_factory=dict)
    """Which index a project's wheel comes from: `{ torch = "PyTorch CPU" }`; otherwise PyPI."""


class Source(_Table):
    """Something that is built from its source, against the packages of the image."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [_one_of("index", "url", "path", "bundled"), _one_of("build", "run")],
            "dependencies": {"url": ["sha256"], "sha256": ["url"]},
        }
    )

    name: ProjectName
    """What it is called; an inherited source of the same name is replaced."""
    version: Version
    """Its version."""
    index: Literal["PyPI"] | None = None
    """Take the source archive of this name and version from there."""
    url: SourceUrl | None = None
    """Take this archive; `sha256` must be given too."""
    sha256: Sha256 | None = None
    """The archive's checksum."""
    path: str | None = None
    """Take this file or folder of the recipe's own folder."""
    bundled: Literal["native"] | None = None
    """`native`: take fairlead's own collective core; what is built is laid next to fairlead, over the tree."""
    patches: tuple[str, ...] = ()
    """Files of the recipe's folder, applied in this order with `patch -p1`."""
    apt: tuple[AptName, ...] = ()
    """Packages that are there while it is built, and not in the image."""
    pip: Requirements = ()
    """Requirements that are there while it is built, and not in the image."""
    env: dict[Variable, OneLine] = Field(default_factory=dict)
    """Variables for the build."""
    build: Literal["wheel"] | None = None
    """`wheel`: pip makes a wheel of it, which is installed into the Python prefix."""
    run: str | None = None
    """Shell lines that build and install it below $DESTDIR; $PREFIX, $MPI_PREFIX, $JOBS are set."""


class Image(_Table):
    """How it is squashed. gzip is for kernels without zstd, at 20 times the work."""

    compressor: Literal["zstd", "gzip"] = "zstd"
    """`gzip` for kernels that cannot read zstd."""
    level: Annotated[int, Field(ge=1, le=22)] = 3
    """1 to 22; gzip stops at 9."""


class _Contents(_Table):
    """What a recipe as it is written and a whole one have in common."""

    mpi: Mpi | None = None
    """The image's own MPI; replaces an inherited [mpi] whole."""
    python: Python | None = None
    """The image's Python; replaces an inherited [python] whole."""
    packages: Packages = Packages()
    """What is installed; joined with what is inherited."""
    source: tuple[Source, ...] = ()
    """What is built from source."""
    files: dict[str, str] = Field(default_factory=dict)
    """`"/path/in/the/image" = "file in the recipe's folder"`."""
    env: dict[Variable, OneLine] = Field(default_factory=dict)
    """Variables that are set in the image."""
    labels: dict[str, OneLine] = Field(default_factory=dict)
    """Labels of the image."""


class Overlay(_Contents):
    """What may be added to a recipe or changed in it."""

    base: Base | None = None
    """What the image starts from; replaces an inherited [base] whole."""
    image: Image | None = None
    """How it is squashed; replaces an inherited [image] whole."""


class Variant(Overlay):
    """Another image of the same recipe: `NAME:VARIANT`."""

    summary: OneLine | None = None
    """One line for people, instead of the recipe's."""
    accelerator: Accelerator | None = None
    """The accelerator that its programs are made for."""


class Written(Overlay):
    """A `recipe.toml`: what goes in an image."""

    model_config = ConfigDict(
        title="fairlead recipe",
        json_schema_extra={"anyOf": [{"required": ["base"]}, {"required": ["extends"]}]},
    )

    extends: str | None = None
    """The recipe to start from: a bundled one's name, or a folder relative to this file's."""
    recipe: Head
    """Its name, and what it is for."""
    variant: dict[Name, Variant] = Field(default_factory=dict)
    """Other images of the same recipe."""
    architecture: dict[Architecture, Overlay] = Field(default_factory=dict)
    """What differs when it is built on that architecture."""


class Recipe(_Contents):
    """A whole recipe: what it extends, its own keys, the architecture's and the variant's."""

    recipe: Head
    base: Base
    image: Image = Image()

    @property
    def ships_fairlead(self) -> bool:
        """Whether images carry fairlead's wheel: their Python can run it."""
        minor = int(self.python.version.split(".")[1]) if self.python else 0
        return minor >= OLDEST_MINOR

    @property
    def mpi_prefix(self) -> str:
        """Where an MPI from a wheel lies; empty for any other."""
        return self.mpi.home if self.mpi and self.mpi.source == "wheel" else ""
