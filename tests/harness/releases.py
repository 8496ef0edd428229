"""The previous release's code, exported from the history of this repository."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from tests.support.processes import ROOT


def previous_release() -> str | None:
    """Return the commit of the previous release, or None if the history does not contain it.

    It is the newest tag; without tags, the last commit before the first migration that changes the initial schema.
    """
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return None
    if tag := _git("describe", "--tags", "--abbrev=0"):
        return tag
    changes = sorted(path for path in _git("ls-files", "*/migrations/0002*").splitlines() if path)
    added = [_git("log", "--diff-filter=A", "--format=%ct %H", "--", path).splitlines() for path in changes]
    first = min((lines[-1] for lines in added if lines), default="")
    return _git("rev-parse", "--verify", "--quiet", f"{first.partition(' ')[2]}^") or None if first else None


def export_release(commit: str, folder: Path) -> Path:
    """Write the files of a commit into `folder`, and return it."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> str:
    """Return what git prints; nothing if it fails, or is not installed, or this is no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
