"""Which wheels a recipe means: pip decides, for the Python and glibc of the image, not of this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, fail
from fairlead_build.cache.store import scratch_parent, workspace
from fairlead_build.recipe.inherit import project
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import Inputs, Wheel
from fairlead_build.resolve.fetch import Role, Wanted, unset
from fairlead_build.resolve.pip import (
    PYPI,
    Target,
    further_places,
    only,
    pip,
    pip_environment,
    place_of,
    run_pip,
)

_NONE_FITS = re.compile(
    r"ERROR: Could not find a version that satisfies the requirement (.+?) \(from versions: (.*)\)$"
)
_UNREACHED = re.compile(r"WARNING: Retrying |WARNING: There was an error checking|Could not fetch")
# Of versions that pip left aside for a fault of theirs, which it names.
_UNSOUND = re.compile(r"WARNING: (?:Ignoring version .* since it has invalid metadata|Discarding )")
_NO_EXTRA = re.compile(r"WARNING: (\S+) (\S+) does not provide the extra '(.+)'$")
_CONSTRAINT = re.compile(r"The user requested \(constraint\) ([A-Za-z0-9._-]+?)==")


@dataclass
class PipSolver:
    """One resolution: for a target, with what must stay.

    Attributes:
        target: the image.
        old: the wheels of the lock that is there already.
        stay: whether these stay, but for ``moved``.
        moved: projects that are to move, in PEP 503's spelling.
        yanked: projects and versions, of those that pip chose, that their index has withdrawn (PEP 592).
        extras: of projects and versions that pip looked at, extras that were asked for and that they lack.
    """

    loaded: LoadedRecipe
    inputs: Inputs
    target: Target
    old: Sequence[Wheel] = ()
    stay: bool = False
    moved: frozenset[str] = frozenset()
    yanked: set[str] = field(default_factory=set)
    extras: dict[str, set[str]] = field(default_factory=dict)

    @cached_property
    def indexes(self) -> dict[str, str]:
        named = self.loaded.recipe.packages.index
        return {project(name): index for name, index in named.items()}

    def wheels(self, stage_note: Callable[[str], None]) -> list[Wanted]:
        """All wheels of the image and of the builder of its sources.

        Raises:
            FairleadError: versions contradict each other, an index is not known here, or the MPI
                would be installed twice.
        """
        named = self._named(stage_note)
        stage_note("packages.pip")
        image = self._solve(list(self.inputs.pip), "python", named)
        wheels = list(image)
        kind, _, pin = self.inputs.mpi.partition(":")
        if kind == "wheel":
            stage_note(pin)
            mpi = self._solve([pin], "mpi", {})
            if clash := sorted({w.name for w in mpi} & {w.name for w in wheels}):
                raise fail("mpi-in-python-installed-twice", clash=clash[0], loaded=self.loaded)
            wheels += mpi
        stage_note("pip")
        wheels += self._solve(["pip"], "installer", {})
        if self.inputs.build_pip:
            stage_note("what sources are built with")
            # The image's own packages are there while sources are built, as they are.
            versions = {project(w.name): w.version for w in image}
            pins = {**named, **versions}
            extra = self._solve(list(self.inputs.build_pip), "build", pins, firm=True)
            wheels += [w for w in extra if project(w.name) not in versions]
        for wheel in wheels:
            # PyPI takes no version with a `+`, so such a wheel comes from somewhere else.
            if "+" in wheel.version and wheel.index == PYPI:
                name = project(wheel.name)
                raise fail("index-unnamed-wheel", wheel=wheel, project=name, loaded=self.loaded)
        return wheels

    def _named(self, note: Callable[[str], None]) -> dict[str, str]:
        """The versions of the projects whose index is named, taken from that index alone."""
        pins: dict[str, str] = {}
        for index in sorted(set(self.indexes.values()) - {PYPI}):
            projects = [name for name, of in self.indexes.items() if of == index]
            asked = [text for text in self.inputs.pip if project(text) in projects]
            asked += [n for n in projects if n not in {project(text) for text in asked}]
            stays = self._constraints("python")
            asked = [f"{n}=={stays[n]}" if (n := project(t)) in stays else t for t in asked]
            note(index)
            with workspace(scratch_parent(1 << 20), "fairlead-pip-") as folder:
                changes = only(index, folder)
                try:
                    wheels = self._report([*asked, "--no-deps"], "python", {}, changes)
                except FairleadError:
                    if place_of(index) is None:
                        raise unset(index, ", ".join(asked)) from None
                    raise
            pins |= {project(w.name): w.version for w in wheels}
        return pins

    def _solve(
        self, requirements: list[str], role: Role, pins: Mapping[str, str], *, firm: bool = False
    ) -> list[Wanted]:
        """Wheels for ``requirements``; those of the lock that are in the way of others give way.

        Args:
            pins: versions that are fixed.
            firm: whether they also hold for what is not asked for; always, but for the lock's.
        """
        held = self._constraints(role) if not firm else {}
        # What is to move goes as far as it can; then the lock's others are held against it.
        if held and any(project(w.name) in self.moved for w in self.old if w.role == role):
            newest = self._report(requirements, role, pins, {})
            ahead = {project(w.name): w.version for w in newest if project(w.name) in self.moved}
            pins = {**pins, **ahead}
        while True:
            output: list[str] = []
            try:
                return self._report(requirements, role, {**held, **pins}, {}, output.append)
            except FairleadError:
                gone = {project(name) for name in _CONSTRAINT.findall("\n".join(output))}
                gone &= set(held) - set(pins)
                if not gone:
                    raise
                held = {name: version for name, version in held.items() if name not in gone}

    def _constraints(self, role: Role) -> dict[str, str]:
        """What stays of the lock."""
        if not self.stay:
            return {}
        old = {project(w.name): w.version for w in self.old if w.role == role}
        return {name: version for name, version in old.items() if name not in self.moved}

    def _report(
        self,
        requirements: list[str],
        role: Role,
        constraints: Mapping[str, str],
        changes: Mapping[str, str],
        on_line: Callable[[str], None] = lambda line: None,
    ) -> list[Wanted]:
        with workspace(scratch_parent(1 << 20), "fairlead-pip-") as folder:
            report, pins = folder / "report.json", folder / "constraints.txt"
            pins.write_text(
                "".join(f"{name}=={v}\n" for name, v in sorted(constraints.items())), "utf-8"
            )
            argv: list[str | Path] = [
                *pip(self.target), "install", "--dry-run", "--ignore-installed", "--progress-bar=off",
                "--report", report, "--constraint", pins, *self.target.options,
                *([] if changes else further_places(self.indexes.values())), *requirements,
            ]  # fmt: skip
            doing = f"resolve the Python packages of recipe `{self.loaded.name}`"
            remedy = f"edit packages.pip, then `fairlead recipe lock {self.loaded.given}`"
            output: list[str] = []

            def read(line: str) -> None:
                output.append(line)
                if lacks := _NO_EXTRA.match(line):
                    name, version, extra = lacks.groups()
                    self.extras.setdefault(f"{project(name)} {version}", set()).add(extra)
                on_line(line)

            env = pip_environment(changes)
            try:
                run_pip(argv, env=env, doing=doing, remedy=remedy, on_line=read)
            except FairleadError:
                if unknown := self._unknown(output, remedy):
                    raise unknown from None
                raise
            items = bounded_json.loads(report.read_bytes())["install"]
        if direct := [item for item in items if item.get("is_direct")]:
            name, url = direct[0]["metadata"]["name"], direct[0]["download_info"]["url"]
            raise fail("pip-direct", name=name, url=url, loaded=self.loaded, remedy=remedy)
        return sorted((self._wanted(item, role) for item in items), key=lambda w: w.name.lower())

    def _unknown(self, output: list[str], remedy: str) -> FairleadError | None:
        """The error of a requirement that no wheel answers; None when pip failed otherwise."""
        if any(_UNREACHED.search(line) or _UNSOUND.match(line) for line in output):
            return None  # an index that was not read may have it, or pip itself says what is wrong
        match = next(filter(None, map(_NONE_FITS.match, output)), None)
        if match is None:
            return None
        fields = {"asked": match[1], "python": self.inputs.python, "remedy": remedy}
        fields["where"] = str(self.loaded.folder / "recipe.toml")
        versions = match[2].split(", ")
        if versions in (["none"], [""]):
            return fail("pip-unknown", code=None, **fields)
        return fail("pip-unknown-version", code=None, versions=", ".join(versions[-8:]), **fields)

    def _wanted(self, item: dict[str, dict[str, object]], role: Role) -> Wanted:
        place, facts = item["download_info"], item["metadata"]
        archive = place["archive_info"]
        assert isinstance(archive, dict)
        name, version = str(facts["name"]), str(facts["version"])
        if item.get("is_yanked"):
            self.yanked.add(f"{name} {version}")
        for wheel in self.old:
            if (project(wheel.name), wheel.version, wheel.role) == (project(name), version, role):
                return Wanted.of(wheel)
        file = unquote(urlsplit(str(place["url"])).path.rsplit("/", 1)[1])
        index = self.indexes.get(project(name), PYPI)
        return Wanted(name, version, file, archive["hashes"]["sha256"], index, role)
