"""Training of bundled models: ``host`` runs it from outside, ``worker`` is every rank inside.

They share the values in ``model`` and the progress in ``events``.
"""
