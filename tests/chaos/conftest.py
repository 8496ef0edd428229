"""The same floor as the tests of jobs, worked by real processes."""

from tests.jobs.conftest import floor

__all__ = ["floor"]
