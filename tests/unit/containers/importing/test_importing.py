"""`recipe import`: what is carried means the same, and no line passes in silence."""

from __future__ import annotations

import json
import os
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import ExitCode, FairleadError
from fairlead_build.cli.recipe import import_
from fairlead_build.importing import containerfile, definition
from fairlead_build.importing.containerfile import value_of
from fairlead_build.importing.folder import LOSSES, Imported, import_file, meaningful
from fairlead_build.importing.ledger import Ledger
from fairlead_build.importing.located import of_lines, split_lines
from fairlead_build.importing.shell import commands
from fairlead_build.recipe.load import load_recipe

DEBIAN = "FROM debian:bookworm-slim\n"
DEF = "Bootstrap: docker\nFrom: debian:12\n"
INSTALL = "apt-get install -y --no-install-recommends"


def imported(folder: Path, text: str, name: str = "Containerfile") -> Imported:
    """What an import of ``text`` would write."""
    (folder / name).write_text(text)
    return import_file(folder / name, folder / "out", dry_run=True)


def recipe(result: Imported) -> dict[str, Any]:
    return tomllib.loads(result.recipe)


def lost(result: Imported) -> list[tuple[int, str]]:
    return [(loss.first, loss.text) for loss in result.losses]


# --- scripts ----------------------------------------------------------------------------------


def cut(text: str) -> list[tuple[str, bool]]:
    """Each piece of a script, and whether it was taken apart."""
    found = commands(of_lines(split_lines(text)))
    return [(command.where.shown, not command.why) for command in found]


@pytest.mark.parametrize(
    ("script", "pieces"),
    [
        ("a && b; c\nd", [("a", True), ("b", True), ("c", True), ("d", True)]),
        ("a &&\n  b", [("a", True), ("b", True)]),
        ("a \\\n  b # c && d\ne", [("a \\ b", True), ("e", True)]),
        ("a || b\nc", [("a || b", False), ("c", True)]),
        ("a |\n b\nc", [("a | b", False), ("c", True)]),
        ("a & b", [("a & b", False)]),
        ("(a; b) && c", [("(a; b)", False), ("c", True)]),
        ("{ a; b; }\nc", [("{ a; b; }", False), ("c", True)]),
        ("if a; then\n b\nfi\nc", [("if a; then b fi", False), ("c", True)]),
        ("for x in 1 2; do a $x; done; c", [("for x in 1 2; do a $x; done", False), ("c", True)]),
        (
            "case $x in a) b;; *) c;; esac\nd",
            [("case $x in a) b;; *) c;; esac", False), ("d", True)],
        ),
        ("f() {\n a\n}\nb", [("f() { a }", False), ("b", True)]),
        ("cat <<E > f\nif a; then\nE\nb", [("cat <<E > f if a; then E", False), ("b", True)]),
        ("! a\nb", [("! a", False), ("b", True)]),
        ("a <<< E\nb", [("a <<< E", True), ("b", True)]),
        ("if a; then b", [("if a; then b", False)]),
        ("[[ a && b ]] && c", [("[[ a && b ]]", False), ("c", True)]),
        ("X=1\nY=2 a", [("X=1", True), ("Y=2 a", True)]),
        ("echo 'a && b' \"; c\"", [("echo 'a && b' \"; c\"", True)]),
        (") a", [(") a", False)]),
    ],
)
def test_script_is_cut_into_commands(script: str, pieces: list[tuple[str, bool]]) -> None:
    assert cut(script) == pieces


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a'b c'\"d\"", "ab cd"),
        ("$KNOWN/x", "yes/x"),
        ('"${KNOWN} x"', "yes x"),
        ("'$KNOWN'", "$KNOWN"),
        ("$OTHER", None),
        ("$(date)", None),
        ("`date`", None),
        ("*.so", None),
        ("~/x", None),
        ("{a,b}", None),
        ("${KNOWN:-x}", None),
        ("'never closed", None),
    ],
)
def test_word_has_a_value_only_where_it_is_certain(text: str, value: str | None) -> None:
    (command,) = commands(of_lines([(1, text)]), {"KNOWN": "yes"})
    assert command.words[0].value == value


@given(st.text("abif fi;do\n|&(){}<>'\"\\$`=E# -", max_size=60))
def test_script_of_any_signs_is_cut_without_losing_a_line(text: str) -> None:
    script = of_lines(split_lines(text))
    seen = {line for c in commands(script) for line in range(c.where.first, c.where.last + 1)}
    for number, line in split_lines(text):
        if meaningful(line) and line.split("#")[0].strip(" ;&\\"):
            assert number in seen


# --- Containerfiles ---------------------------------------------------------------------------


