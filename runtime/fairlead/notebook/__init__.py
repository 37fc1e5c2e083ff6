"""Notebooks on ranks: a kernel, and behind it one ipyparallel engine a rank.

The host's side starts a controller, a kernel and the ranks, each in the image, and replaces what ends
(:mod:`fairlead.notebook.session`). In the image are :mod:`fairlead.notebook.rank`,
:mod:`fairlead.notebook.controller` and :mod:`fairlead.notebook.kernel`, whose magics are in
:mod:`fairlead.notebook.magics`.
"""
