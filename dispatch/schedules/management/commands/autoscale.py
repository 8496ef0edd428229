"""Provide `manage.py autoscale`, which runs as many worker processes on this machine as the queues need."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections

from dispatch.core.counts import count_noun
from dispatch.core.db import session_limits
from dispatch.core.observability import metrics
from dispatch.core.runtime import preflight
from dispatch.core.runtime.autoscaler import Autoscaler, policies, worker_cap
from dispatch.core.runtime.supervisor import Supervisor


class Command(BaseCommand):
    """Run the autoscaler until a signal stops it, then drain all workers."""

    help = (
        "Keep each queue's workers between WORKERS and WORKERS_MAX, based on queue length and waiting time. "
        "On SIGTERM, drain them all."
    )
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        session_limits.apply(session_limits.BACKGROUND)
        preflight.check()
        try:
            cap = worker_cap()
        except DatabaseError as error:
            raise CommandError(f"Cannot read the number of database connections: {error}") from error
        connections.close_all()
        wanted = policies()
        minimum = sum(policy.minimum for policy in wanted.values())
        if minimum > cap:
            raise CommandError(
                f"WORKERS asks for {count_noun(minimum, 'worker')}, but the database has connections for only "
                f"{cap}. Lower WORKERS, or raise AUTOSCALE_DB_CONNECTIONS and the server's max_connections."
            )
        env = {**os.environ, "METRICS_PORT": "0", **metrics.collect(settings.DATA_DIR / "metrics")}
        metrics.serve()
        supervisor = Supervisor([], env, out=sys.stdout, grace_s=settings.AUTOSCALE_STOP_GRACE_S)
        with supervisor.interruptible(), supervisor:
            Autoscaler(wanted, supervisor, cap).run(supervisor.wait)
