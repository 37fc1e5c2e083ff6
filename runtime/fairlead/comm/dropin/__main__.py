"""``python3 -m fairlead.comm.dropin [--only NAMES] SCRIPT|-m MODULE ARGS…``: runs an old script unchanged."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from fairlead.comm.dropin import NAMES, install
from fairlead.comm.dropin.variables import HONOURED, IGNORED

_USAGE = f"""\
usage: python3 -m fairlead.comm.dropin [--only NAMES] SCRIPT [ARGS...]
       python3 -m fairlead.comm.dropin [--only NAMES] -m MODULE [ARGS...]

Runs SCRIPT, or MODULE as `python3 -m` does. Its imports of {", ".join(NAMES)} get what fairlead has in their place.

  --only NAMES  only these of them, with commas between
"""
_VARIABLES = "\nVariables of the Cray plugin:\n" + "".join(
    f"  {setting.name}  {'' if setting in HONOURED else 'without meaning here: '}{setting.meaning}\n"
    for setting in (*HONOURED, *IGNORED)
)


def main(words: list[str]) -> None:
    names: tuple[str, ...] = NAMES
    while words and words[0].startswith("-") and words[0] != "-m":
        option, *words = words
        option, equals, value = option.partition("=")
        if option in ("-h", "--help"):
            sys.stdout.write(_USAGE + _VARIABLES)
            return
        if option != "--only" or not (equals or words):
            _bad_usage(f"unknown or incomplete option {option}")
        if not equals:
            value, *words = words
        names = tuple(value.split(","))
    if not words:
        _bad_usage("no script is given")
    if words[0] == "-m":
        _run_module(words[1:], names)
        return
    script = words[0]
    if not Path(script).is_file():
        _bad_usage(f"there is no script {script}")
    install(names)
    # As `python3 SCRIPT` has them.
    sys.argv = words
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def _run_module(words: list[str], names: tuple[str, ...]) -> None:
    if not words:
        _bad_usage("no module is given")
    install(names)
    sys.argv = words
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _bad_usage(why: str) -> None:
    sys.stderr.write(f"{_USAGE}\nerror: {why}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
