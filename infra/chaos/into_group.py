"""Run a command in a memory control group: ``into_group.py GROUP COMMAND...``."""

import os
import sys
from pathlib import Path

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
os.execvp(sys.argv[2], sys.argv[2:])
