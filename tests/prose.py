"""Check docstrings, comments, texts, templates and docs for the phrases that docs/style.md bans.

`make lint` runs it: `python -m tests.prose`. It prints each place and exits with 1 when there is one.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

BANNED = [
    r"anew",
    r"whoever",
    r"who (?:asks|looks|calls|waits|sees|reads|holds|comes|is asked|is told)",
    r"what (?:became|becomes|came|comes) of",
    r"stands? (?:here|there|in line)",
    r"so many",
    r"(?:is|are|was|were|been) told",
    r"any more",
    r"of (?:ours|yours|theirs)",
    r"of its own",
    r"by hand",
    r"needs? a hand",
    r"bury|buried",
    r"believe again",
    r"that there (?:is|are|was)",
    r"let(?:s)? wait",
    r"how (?:it|things) stands?",
    r"owed",
    r'(?<!")e-mails?(?!")',  # quoted: the name of a field of forms
]
PATTERN = re.compile(r"\b(?:" + "|".join(BANNED) + r")\b", re.IGNORECASE)
NOT_CHECKED = ("docs/style.md", "tests/prose.py")  # they name the phrases


def main() -> int:
    """Print every banned phrase; return the exit code."""
    found = [
        f"{path}:{line}: {phrase}"
        for path in checked_files()
        for line, text in texts_of(Path(path))
        for phrase in PATTERN.findall(text)
    ]
    print("\n".join(found) or "No banned phrases.")  # noqa: T201
    return 1 if found else 0


def checked_files() -> list[str]:
    """Name the files that git tracks and that hold prose."""
    listing = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    tracked = listing.stdout.split("\n")
    suffixes = (".py", ".md", ".html", ".txt", ".yml", ".yaml")
    prose = [path for path in tracked if path.endswith(suffixes) and path not in NOT_CHECKED]
    return [path for path in prose if Path(path).exists()]


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of everything that people read: strings and comments of Python, lines of the rest."""
    source = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(source.split("\n"), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield token.start[0], " ".join(token.string.split())


if __name__ == "__main__":
    sys.exit(main())
