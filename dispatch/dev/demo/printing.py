"""Print one line per event: seconds since the start, form, event. Color only on a terminal."""

from __future__ import annotations

import os
import threading
from typing import TextIO

_TONES = {"good": "32", "attention": "31", "calling": "34", "late": "33", "waiting": "2", "off": "2"}
LABEL_WIDTH = 30


class Printer:
    """Print lines from several threads. Characters that the terminal lacks are replaced."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._color = out.isatty() and not os.environ.get("NO_COLOR")
        if hasattr(out, "reconfigure"):
            out.reconfigure(errors="replace")

    def event(self, at_s: float, ref: str, label: str, text: str, tone: str = "plain") -> None:
        """Print one event. `tone` is one of the timeline's."""
        name = label if len(label) <= LABEL_WIDTH else label[: LABEL_WIDTH - 1] + "…"
        self.line(f"{at_s:7.1f} s  {ref:>3}  {name:<{LABEL_WIDTH}}  {self._in(tone, text)}")

    def line(self, text: str = "") -> None:
        with self._lock:
            self._out.write(text + "\n")
            self._out.flush()

    def title(self, text: str) -> None:
        self.line(f"\033[1m{text}\033[0m" if self._color else text)

    def _in(self, tone: str, text: str) -> str:
        code = _TONES.get(tone) if self._color else None
        return f"\033[{code}m{text}\033[0m" if code else text