def test_containerfile_that_says_what_a_recipe_can_say_is_carried_whole(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "wants.txt").write_text("# mine\nscipy==1.17.0\n\nh5py>=3\n")
    result = imported(
        tmp_path,
        f"""# syntax=docker/dockerfile:1
ARG SUITE=bookworm
FROM docker.io/library/debian:${{SUITE}}-slim
ENV DEBIAN_FRONTEND=noninteractive \\
    # threads
    OMP_NUM_THREADS=4
ENV GREETING hello $OMP_NUM_THREADS
RUN set -eux; apt-get update -qq && {INSTALL} \\
      less libhdf5-103-1 \\
 && rm -rf /var/lib/apt/lists/* && apt-get clean
COPY --chmod=755 run.sh /opt/app/
COPY ["wants.txt", "/tmp/"]
RUN cd /tmp && pip3 install --no-cache-dir -r wants.txt 'numpy>=2' && rm /tmp/wants.txt
RUN chmod +x /opt/app/run.sh
LABEL org.example.who="A. B." version=1
MAINTAINER me
USER root
CMD ["/bin/bash"]
""",
    )
    assert not lost(result)
    answer = recipe(result)
    assert answer["base"] == {"distribution": "debian", "suite": "bookworm"}
    assert answer["packages"]["apt"] == ["less", "libhdf5-103-1"]
    assert answer["packages"]["pip"] == ["scipy==1.17.0", "h5py>=3", "numpy>=2"]
    assert answer["python"] == {"version": "3.11"}
    assert answer["files"] == {"/opt/app/run.sh": "files/opt/app/run.sh"}
    assert answer["env"]["OMP_NUM_THREADS"] == "4" and answer["env"]["GREETING"] == "hello 4"
    assert answer["labels"]["org.opencontainers.image.authors"] == "me"
    assert answer["labels"]["org.example.who"] == "A. B."


@pytest.mark.parametrize(
    "before",
    [
        "sudo",
        "sudo -E -H",
        "env",
        "sudo env",
        "sudo DEBIAN_FRONTEND=noninteractive",
        "/usr/bin/env LC_ALL=C sudo",
    ],
)
def test_packages_behind_sudo_and_env_are_carried(before: str, tmp_path: Path) -> None:
    text = f"FROM debian:bookworm\nRUN {before} {INSTALL} less && {before} rm -rf /var/lib/apt/lists/*\n"
    result = imported(tmp_path, text)
    assert not lost(result) and recipe(result)["packages"]["apt"] == ["less"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("RUN make install", "make install"),
        ("RUN env make install", "env make install"),
        ("RUN sudo -u me make", "sudo -u me make"),
        (f"RUN env -i {INSTALL} less", f"env -i {INSTALL} less"),
        ("RUN apt-get install -y less", "the packages that are only recommended by less"),
        (f"RUN {INSTALL} less=590-2", "less=590-2"),
        (f"RUN {INSTALL} -t backports less", f"{INSTALL} -t backports less"),
        (f"RUN {INSTALL} less || true", f"{INSTALL} less || true"),
        (f"RUN test -e /x && ({INSTALL} less)", f"({INSTALL} less)"),
        ("RUN apt-get upgrade -y", "apt-get upgrade -y"),
        ("RUN pip install git+https://example.org/x", "git+https://example.org/x"),
        ("RUN pip install -e .", "-e ."),
        ("RUN pip install .", "."),
        (
            "RUN pip install --index-url http://example.org/s numpy",
            "--index-url http://example.org/s",
        ),
        ("RUN pip install numpy==$VERSION", "numpy==$VERSION"),
        ("RUN pip install torch==2.13.0+cpu", "torch==2.13.0+cpu"),
        ("RUN pip install mpich", "mpich"),
        ("RUN pip install -r wants.txt", "-r /wants.txt"),
        ("RUN numpy>=2", "numpy>=2"),
        ("RUN HOROVOD_WITH_PYTORCH=1 pip install horovod", "HOROVOD_WITH_PYTORCH=1"),
        ("RUN env CC=$(which mpicc) pip install mpi4py", "CC=?"),
        ("RUN PIP_PRE=1 pip install numpy", "PIP_PRE=1"),
        ("RUN python3.9 -m pip install numpy", "python3.9 -m pip install numpy"),
        (f"RUN {INSTALL} less-", "less-"),
        (f"RUN {INSTALL} -o APT::Install-Suggests=1 less", "-o APT::Install-Suggests=1"),
        (f"RUN {INSTALL} -d less", f"{INSTALL} -d less"),
        ("RUN cd $X && pip install -r here", "-r here"),
        ("COPY --exclude=here . /opt/", None),
        ("RUN curl -o /x http://example.org", "curl -o /x http://example.org"),
        ("RUN --mount=type=bind,from=a,target=/a cp /a/x /x", None),
        ("RUN --mount=type=secret,id=k pip install numpy", None),
        ('RUN ["make", "a b"]', "'make' 'a b'"),
        ("COPY --from=a /x /y", None),
        ("COPY nothing /y", "nothing"),
        ("COPY here /run/x", "here to /run/x"),
        ("COPY here /etc/pip.conf", "here to /etc/pip.conf"),
        ("COPY here /root/.config/pip/pip.conf", "here to /root/.config/pip/pip.conf"),
        ("COPY here /etc/apt/sources.list.d/", "here to /etc/apt/sources.list.d/here"),
        ("COPY here /etc/apt/preferences.d/", "here to /etc/apt/preferences.d/here"),
        ("RUN pip config set global.constraint /c", "pip config set global.constraint /c"),
        ("ADD http://example.org/x.gz /x", "http://example.org/x.gz"),
        ("COPY --chown=me here /opt/x", "--chown=me"),
        ("ENV PATH=/x:$PATH", "ENV PATH=/x:$PATH"),
        ("ENV LD_LIBRARY_PATH=/x", "ENV LD_LIBRARY_PATH=/x"),
        ("ENV HOME=/home/me", "ENV HOME=/home/me"),
        ("ENV A=$UNKNOWN", "ENV A=$UNKNOWN"),
        ("ENV A=${UNKNOWN:-x}", "ENV A=${UNKNOWN:-x}"),
        ("ARG A", "ARG A"),
        ("WORKDIR /opt/app", None),
        ("USER me", None),
        ("EXPOSE 80", None),
        ("VOLUME /data", None),
        ('ENTRYPOINT ["python3", "-m", "a b"]', None),
        ("CMD python3", None),
        ("HEALTHCHECK CMD true", None),
        ("ONBUILD RUN true", None),
        ("STOPSIGNAL 9", None),
        ('SHELL ["/bin/pwsh"]', None),
        ("INSTALL less", None),
        ("SCRIPT x", None),  # the name of no instruction, though of a method
        ("RUN", None),
    ],
)
def test_line_that_no_recipe_can_say_is_lost_with_its_place(
    tmp_path: Path, line: str, text: str | None
) -> None:
    (tmp_path / "here").write_text("x")
    result = imported(tmp_path, f"{DEBIAN}# a remark\n{line}\n")
    assert (3, text or line) in lost(result)
    for loss in result.losses:
        assert loss.why and loss.instead


