"""Data near the nodes: copied in before a command, verified, copied back after it, removed.

Only the standard library is imported, since a job step runs this on every node:
``python3 -m fairlead.transfer``. Where to read next: ``job.py`` (what a run does), ``node.py`` (what one
node does), ``tree.py`` and ``copying.py`` (how), ``place.py`` (where to).
"""
