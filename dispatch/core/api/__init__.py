"""Provide problem documents, idempotency keys, parsers, pagination and the OpenAPI schema."""
