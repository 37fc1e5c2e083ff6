"""Remedies: what a plan does where a plain swap would not work. One file each.

Each was tried with real software. :mod:`~fairlead.swap.remedies.model` says what a remedy is,
:mod:`~fairlead.swap.remedies.registry` finds them; others add theirs by an entry point of the group
``fairlead.swap.remedies``.
"""
