"""The Chromium of the browser tests and of the benchmark `timeline`."""

from __future__ import annotations

import shutil

# The first needs half the CPU of the others.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
