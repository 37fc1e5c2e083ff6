"""Starts a program that uses MPI; a launcher's descriptors are passed on."""

import subprocess
import sys

sys.exit(subprocess.call(sys.argv[1:], close_fds=False))
