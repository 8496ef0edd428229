"""Provide the Redis client, its circuit breaker, requests after a commit, and notice of a flushed server."""
