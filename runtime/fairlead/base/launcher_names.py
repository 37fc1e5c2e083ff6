"""Texts that name an MPI's launcher, where it is not known which commands they run: shells with variables and functions, and
Python that starts programs.
"""

from __future__ import annotations

import ast
import re

from fairlead.base.python_imports import imports, parsed

_NAMED = re.compile(
    r"(?<![\w.-])(?:mpirun|mpiexec|orterun|prterun|srun|aprun)(?:\.(?:hydra|mpich|openmpi))?(?![\w./-]|=\S)"
)
_SHOWN = re.compile(r"\s*(#|echo\b|printf\b|:\s)")  # comments, and what is printed


def in_shell(text: str) -> str:
    """The first launcher that the text of a shell names; empty without one.

    >>> in_shell('# mpirun solver\\necho "use srun"\\nRUN=/usr/bin/mpirun.openmpi\\n$RUN solver')
    'mpirun.openmpi'
    >>> in_shell("sed s/mpirun.log/x/ <srun.py; ls my-mpirun mpirun/")
    ''
    """
    lines = (line for line in text.splitlines() if not _SHOWN.match(line))
    return next((m[0] for line in lines if (m := _NAMED.search(line))), "")


def in_python(text: str | bytes) -> str:
    """The first launcher that a Python file has at the start of a text of its own, if it starts programs; empty without one.

    >>> in_python("import subprocess\\nsubprocess.run(['mpirun', '-n', '2', 'solver'])")
    'mpirun'
    >>> in_python("'''mpirun -n 2 python3 x.py'''\\nimport os\\nos.system('ls')"), in_python("x = 'mpirun'")
    ('', '')
    """
    tree = parsed(text)
    if tree is None or not imports(text).unseen:
        return ""
    shown = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in shown:
            word = node.value.split(" ")[0].rpartition("/")[2]
            if _NAMED.fullmatch(word):
                return word
    return ""