@pytest.mark.parametrize(
    "body",
    [
        f"{INSTALL} kept\nmake install\n",
        f"{INSTALL} kept\nif x; then\n{INSTALL} trap\nfi\n",
        f"cat > /x <<END\n{INSTALL} trap\nEND\n{INSTALL} kept\n",
    ],
)
def test_here_document_of_run_is_read_as_a_script(tmp_path: Path, body: str) -> None:
    result = imported(tmp_path, f"{DEBIAN}RUN <<EOF\n{body}EOF\n{'RUN true'}\n")
    assert recipe(result)["packages"]["apt"] == ["kept"]
    assert len(result.losses) == 1 and result.losses[0].first > 2


def test_file_that_configures_pip_is_not_quietly_without_effect(tmp_path: Path) -> None:
    """Its constraint changed what was installed; nothing in a recipe reads it."""
    text = 'COPY <<"END" /etc/pip.conf\n[global]\nconstraint=/c\nEND\nRUN pip install numpy\n'
    (loss,) = imported(tmp_path, f"{DEBIAN}{text}").losses
    assert "configures pip" in loss.why and "[packages]" in loss.instead
    (tmp_path / "keys").write_text("x")
    kept = imported(tmp_path, f"{DEBIAN}COPY keys /etc/apt/keyrings/\n")
    assert not kept.losses


def test_here_document_of_copy_becomes_a_file(tmp_path: Path) -> None:
    result = imported(tmp_path, f"{DEBIAN}COPY <<'E' /etc/a\nx=$y\nE\nCOPY <<E /etc/b\n$z\nE\n")
    assert list(result.files) == ["/etc/a"]
    assert lost(result) == [(5, "COPY <<E /etc/b $z E")]


def test_two_smaller_signs_inside_a_word_begin_no_here_document(tmp_path: Path) -> None:
    text = f"{DEBIAN}RUN echo $((1<<3)) '<<a' && {INSTALL} less\nRUN {INSTALL} jq\n"
    result = imported(tmp_path, text)
    assert recipe(result)["packages"]["apt"] == ["less", "jq"] and not lost(result)


@pytest.mark.parametrize(
    ("target", "place"),
    [("/app", "/app/here"), ("/bin", "/bin/here"), ("/usr/sbin", "/usr/sbin/here"),
     ("/made", "/made/here"), ("/other", "/other"), ("/etc/a", "/etc/a/here")],
)  # fmt: skip
def test_copy_to_a_folder_that_is_there_lands_in_it(
    tmp_path: Path, target: str, place: str
) -> None:
    (tmp_path / "here").write_text("x")
    before = "WORKDIR /app\nRUN mkdir -p /made\nCOPY here /etc/a/b\n"
    assert place in imported(tmp_path, f"{DEBIAN}{before}COPY here {target}\n").files


def test_archive_is_unpacked_by_add_whatever_its_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "data.bin", "w:gz"):
        pass
    result = imported(tmp_path, f"{DEBIAN}ADD data.bin /opt/\n")
    assert lost(result) == [(2, "data.bin")] and not result.files


def test_requirements_file_in_tmp_is_read(tmp_path: Path) -> None:
    (tmp_path / "wants.txt").write_text("numpy>=2\n")
    text = f"{DEBIAN}COPY wants.txt /tmp\nRUN pip install -r /tmp/wants.txt\n"
    assert recipe(imported(tmp_path, text))["packages"]["pip"] == ["numpy>=2"]


def test_variable_of_pip_that_changes_what_it_installs_is_lost_once(tmp_path: Path) -> None:
    pip = "RUN pip install numpy\n"
    text = f"{DEBIAN}ENV PIP_EXTRA_INDEX_URL=http://example.org/s PIP_NO_CACHE_DIR=1\n{pip}{pip}"
    result = imported(tmp_path, text)
    assert lost(result) == [(3, "PIP_EXTRA_INDEX_URL=http://example.org/s")]


@pytest.mark.parametrize(
    ("commands", "wanted"),
    [
        ("pip install six==1.16.0 && pip install six", ["six==1.16.0"]),
        ("pip install six==1.16.0 && pip install 'six>=1'", ["six==1.16.0", "six>=1"]),
        ("pip install six==1.16.0 && pip install six==1.17.0", ["six==1.17.0"]),
        ("pip install six==1.16.0 && pip install -qU six", ["six"]),
        ("pip install six && pip install 'six>=1'", ["six>=1"]),
        (
            "pip install \"six>1; python_version>'3.8'\" \"six<1; python_version<'3.8'\"",
            ["six>1; python_version>'3.8'", "six<1; python_version<'3.8'"],
        ),
        ("pip --no-cache-dir install six==1.16.*", ["six==1.16.*"]),
        ("python3.11 -m pip install six && pip3.11 install attrs", ["six", "attrs"]),
        ("pip install --upgrade pip setuptools", ["setuptools"]),
        ("pip install six && pip install --dry-run attrs", ["six"]),
    ],
)
def test_requirements_add_up_as_those_of_pip(
    tmp_path: Path, commands: str, wanted: list[str]
) -> None:
    result = imported(tmp_path, f"{DEBIAN}RUN {commands}\n")
    assert recipe(result)["packages"]["pip"] == wanted and not lost(result)


