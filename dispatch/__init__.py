"""Dispatch time-critical work to the right person or system, on time, without losing it."""
