"""OCI registries: references, credentials, the HTTP client, push and pull.

Read ``client.py`` for what a registry is asked, :mod:`fairlead_build.distribution.push` and :mod:`fairlead_build.distribution.pull` for what is done with it.
"""
