"""Runs as a supervisor (``base/jail.py``), which may remove files of the ids that it gave to jails."""

import shutil
import sys

shutil.rmtree(sys.argv[1], ignore_errors=True)