def test_hashes_of_requirements_are_lost_once_and_their_versions_are_not(tmp_path: Path) -> None:
    pins = "numpy==2.0.0 --hash=sha256:ab --hash=sha256:cd\nscipy==1.17.0 \\\n  --hash=sha256:ef\n"
    (tmp_path / "wants.txt").write_text(pins)
    text = f"{DEBIAN}COPY wants.txt /tmp\nRUN pip install --require-hashes -r /tmp/wants.txt\n"
    result = imported(tmp_path, text)
    assert recipe(result)["packages"]["pip"] == ["numpy==2.0.0", "scipy==1.17.0"]
    assert [text for _, text in lost(result)] == ["the hashes of wants.txt"]


@pytest.mark.parametrize(
    ("mount", "file"),
    [
        ("type=bind,source=wants.txt,target=/req.txt", "/req.txt"),
        ("target=/src", "/src/wants.txt"),
        ("type=bind,src=.,dst=here,ro", "/work/here/wants.txt"),
        ("type=cache,target=/root/.cache --mount=type=bind,target=.", "wants.txt"),
    ],
)
def test_requirements_that_a_run_mounts_are_read_and_not_laid(
    tmp_path: Path, mount: str, file: str
) -> None:
    (tmp_path / "wants.txt").write_text("numpy>=2\n")
    text = f"{DEBIAN}WORKDIR /work\nRUN --mount={mount} pip install -r {file}\n"
    result = imported(tmp_path, text)
    assert recipe(result)["packages"]["pip"] == ["numpy>=2"] and not result.files
    assert [text for _, text in lost(result)] == ["WORKDIR /work"]
    again = imported(tmp_path, f"{text}RUN pip install -r {file}\n")
    assert lost(again)[-1][0] == 4  # it is mounted for that RUN alone


@pytest.mark.parametrize(
    "mount",
    [
        "type=bind,from=other,target=/x",
        "type=secret,id=x",
        "type=ssh",
        "target=/x,source=none",
        "source=wants.txt",
        "target=/x,source=../outside",
    ],
)
def test_run_with_a_mount_of_what_is_not_known_here_is_lost(tmp_path: Path, mount: str) -> None:
    line = f"RUN --mount={mount} {INSTALL} less"
    result = imported(tmp_path, f"{DEBIAN}{line}\n")
    assert lost(result) == [(2, line)]


@pytest.mark.parametrize(
    ("script", "wanted", "losses"),
    [
        (f"{INSTALL} aa; exit 0; {INSTALL} bb", ["aa"], []),
        (f"{INSTALL} aa && exit && {INSTALL} bb", ["aa"], [f"{INSTALL} bb"]),
        (f"{INSTALL} aa && exit 0; {INSTALL} bb", ["aa"], [f"{INSTALL} bb"]),
        (f"{INSTALL} aa; exit 3; {INSTALL} bb", ["aa"], ["exit 3", f"{INSTALL} bb"]),
        (f"{INSTALL} aa; x || exit 1; {INSTALL} bb", ["aa", "bb"], ["x || exit 1"]),
        (f"{INSTALL} aa; exit 0", ["aa"], []),
        (f"if x; then exit 0; fi; {INSTALL} bb", [], ["if x; then exit 0; fi", f"{INSTALL} bb"]),
        (f"x || exit 0; {INSTALL} bb", [], ["x || exit 0", f"{INSTALL} bb"]),
        (f"x || exit; {INSTALL} bb", ["bb"], ["x || exit"]),
        (f"(exit 0); {INSTALL} bb", ["bb"], ["(exit 0)"]),
        (f'exit "$X"; {INSTALL} bb', [], ['exit "$X"', f"{INSTALL} bb"]),
    ],
)
def test_what_follows_an_exit_is_not_carried(
    tmp_path: Path, script: str, wanted: list[str], losses: list[str]
) -> None:
    result = imported(tmp_path, f"{DEBIAN}RUN {script}\nRUN {INSTALL} zz\n")
    assert recipe(result)["packages"]["apt"] == [*wanted, "zz"]
    assert [text for _, text in lost(result)] == losses


def test_requirement_whose_string_python_cannot_read_is_lost(tmp_path: Path) -> None:
    (tmp_path / "wants.txt").write_text("six; python_version > '\\'\n")
    text = f"{DEBIAN}COPY wants.txt /tmp\nRUN pip install -r /tmp/wants.txt\n"
    assert "not a requirement" in imported(tmp_path, text).losses[0].why


