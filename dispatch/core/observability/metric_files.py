"""Name the files in which the processes of a supervisor keep their metrics.

The client library names them after the process id. Every restart would leave files, and every scrape reads all of
them. So a child of a supervisor has files named after it, and continues the counters of its predecessor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from prometheus_client import values
from prometheus_client.multiprocess import mark_process_dead

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the library's variable
_CHILD = "DISPATCH_METRICS_CHILD"  # the supervisor's process id and the child's name

_pid = os.getpid()


def child_variables(name: str) -> dict[str, str]:
    """Return the variables that give this process's child of that name its files."""
    return {_CHILD: f"{os.getpid()} {name}"}


def use_files_of_child() -> None:
    """Use the child's files. Call it before the first metric is created.

    Any other process than a direct child of the supervisor runs beside one, so its files have its process id.
    """
    supervisor, _, name = os.environ.get(_CHILD, "").partition(" ")
    if os.environ.get(FOLDER) and supervisor == str(os.getppid()):
        values.ValueClass = values.MultiProcessValue(lambda: _identify(supervisor, name))


def delete_live_gauges(name: str, environment: Mapping[str, str]) -> None:
    """Delete the live gauges of an ended child with this environment; its counters remain."""
    if folder := environment.get(FOLDER):
        mark_process_dead(_file_name(str(os.getpid()), name), folder)


def _identify(supervisor: str, name: str) -> str:
    pid = os.getpid()
    return _file_name(supervisor, name) if pid == _pid else str(pid)  # a fork runs beside the child


def _file_name(supervisor: str, name: str) -> str:
    """Return the child's part of file names. Children of a killed supervisor may outlive it for a while."""
    return re.sub(r"[^A-Za-z0-9-]", "-", f"{supervisor} {name}")  # the library splits file names at underscores
