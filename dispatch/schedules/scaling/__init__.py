"""How many worker processes each RQ queue has on this machine: `manage.py autoscale` owns them.

Stands on `core` alone. Keeps: never fewer than a queue's minimum nor more than its maximum; never more workers in
all than the database has connections for; a worker that is stopped finishes what it is doing first. In a cluster
its place is taken by the manifests in `deploy/kubernetes`, on the same figures."""
