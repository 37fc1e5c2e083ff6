"""Scripts that run inside an image that is being made, under the image's own Python or shell.

They import the standard library only. :mod:`fairlead_build.tree.tree` runs ``install.py`` and ``clean.sh``;
:mod:`fairlead_build.tree.payload` runs ``bytecode.py``.
"""
