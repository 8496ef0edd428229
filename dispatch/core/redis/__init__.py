"""Provide the Redis client, its circuit breaker, and the detection of a flushed server."""
