"""In which folder the commands of a text are."""

from __future__ import annotations

import pytest

from fairlead.base.shell_commands import commands


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("cd /opt/app && ./p", "/opt/app/p"),
        ("cd /opt/app || exit 1\n./p", "/opt/app/p"),
        ("set -e; cd -P -- /opt\ncd app; ./p | tee log", "/opt/app/p"),
        ("export A=1 && cd /opt/app/lib && ../p", "/opt/app/p"),
        ("x=$(pwd); cd /opt/app; for i in 1 2; do ./p $i; done", "/opt/app/p"),
        ("./p", "./p"),
        ("cd /opt/app; ~/p", "~/p"),
        ("cd $HOME && ./p", "./p"),
        ("cd && ./p", "./p"),
        ("cd - && ./p", "./p"),
        ("(cd /opt/app); ./p", "./p"),
        ("x=$(cd /opt/app; pwd); ./p", "./p"),
        ("cd /opt/app | cat; ./p", "./p"),
        ("cd /opt/app & ./p", "./p"),
        ("if true; then cd /opt/app; fi; ./p", "./p"),
        ("[ -d /opt/app ] && cd /opt/app; ./p", "./p"),
        ("make && cd /opt/app; ./p", "./p"),
        ("for i in 1 2; do ./p; cd /opt/app; done", "./p"),
        ("pushd /opt/app; ./p", "./p"),
    ],
)
def test_program_by_a_relative_path_is_placed_where_its_folder_is_sure(
    text: str, program: str
) -> None:
    found = commands(text)
    assert found is not None
    assert [words[0] for words in found if words[0].endswith("/p")] == [program]


def test_text_starts_in_the_folder_that_is_given() -> None:
    assert commands("cd x && nice ./r; bin/q", "/w") == (("nice", "/w/x/r"), ("/w/x/bin/q",))
    assert commands("./p && cd x && nice ./r", "/w") == (("./p",), ("nice", "./r"))
