"""A small REST front: clients with a token start runs that its owner has declared, watch them and fetch their records.

``offers`` reads the file that declares them, ``tokens`` knows the clients, ``runs`` keeps the runs on disk and
``runner`` executes one, so that runs outlive the server; ``app`` is the API and ``listen`` its socket.
"""
