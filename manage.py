#!/usr/bin/env python
"""Django's command line for Dispatch."""

import os
import sys
from pathlib import Path


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatch.settings")
    if sys.argv[1:2] == ["demo"] and not os.environ.get("DATABASE_URL"):
        # Embedded servers of its own, so that what `make up` keeps is left alone.
        os.environ.setdefault("DISPATCH_DATA_DIR", str(Path(__file__).resolve().parent / ".data" / "demo"))
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    from dispatch.core.embedded import EmbeddedServerError

    try:
        execute_from_command_line(sys.argv)
    except (ImproperlyConfigured, EmbeddedServerError) as error:
        if "--traceback" in sys.argv:
            raise
        sys.exit(f"Not configured: {error}")


if __name__ == "__main__":
    main()
