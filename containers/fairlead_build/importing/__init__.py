"""``fairlead recipe import``: a Containerfile or Singularity.def as a recipe, with what was lost.

A recipe says what is in an image; these files say what to run. Only what certainly means the same
is carried. Everything else is listed, with its line: ``ledger.py`` keeps the account, and each line
of a file is in it.

================  ==========================================================================
located.py        text that knows the line each of its characters came from
shell.py          shell scripts cut into commands, as far as that is safe
ledger.py         what was carried and what was lost; what an image starts from
commands.py       the commands that have a meaning in a recipe: apt-get, pip, cleaning up
containerfile.py  instructions of a Containerfile
definition.py     sections of a Singularity.def
folder.py         the recipe's folder
================  ==========================================================================
"""