@pytest.mark.parametrize(
    ("command", "losses"),
    [
        ("pip install --group dev six", ["--group dev"]),
        ("pip install --use-feature fast-deps --report out.json six", []),
        ("pip install --some-day option six", ["--some-day option"]),
        ("pip install -Z option six", ["-Z option"]),
        ("uv pip install --system --no-cache six", []),
        (
            "uv pip install --torch-backend auto -r none.txt six",
            ["--torch-backend auto", "-r /none.txt"],
        ),
        ("uv sync", ["uv sync"]),
        (f"{INSTALL} --solver 3.0 less", ["--solver 3.0"]),
        (f"{INSTALL} -c /etc/x.conf less", ["-c /etc/x.conf"]),
        ("apt-get --some-day install -y --no-install-recommends less", ["--some-day"]),
    ],
)
def test_value_of_an_option_is_no_package(tmp_path: Path, command: str, losses: list[str]) -> None:
    result = imported(tmp_path, f"{DEBIAN}RUN {command}\n")
    packages = recipe(result).get("packages", {})
    assert {**packages} in ({}, {"apt": ["less"]}, {"pip": ["six"]})
    assert bool(packages) is (command != "uv sync")
    assert [text for _, text in lost(result)] == losses


@pytest.mark.parametrize(
    "line", ["FROM debian:12 more", "FROM debian:12\rRUN make", "FROM debian:12 as"]
)
def test_base_with_words_that_no_build_takes_is_lost(tmp_path: Path, line: str) -> None:
    (tmp_path / "Containerfile").write_bytes(f"{line}\n".encode())
    result = import_file(tmp_path / "Containerfile", tmp_path / "out", dry_run=True)
    assert "behind AS" in result.losses[0].why


def test_files_whose_names_no_recipe_can_hold_are_lost_on_one_line_each(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for name in (b"caf\xe9", b"a\nb", b"plain"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).touch()
    (tmp_path / "Containerfile").write_text(f"{DEBIAN}COPY d /opt/d\n")
    result = import_file(tmp_path / "Containerfile", tmp_path / "out", allow_loss=True)
    assert recipe(result)["files"] == {"/opt/d/plain": "files/opt/d/plain"}
    shown = [text for _, text in lost(result)]
    assert shown == ["d/a\\nb to /opt/d/a\\nb", "d/caf\\xe9 to /opt/d/caf\\xe9"]


def test_loss_of_many_runs_is_one(tmp_path: Path) -> None:
    pip = "RUN pip install --index-url http://example.org/s"
    lines = [
        "RUN apt-get install -y aa bb",
        f"{pip} six",
        "RUN apt-get install -y bb cc",
        f"{pip} attrs",
    ]
    result = imported(tmp_path, DEBIAN + "\n".join(lines))
    assert lost(result) == [
        (2, "the packages that are only recommended by aa bb cc"),
        (3, "--index-url http://example.org/s"),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("-e .", "copied into the recipe's folder"),
        ("./sub[dev]", "copied into the recipe's folder"),
        ("git+http://example.org/x", "of a release's archive"),
        ("'x @ http://example.org/x.zip'", "of a release's archive"),
        ("-c limits.txt six", "packages.pip lists"),
    ],
)
def test_what_no_index_has_is_lost_with_what_a_recipe_needs_for_it(
    tmp_path: Path, arguments: str, words: str
) -> None:
    (loss,) = imported(tmp_path, f"{DEBIAN}RUN pip install {arguments}\n").losses
    assert words in loss.instead
    assert ("what it requires" in loss.instead) is ("[[source]]" in loss.instead)


def test_run_with_a_mount_on_a_line_of_its_own_is_carried(tmp_path: Path) -> None:
    text = f"{DEBIAN}RUN --mount=type=cache,target=/var/cache/apt \\\n  {INSTALL} less\n"
    result = imported(tmp_path, text)
    assert recipe(result)["packages"]["apt"] == ["less"] and not lost(result)


def test_containerfile_that_writes_a_definition_is_a_containerfile(tmp_path: Path) -> None:
    text = f"{DEBIAN}RUN <<EOF\n{INSTALL} less\ncat > /x <<E\nBootstrap: docker\nE\nEOF\n"
    assert recipe(imported(tmp_path, text))["packages"]["apt"] == ["less"]


def test_stages_are_never_merged(tmp_path: Path) -> None:
    text = f"""FROM debian:bookworm AS one
RUN {INSTALL} gcc
FROM debian:bookworm AS two
RUN {INSTALL} less
FROM two
RUN {INSTALL} vim
COPY --from=one /x /x
"""
    result = imported(tmp_path, text)
    assert recipe(result)["packages"]["apt"] == ["less", "vim"]
    assert [line for line, _ in lost(result)] == [1, 2, 7]


@pytest.mark.parametrize(
    ("image", "base"),
    [
        ("debian:12", {"distribution": "debian", "suite": "bookworm"}),
        ("docker.io/library/ubuntu:22.04", {"distribution": "ubuntu", "suite": "jammy"}),
        ("debian", {"image": "docker://debian"}),
        ("debian:latest", {"image": "docker://debian:latest"}),
        ("python:3.11-slim", {"image": "docker://python:3.11-slim"}),
        (f"debian@sha256:{'a' * 64}", {"image": f"docker://debian@sha256:{'a' * 64}"}),
    ],
)
def test_base_is_a_release_of_the_mirror_or_the_image_itself(
    tmp_path: Path, image: str, base: dict[str, str]
) -> None:
    assert recipe(imported(tmp_path, f"FROM {image}\nRUN true\n"))["base"] == base


def test_dated_image_is_not_quietly_todays(tmp_path: Path) -> None:
    result = imported(tmp_path, "FROM debian:bookworm-20240101-slim\n")
    assert lost(result) == [(1, "FROM debian:bookworm-20240101-slim")]


