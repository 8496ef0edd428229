"""Test harnesses: one per slice, over real servers."""
