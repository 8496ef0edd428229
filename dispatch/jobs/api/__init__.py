"""The REST API of submissions, jobs, service types and dispatch policies."""
