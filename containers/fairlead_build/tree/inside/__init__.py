"""Scripts that run inside an image that is being made, under the image's own Python or shell.

They import the standard library only. ``tree.py`` runs ``install.py`` and ``clean.sh``;
``payload.py`` runs ``bytecode.py``.
"""
