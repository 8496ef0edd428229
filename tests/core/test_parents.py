"""A process ends with the one that started it, also when that one was quicker."""

import subprocess
import sys

from tests.processes import ROOT

# It starts a child and is gone before the child asks the kernel to tell of it.
CHILD_OF_A_DEAD_PARENT = """
import os, time
from dispatch.core import parents
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    parents.end_with(parent)
    print("lives on", flush=True)
os._exit(0)
"""


def test_a_child_whose_parent_died_before_it_asked_ends_at_once() -> None:
    command = [sys.executable, "-c", CHILD_OF_A_DEAD_PARENT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
