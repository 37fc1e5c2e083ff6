"""Remedies: plan steps for cases in which a plain swap does not work. One file each.

Each was tested with real software. :mod:`~fairlead.swap.remedies.model` defines a remedy and
:mod:`~fairlead.swap.remedies.registry` finds them; other distributions add theirs by an entry point of the
group ``fairlead.swap.remedies``.
"""
