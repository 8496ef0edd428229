"""A process ends with its parent, even if the parent ended first."""

import subprocess
import sys

from tests.support.processes import ROOT

# It starts a child and exits before the child asks the kernel for the signal.
CHILD_OF_A_DEAD_PARENT = """
import os, time
from dispatch.core.runtime.supervisor import die_with_parent
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    die_with_parent(parent)
    print("lives on", flush=True)
os._exit(0)
"""


def test_child_of_an_already_dead_parent_ends_at_once() -> None:
    command = [sys.executable, "-c", CHILD_OF_A_DEAD_PARENT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
