"""``fairlead doctor``'s own words, where no machine is examined."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fairlead.cli.doctor import doctor
from fairlead.doctor.registry import CHECKS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fus"], "Did you mean `fuse`?"),
        (["zzz"], "Known: capabilities, engine,"),
        (["--yes"], "--yes and --host-mpi belong to --fix"),
        (["--host-mpi", "mpich==5.0.2"], "--yes and --host-mpi belong to --fix"),
        (["--fix"], "there is no terminal; add --yes"),
    ],
)
def test_doctor_wrong_words_are_bad_usage(words: list[str], said: str) -> None:
    result = CliRunner().invoke(doctor, words)
    assert result.exit_code == 2
    assert said in result.output


def test_doctor_help_lists_every_check() -> None:
    shown = CliRunner().invoke(doctor, ["--help"]).output
    assert all(check.name in shown and check.about in shown for check in CHECKS)
