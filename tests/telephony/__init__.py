"""Tests of telephony."""
