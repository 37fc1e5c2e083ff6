"""The command line: the one layer that prints. ``main.py`` finds verbs, ``screen.py`` draws."""
