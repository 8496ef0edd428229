"""The only place where schedules and runs change.

`managing`: what clients and people do with schedules. `claiming`: the executor's step. `sending`: messages to
workers. `working`: a worker's start, its work and its report. `applying`: the status worker. `reconciling`: what
got lost. `shards`: which executor takes what. `bulk`: many schedules at once. `forgetting`: runs that are old."""
