"""Tests of the phone simulator, over real sockets and with the official client."""
