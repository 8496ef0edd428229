"""Tests: they mirror the slices, speak the user's language and drive real servers."""
