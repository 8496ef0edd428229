"""Provide the guarded HTTP client: SSRF guard and webhook signing."""
