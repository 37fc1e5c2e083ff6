"""Kinds of object stores: a module with a ``STORE`` each."""