@pytest.mark.parametrize(
    ("image", "word"),
    [
        ("alpine", "alpine"), ("alpine:3.20", "alpine"), ("python:3.12-alpine3.20", "alpine3.20"),
        ("rockylinux:9", "rockylinux"), ("docker.io/rockylinux/rockylinux:8.9-minimal", "rockylinux"),
        ("almalinux:9", "almalinux"), ("quay.io/centos/centos:stream9", "centos"), ("centos:7", "centos"),
        ("fedora:40", "fedora"), ("registry.access.redhat.com/ubi9/ubi:9.4", "ubi9"), ("busybox", "busybox"),
        ("nvidia/cuda:12.4.1-devel-rockylinux9", "rockylinux9"), ("nvidia/cuda:12.4.1-devel-ubi8", "ubi8"),
        ("opensuse/leap:15", "opensuse"), ("gcr.io/distroless/python3-debian12", "distroless"),
        ("amazonlinux:2023", "amazonlinux"), ("oraclelinux:8", "oraclelinux"), ("archlinux", "archlinux"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["Containerfile", "x.def"])
def test_base_without_apt_is_lost_and_not_listed(
    image: str, word: str, form: str, tmp_path: Path
) -> None:
    text = f"FROM {image}\n" if form == "Containerfile" else f"Bootstrap: docker\nFrom: {image}\n"
    (tmp_path / form).write_text(text)
    with pytest.raises(FairleadError) as caught:
        import_file(tmp_path / form, tmp_path / "out", dry_run=True)
    assert any(f"`{word}` has no apt" in f.why for f in caught.value.findings), (
        caught.value.findings
    )


@pytest.mark.parametrize(
    "image",
    [
        "python:3.11-slim-bookworm", "nvidia/cuda:12.4.1-devel-ubuntu22.04", "pytorch/pytorch:2.4.0",
        "alpine.example.org/team/image:1", "centos.local:5000/debian-based", "ghcr.io/team/tubing:ubiquity",
    ],
)  # fmt: skip
def test_base_that_may_have_apt_is_the_image_itself(image: str, tmp_path: Path) -> None:
    result = imported(tmp_path, f"FROM {image}\n")
    assert recipe(result)["base"] == {"image": f"docker://{image}"}
    known = "debian" in image or "ubuntu" in image
    assert result.base == ("" if known else f"docker://{image}")


def test_base_of_which_nothing_is_known_is_named(tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text("FROM quay.io/team/image:1\n")
    for words in ((), ("--dry-run",)):
        output = ["-o", str(tmp_path / f"out{len(words)}")]
        done = CliRunner().invoke(import_, [str(tmp_path / "Containerfile"), *output, *words])
        assert done.exit_code == 0 and "docker://quay.io/team/image:1 is unknown" in done.output
        assert "fairlead recipe lock" in done.output


def test_labels_and_files_of_a_definition_are_taken_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("pass\n")
    text = (
        DEF + "%labels\n   Maintainer  A.  B. <a@b>\n  bootstrap: x\n%files\n   a.py   /opt/a.py\n"
    )
    answer = recipe(imported(tmp_path, text, "x.def"))
    assert answer["labels"] == {"Maintainer": "A.  B. <a@b>", "bootstrap:": "x"}
    assert answer["files"] == {"/opt/a.py": "files/opt/a.py"}


@pytest.mark.parametrize(
    "text", ["FROM scratch\nRUN true\n", "FROM $X\n", "Bootstrap: yum\n", "%post\n  x\n"]
)
def test_file_without_a_base_gives_no_recipe_also_when_loss_is_allowed(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(FairleadError) as caught:
        import_file(tmp_path / "x", tmp_path / "out", allow_loss=True)
    assert caught.value.findings[-1].check == "import-base"
    assert caught.value.code == ExitCode.USAGE and not (tmp_path / "out").exists()


def test_escape_directive_is_heeded(tmp_path: Path) -> None:
    text = f"# escape=`\n{DEBIAN}RUN {INSTALL} `\n  less\n"
    assert recipe(imported(tmp_path, text))["packages"]["apt"] == ["less"]


def test_dockerignore_leaves_files_out(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("*.log\n")
    (tmp_path / "app").mkdir()
    (tmp_path / "app/a.py").write_text("")
    (tmp_path / "app/b.log").write_text("")
    (tmp_path / "app/link").symlink_to("a.py")
    result = imported(tmp_path, f"{DEBIAN}COPY app /opt/app\nCOPY app/*.log /opt/\n")
    assert list(result.files) == ["/opt/app/a.py"] or "/opt/app/b.log" in result.files
    assert {text for _, text in lost(result)} >= {"app/link"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A", "1"),
        ("${A}x", "1x"),
        ("${B:-2}", None),
        ("${A:+3}", "3"),
        ("\\$A", "$A"),
        ("$B", None),
    ],
)
def test_variables_of_instructions_are_replaced(text: str, value: str | None) -> None:
    assert value_of(text, {"A": "1"}, "\\") == value


# --- definitions ------------------------------------------------------------------------------


def test_definition_that_says_what_a_recipe_can_say_is_carried_whole(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/a.py").write_text("x")
    result = imported(
        tmp_path,
        f"""# mine
BootStrap: docker
From: Debian:{{{{ RELEASE }}}} # slim

%arguments
    RELEASE=bookworm

%files
    app /opt/
%labels
    Author A. B.
    Release {{{{ RELEASE }}}}
%environment
    # threads
    export OMP_NUM_THREADS=4 B='x y'
%post
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    {INSTALL} python3 mpich
    pip3 install numpy
    apt-get clean && rm -rf /var/lib/apt/lists/*
%runscript
    exec "$@"
""".replace("Debian:", "debian:"),
        "x.def",
    )
    assert not lost(result)
    answer = recipe(result)
    assert answer["base"] == {"distribution": "debian", "suite": "bookworm"}
    assert answer["mpi"] == {"family": "mpich", "source": "apt", "package": "mpich"}
    assert answer["files"] == {"/opt/app/a.py": "files/opt/app/a.py"}
    assert answer["env"] == {"OMP_NUM_THREADS": "4", "B": "x y"}
    assert answer["labels"] == {"Author": "A. B.", "Release": "bookworm"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Bootstrap: docker\nFrom: debian:12\nStage: one\n%post\n  make\n" + DEF, 5),
        (DEF + "%files from one\n  /x /y\n", 4),
        (DEF + "%environment\n  if [ a = b ]; then\n    export A=1\n  fi\n", 5),
        (DEF + "%environment\n  A=1\n", 4),
        (DEF + "%environment\n  . /opt/setup.sh\n", 4),
        (DEF + "%environment\n  export A=$(date)\n", 4),
        (DEF + "%post\n  cat > /x << EOF\n  %s\n  EOF\n", 5),
        (DEF + "%post\n  cat > /x <<EOF\n   a\n\n   b\nEOF\n", 6),
        (DEF + "%post\n  wget from: x\n", 4),
        (DEF + "%setup\n  cp x $SINGULARITY_ROOTFS/x\n", 4),
        (DEF + "%runscript\n  python3 a.py\n  python3 b.py\n", 5),
        (DEF + "%startscript\n  serve\n", 4),
        (DEF + "%test\n  python3 -c 'import x'\n", 4),
        (DEF + "%help\n  words\n", 4),
        (DEF + "%apprun a\n  x\n", 4),
        (DEF + "%psot\n  x\n", 4),
        (DEF + "IncludeCmd: yes\n", 3),
        (DEF + "%arguments\n  A\n%post\n  x {{ A }}\n", 6),
        ("Bootstrap: localimage\nFrom: x.sif\n", 1),
        ("Bootstrap: library\nFrom: debian\n", 2),
        (DEF + "%post -c /usr/bin/python3\n  import os\n", 4),
    ],
)
def test_loss_of_a_definition_is_reported(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "x.def").write_text(text)
    try:
        losses = import_file(tmp_path / "x.def", tmp_path / "out", dry_run=True).losses
        assert any(loss.first <= line <= loss.last for loss in losses), losses
    except FairleadError as exc:
        assert any(f.where.endswith(f":{line}") for f in exc.findings), exc.findings


def test_argument_without_a_default_is_no_package(tmp_path: Path) -> None:
    text = f"{DEF}%post\npip install scipy=={{{{ VERSION }}}} numpy\n{INSTALL} {{{{ NAME }}}}\n"
    result = imported(tmp_path, text, "a.def")
    assert lost(result) == [(4, "scipy=={{VERSION}}"), (5, "{{NAME}}")]
    assert recipe(result)["packages"] == {"pip": ["numpy"]}


def test_image_of_a_definition_keeps_its_capital_letters(tmp_path: Path) -> None:
    text = "Bootstrap: docker\nFrom: example.org/Team/Image:V2\n"
    assert recipe(imported(tmp_path, text, "x.def"))["base"]["image"].endswith("/Team/Image:V2")


def test_word_bootstrap_in_post_is_no_header(tmp_path: Path) -> None:
    text = DEF + f"%post\n  echo bootstrap: x\n  echo from: y\n  {INSTALL} less\n"
    result = imported(tmp_path, text, "x.def")
    assert not result.losses and recipe(result)["packages"]["apt"] == ["less"]


def test_debootstrap_becomes_a_release(tmp_path: Path) -> None:
    text = "Bootstrap: debootstrap\nOSVersion: bookworm\nMirrorURL: http://example.org/debian\nInclude: less\n"
    result = imported(tmp_path, text, "x.def")
    assert not result.losses
    assert recipe(result)["base"]["suite"] == "bookworm"
    assert recipe(result)["packages"]["apt"] == ["less"]


def test_header_may_be_indented(tmp_path: Path) -> None:
    """Apptainer 1.4.5 builds such a definition."""
    (tmp_path / "x.def").write_text(
        "# a client\n\n  Bootstrap: docker\n  From: debian:12\n\n%post\napt-get install -y gcc\n"
    )
    found = import_file(tmp_path / "x.def", tmp_path / "out", dry_run=True, allow_loss=True)
    assert 'suite = "bookworm"' in found.recipe and '"gcc"' in found.recipe


def test_name_of_the_last_stage_says_nothing_about_an_image(tmp_path: Path) -> None:
    assert not imported(tmp_path, DEF + "Stage: final\n", "x.def").losses


def test_debootstrap_of_a_point_release_loses_that_line_only(tmp_path: Path) -> None:
    text = "Bootstrap: debootstrap\nOSVersion: 12.5\nMirrorURL: http://example.org/debian\n"
    assert lost(imported(tmp_path, text, "x.def")) == [(2, "FROM debian:12.5")]


# --- any file ---------------------------------------------------------------------------------

_DOCKER_LINES = st.sampled_from([
    "FROM debian:12", "FROM debian:12 AS a", "FROM a", "ENV A=1", "ENV A", "LABEL a=b", "RUN \\", "&& \\",
    "  less \\", "RUN <<EOF", "EOF", "# remark", "", "COPY . /opt/all", "COPY <<E /x", "E", "ARG X", "ARG X=1",
    "RUN if x; then", "fi", "FROM $X", 'CMD ["a"]', "RUN pip install 'a", "'", "\tRUN x", "run true", "\u00e4 b",
])  # fmt: skip
_DEF_LINES = st.sampled_from([
    "Bootstrap: docker", "From: debian:12", "Stage: a", "%post", "%files", "%files from a", "%labels", "%environment",
    "%runscript", "%arguments", "%help", "%weird x", "  A=1", "  export A=1", "  if x; then", "  fi", "  a b", "a /b",
    "# remark", "", "  cat <<E", "E", "  {{ A }}", "bootstrap: yum", "  'x", "Include: a", "no header",
])  # fmt: skip
_PACKAGES = st.lists(st.integers(0, 9), max_size=3)


def _lines(pool: st.SearchStrategy[str], install: str) -> st.SearchStrategy[list[str]]:
    package = st.integers(0, 9).map(lambda n: f"{install} {INSTALL} pkg-{n}")
    return st.lists(st.one_of(pool, pool, package), max_size=14)


def _check_account(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    try:
        result = import_file(path, folder / "out", dry_run=True)
    except FairleadError as exc:
        assert exc.code == ExitCode.USAGE
        assert {f.check for f in exc.findings} <= {
            "import-loss",
            "import-base",
            "import-unreadable",
        }
        return
    ledger = Ledger(str(path), scratch=folder)
    reader = definition if name.endswith(".def") else containerfile
    reader.read(text, ledger, folder)
    lost_lines = {n for loss in result.losses for n in range(loss.first, loss.last + 1)}
    # In a section of labels it is one, in a here-document of COPY the text of a file.
    kept = result.recipe + "".join(p.read_text() for p in ledger.staged.values())
    section = ""
    for number, line in split_lines(text):
        section = line if line.startswith("%") else section
        if meaningful(line):
            assert number in ledger.read or number in lost_lines, (number, line)
        for word in line.split():
            # A later label of the same name replaces an earlier one, as it does in Apptainer.
            if word.startswith("pkg-") and word not in kept and section != "%labels":
                assert number in lost_lines, (number, line)


@given(_lines(_DOCKER_LINES, "RUN"))
def test_every_line_of_a_containerfile_is_carried_or_lost(tmp_path: Path, lines: list[str]) -> None:
    _check_account(tmp_path, "Containerfile", "\n".join(["FROM debian:12", *lines]) + "\n")


@given(_lines(_DEF_LINES, " "))
def test_every_line_of_a_definition_is_carried_or_lost(tmp_path: Path, lines: list[str]) -> None:
    _check_account(tmp_path, "x.def", "\n".join([DEF.rstrip(), *lines]) + "\n")


# --- the verb ---------------------------------------------------------------------------------


def test_import_writes_a_sound_recipe_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "Containerfile").write_text(f"{DEBIAN}COPY run /opt/run\nRUN {INSTALL} less\n")
    done = CliRunner().invoke(
        import_, [str(tmp_path / "Containerfile"), "-o", str(tmp_path / "my image")]
    )
    assert done.exit_code == 0, done.output
    loaded = load_recipe(tmp_path / "my image")
    assert loaded.name == "my-image" and loaded.recipe.packages.apt == ("less",)
    assert loaded.files[0].mode == 0o755
    assert not (tmp_path / "my image" / LOSSES).exists()


def test_import_with_losses_writes_nothing_unless_allowed(tmp_path: Path) -> None:
    file, folder = tmp_path / "x.def", tmp_path / "out"
    file.write_text(DEF + "%post\n  make\n")
    done = CliRunner().invoke(import_, [str(file), "-o", str(folder)], standalone_mode=False)
    assert isinstance(done.exception, FairleadError) and done.exception.code == ExitCode.USAGE
    checks = [f.check for f in done.exception.findings]
    assert checks == ["import-loss", "import-lossy"] and not folder.exists()
    shown = CliRunner().invoke(
        import_, [str(file), "-o", str(folder), "--dry-run", "--json"], standalone_mode=False
    )
    answer = json.loads(shown.output)
    assert shown.return_value == 2 and not folder.exists()
    assert answer["losses"][0]["first"] == 4 and answer["losses"][0]["text"] == "make"
    done = CliRunner().invoke(import_, [str(file), "-o", str(folder), "--allow-loss"])
    assert done.exit_code == 0 and "| make |" in (folder / LOSSES).read_text()


def test_import_into_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.def").write_text(DEF)
    with pytest.raises(FairleadError) as caught:
        import_file(tmp_path / "x.def", tmp_path)
    assert caught.value.findings[0].check == "import-folder"


@pytest.mark.parametrize("data", [b"", b"hello\n", b"\xff\xfe", None])
def test_import_of_anything_else_is_refused(tmp_path: Path, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / "x").write_bytes(data)
    with pytest.raises(FairleadError) as caught:
        import_file(tmp_path / "x", tmp_path / "out")
    assert caught.value.findings[0].check == "import-unreadable"


def test_import_of_a_rendered_recipe_reports_that_its_root_is_made_of_nothing(
    tmp_path: Path,
) -> None:
    rendered = Path(__file__).parents[4] / "containers/rendered/mpi-base/Containerfile"
    with pytest.raises(FairleadError) as caught:
        import_file(rendered, tmp_path / "out", allow_loss=True)
    *losses, base = caught.value.findings
    assert base.check == "import-base" and len(losses) > 5
