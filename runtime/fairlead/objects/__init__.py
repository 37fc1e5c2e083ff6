"""Object stores: what is in them, and bytes to and from local files, verified.

Each kind of store is a module of ``stores/``. Where to read next: ``url.py``, ``model.py`` (what a store does),
``survey.py`` (what is at a URL), ``fetch.py`` and ``send.py`` (how bytes travel), ``cache.py`` (what stays on a node).
The packages of the extra ``objects`` are imported when a store is opened.
"""
