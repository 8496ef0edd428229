"""Provide prepared statements, fast reads and writes of rows, and batching."""
