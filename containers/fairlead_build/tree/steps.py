"""What a rendered recipe does, as shell lines: the same in a Containerfile and a Singularity.def.

A step is one shell command; it may span lines that end with a backslash. :mod:`fairlead_build.render` joins steps
in the manner of each form. All of them run as root, in /bin/sh, and the first that fails stops the
build.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from fairlead_build.recipe.load import LoadedRecipe, RecipeFile
from fairlead_build.recipe.lock import Lock, Wheel
from fairlead_build.tree.wheel_staging import variables_of

# The folder of each stage in which the locked files lie; no image keeps it.
WORK = "/files"
# Wheels go to a folder of their own for each: one project may have two versions.
ROLES = ("python", "mpi", "installer", "build")
# What the stage that builds sources leaves for the next one.
BUILT = "/built"
_FROM_SOURCES = "/usr/src/fairlead"


def download(loaded: LoadedRecipe, lock: Lock) -> list[str]:
    """Brings the locked files to ``WORK``, and checks them. Needs apt; pip, where there are wheels."""
    wheels = _used(lock)
    suite = " ".join((lock.inputs.suite, *lock.inputs.components))
    if lock.base is not None:
        suite = f"{lock.base.suite} main"
        suite += " universe" if lock.base.distribution == "ubuntu" else ""
    steps = [f"mkdir -p {WORK}/debs", f"cd {WORK}"]
    for debs, target in ((lock.deb, "debs.list"), (lock.build_deb, "build-debs.list")):
        if debs or target == "debs.list":
            steps.append(_list((f"{deb.sha256}  {deb.path}" for deb in debs), target))
    steps += [
        _list((wheel.pin for wheel in of_role), f"{role}.txt") for role, of_role in wheels.items()
    ]
    steps += [
        # A lock names no host: without MIRROR it is the one that the base's own apt knows.
        'if [ -n "$MIRROR" ]; then \\\n'
        "      rm -f /etc/apt/sources.list.d/*; \\\n"
        f'      echo "deb ${{MIRROR%% *}} {suite}" > /etc/apt/sources.list; \\\n'
        "    fi",
        "uris=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | sort -u)}",
        # apt's own downloader knows its proxies, certificates and passwords.
        "for uri in $uris; do \\\n"
        "      wanted=$(cat *.list | while read -r sum path; do \\\n"
        '        [ -s "debs/${path##*/}" ] || \\\n'
        '          echo "${uri%/}/$(echo "$path" | sed s/+/%2b/g) debs/${path##*/} SHA256:$sum"; \\\n'
        "      done); \\\n"
        '      [ -z "$wanted" ] || \\\n'
        "        /usr/lib/apt/apt-helper -q -o APT::Sandbox::User=root download-file $wanted || true; \\\n"
        "    done",
        "sed 's|  .*/|  debs/|' *.list | sha256sum --quiet --check -",
    ]
    if lock.wheel:
        steps += [
            "command -v pip3 > /dev/null || { apt-get -q update && \\\n"
            "      apt-get -q install --yes --no-install-recommends python3-pip; }",
            *(
                f"pip3 download --quiet --no-deps --require-hashes --only-binary=:all: \\\n"
                f"      --python-version {lock.inputs.python} --dest {role} --requirement {role}.txt"
                for role in wheels
            ),
        ]
    return steps + _download_sources(loaded, lock)


def _download_sources(loaded: LoadedRecipe, lock: Lock) -> list[str]:
    """Archives to ``sources``; packages that are there only while these are built, apart."""
    steps = ["mkdir sources"] if lock.source else []
    urls = {s.source.name: s.source.url for s in loaded.sources}
    for archive in lock.source:
        if url := urls.get(archive.name):
            steps.append(
                "/usr/lib/apt/apt-helper -q -o APT::Sandbox::User=root download-file \\\n"
                f"      {shlex.quote(url)} sources/{archive.file} SHA256:{archive.sha256}"
            )
        else:
            steps += [
                f"echo '{archive.pin}' > source.txt",
                "pip3 download --quiet --no-deps --require-hashes \\\n"
                f"      --no-binary {archive.name} --dest sources --requirement source.txt",
            ]
    if lock.build_deb:
        steps.append(
            "mkdir build-debs; while read -r sum path; do mv debs/${path##*/} build-debs/; \\\n"
            "    done < build-debs.list"
        )
    return steps


def _used(lock: Lock) -> dict[str, list[Wheel]]:
    """The wheels of each role that has any."""
    wheels = {role: [w for w in lock.wheel if w.role == role] for role in ROLES}
    return {role: of_role for role, of_role in wheels.items() if of_role}


def _list(lines: Iterable[str], target: str) -> str:
    quoted = " \\\n".join(f"      '{line}'" for line in lines)
    return f"printf '%s\\n' \\\n{quoted} \\\n      > {target}"


def unpack(lock: Lock) -> list[str]:
    """A root of the locked packages, unpacked only: enough to run their own dpkg in it."""
    roles = [name for role in _used(lock) for name in (role, f"{role}.txt")]
    roles += ["build-debs"] if lock.build_deb else []
    roles += ["sources"] if lock.source else []
    return [
        # /usr merged from the start, as Debian's installer does.
        "for name in bin sbin lib lib64; do \\\n"
        "      mkdir -p root/usr/$name; ln -s usr/$name root/$name; \\\n"
        "    done",
        "for deb in debs/*.deb; do \\\n"
        "      dpkg-deb --fsys-tarfile $deb | tar -xC root --keep-directory-symlink; \\\n"
        "    done",
        # Some packages link man pages into this folder, and fail without it.
        f"mkdir -p root/usr/share/man/man1 root{WORK}",
        f"mv {' '.join(('debs', '*.list', *roles))} root{WORK}",
    ]


def install_debs(lock: Lock) -> list[str]:
    """Installs the packages of ``WORK`` by the dpkg of the root that this runs in."""
    # The files need no order: dpkg sorts what it configures, and all are unpacked already. But it
    # says so at length, in what is shown only when it fails.
    quietly = "> dpkg.log 2>&1 || { cat dpkg.log; exit 1; }"
    dpkg = "dpkg --force-depends --force-unsafe-io --install"
    steps = [f"cd {WORK}", "export DEBIAN_FRONTEND=noninteractive"]
    if lock.base is None:
        steps += [
            "touch /var/lib/dpkg/status",
            # Others' scripts ask for users and groups.
            f"{dpkg} debs/base-passwd_*.deb {quietly}",
        ]
    if lock.deb:
        steps.append(f"{dpkg} debs/*.deb {quietly}")
    return steps


def install_wheels(loaded: LoadedRecipe, lock: Lock, *, built: bool = False) -> list[str]:
    """Installs the wheels of ``WORK`` into their prefixes, without a network.

    Args:
        built: also what was built from source, out of ``WORK/built``.
    """
    python, mpi_prefix = loaded.recipe.python, loaded.recipe.mpi_prefix
    overlay = [f"cp -R --preserve=mode,links {WORK}{BUILT}/root/. /"] if built else []
    if python is None:
        return [*overlay, "ldconfig"]
    installer = next(w.file for w in lock.wheel if w.role == "installer")
    program = f"{python.prefix}/bin/python3"
    steps = [
        f"python3 -m venv --without-pip {python.prefix}",
        # pip runs out of its own wheel, and does not stay.
        f'pip="{program} installer/{installer}/pip install --quiet --no-index --no-deps \\\n'
        "      --no-compile --no-cache-dir --require-hashes --root-user-action=ignore \\\n"
        '      --disable-pip-version-check"',
        "$pip --find-links python --requirement python.txt",
    ]
    folders = [f"{python.prefix}/lib"]
    if mpi_prefix:
        steps += [
            f"$pip --find-links mpi --requirement mpi.txt --prefix {mpi_prefix} --ignore-installed",
            f"echo {mpi_prefix}/lib > /etc/ld.so.conf.d/fairlead-mpi.conf",
        ]
        folders.append(mpi_prefix)
    if built and any(s.source.build for s in loaded.sources):
        steps.append(f"{_unpinned_pip(lock, program)} .{BUILT}/wheels/*.whl")
    return [
        *steps,
        *overlay,
        "ldconfig",
        # An image is read-only: without these, each start would compile again. What is for another
        # Python does not compile, and is never imported.
        f"{program} -m compileall -q -j 0 --invalidation-mode unchecked-hash {' '.join(folders)} \\\n"
        "      > /dev/null || true",
    ]


def _unpinned_pip(lock: Lock, program: str) -> str:
    installer = next(w.file for w in lock.wheel if w.role == "installer")
    return (
        f"{program} {WORK}/installer/{installer}/pip install --quiet --no-index --no-deps \\\n"
        "      --no-compile --no-cache-dir --root-user-action=ignore"
    )


def build_sources(loaded: LoadedRecipe, lock: Lock) -> list[str]:
    """Builds each source, in a stage that has the image's packages and those for building."""
    steps = [f"mkdir -p {BUILT}/root {BUILT}/wheels"]
    if lock.build_deb:
        steps.append(
            "dpkg --force-depends --force-unsafe-io --install build-debs/*.deb \\\n"
            "      > dpkg.log 2>&1 || { cat dpkg.log; exit 1; }"
        )
    python = loaded.recipe.python
    program = f"{python.prefix}/bin/python3" if python else ""
    if any(w.role == "build" for w in lock.wheel):
        steps.append(
            f"{_unpinned_pip(lock, program)} --require-hashes \\\n"
            "      --find-links build --requirement build.txt"
        )
    given = variables_of(loaded.recipe)
    archives = {archive.name: archive for archive in lock.source}
    for item in loaded.sources:
        source, folder = item.source, f"{_FROM_SOURCES}/{item.source.name}"
        given_folder = f"{WORK}/given/{source.name}"
        steps.append(f"mkdir -p {folder}")
        if source.path is not None:
            steps.append(f"cp -R {given_folder}/tree/. {folder}")
        else:
            file = archives[source.name].file
            steps.append(f"tar -xf sources/{file} -C {folder} --strip-components=1 --no-same-owner")
        for patch in item.patches:
            steps.append(f"patch -d {folder} -p1 < {given_folder}/{shlex.quote(patch.target)}")
        variables = " ".join(f"{k}={shell_word(v)}" for k, v in {**given, **source.env}.items())
        begin = f"(cd {folder}; export {variables} JOBS=$(nproc) DESTDIR={BUILT}/root; \\\n      "
        if source.run is not None:
            lines = " \\\n".join(f"      {shell_word(line)}" for line in source.run.splitlines())
            steps.append(f"printf '%s\\n' \\\n{lines} \\\n      > run.sh")
            steps.append(f"{begin}sh -eu {WORK}/run.sh)")
            steps.append(f"cp -R --preserve=mode,links {BUILT}/root/. /")
        else:
            installer = next(w.file for w in lock.wheel if w.role == "installer")
            steps.append(
                f"{begin}{program} {WORK}/installer/{installer}/pip wheel --quiet --no-index --no-deps \\\n"
                f"      --no-build-isolation --no-cache-dir --wheel-dir {BUILT}/wheels .)"
            )
            # A later source may need it.
            steps.append(f"{_unpinned_pip(lock, program)} --force-reinstall {BUILT}/wheels/*.whl")
    return steps


