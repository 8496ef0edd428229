"""Tests of the telephone simulator, over real sockets and with the official client."""
