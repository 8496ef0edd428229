"""Decisions of the schedules as pure functions: when (`timing`), in which words (`words`), what to do with an
occurrence that is due (`due`), and what comes of an attempt (`outcomes`)."""