def shell_word(value: str) -> str:
    """A word of a shell. `{{ name }}` would be an argument of a definition, also between quotes."""
    return re.sub(r"\{(?=\{)", "{''", shlex.quote(value))


def lay_files(files: Iterable[RecipeFile]) -> list[str]:
    """Puts the files of ``[files]`` from ``WORK/lay`` in their places, with their modes."""
    laid = tuple(files)
    steps = [f"cp -R {WORK}/lay/. /"] if laid else []
    for mode in (0o644, 0o755):
        if targets := [shlex.quote(f.target) for f in laid if f.mode == mode]:
            steps.append(f"chmod {mode:o} {' '.join(targets)}")
    return steps


def clean() -> list[str]:
    """Takes out what no program reads, and what differs from build to build."""
    return [
        "find /usr/share/doc -type f ! -name copyright -delete",
        "rm -rf /usr/share/man/* /usr/share/info/* /usr/share/locale/* /usr/share/lintian/*",
        f"rm -rf {WORK} /var/lib/apt/lists/* /var/cache/apt/* /var/log/*",
    ]


def unpinned(loaded: LoadedRecipe) -> list[str]:
    """Installs today's versions of what a recipe without a lock asks for, over its base image."""
    recipe = loaded.recipe
    apt = [*recipe.packages.apt]
    steps = ["export DEBIAN_FRONTEND=noninteractive"]
    if recipe.mpi is not None and recipe.mpi.source == "apt":
        apt.append(recipe.mpi.distribution)
    if recipe.python is not None:
        apt += ["libstdc++6", "python3", "python3-venv"]
    if apt:
        steps += [
            "apt-get -q update",
            f"apt-get -q install --yes --no-install-recommends {' '.join(sorted(set(apt)))}",
        ]
    if recipe.python is None:
        return steps
    pip = f"{recipe.python.prefix}/bin/python3 -m pip install --quiet --no-cache-dir --only-binary=:all:"
    steps.append(f"python3 -m venv {recipe.python.prefix}")
    if recipe.packages.pip:
        steps.append(f"{pip} {' '.join(map(shlex.quote, recipe.packages.pip))}")
    if (mpi := recipe.mpi) is not None and mpi.source == "wheel":
        steps += [
            f"{pip} --no-deps --ignore-installed --prefix {mpi.home} {mpi.distribution}=={mpi.version}",
            f"echo {mpi.home}/lib > /etc/ld.so.conf.d/fairlead-mpi.conf",
            "ldconfig",
        ]
    return steps
