"""Change schedules and runs; no other package does.

`schedules` creates and changes schedules, `actions` applies user actions to runs, `executor` claims due runs,
`worker` enqueues, executes and reports them, `results` applies the reports, `reconciliation` recovers lost work,
`shards` divides the work among executors, `bulk_import` creates many schedules at once, and `retention` deletes
old runs.
"""
