"""OCI registries: references, credentials, the HTTP client, push and pull.

Read ``client.py`` for what a registry is asked, ``push.py`` and ``pull.py`` for what is done with it.
"""
