"""The previous release of this project, checked out from the history of this repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.processes import ROOT


def previous_release() -> str:
    """Return the tag or commit of the previous release; empty if the history does not contain it.

    It is the newest tag before this commit. Without tags, it is the last commit before the first migration that
    changes the initial schema.
    """
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return ""
    if tag := _git("describe", "--tags", "--abbrev=0", "HEAD^"):
        return tag
    later = _git("ls-files", "*/migrations/0002*").splitlines()
    added = [_git("log", "--diff-filter=A", "--format=%ct %H", "--", path).splitlines() for path in later]
    oldest = min((lines[-1] for lines in added if lines), default="")
    return _git("rev-parse", "--verify", "--quiet", f"{oldest.partition(' ')[2]}^") if oldest else ""


def working_commit() -> str:
    """Return a commit with this working tree, without files that are not yet in the index."""
    return _git("stash", "create") or _git("rev-parse", "HEAD")


def clone_at(commit: str, folder: Path) -> Path:
    """Clone this repository into `folder`, check out the commit there, and return the folder."""
    clone = ["git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(folder)]
    subprocess.run(clone, check=True, capture_output=True)
    checkout = ["git", "checkout", "--quiet", "--detach", commit]
    subprocess.run(checkout, cwd=folder, check=True, capture_output=True)
    return folder


def _git(*arguments: str) -> str:
    """Return what git prints; nothing if it fails, is not installed, or this is not a repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
