"""Runs the worker processes of this machine, as many as the queues need."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections

from dispatch.core import metrics
from dispatch.core.supervisor import STOP_GRACE_S, Supervisor
from dispatch.schedules.scaling.autoscaler import Autoscaler, policies, worker_cap


class Command(BaseCommand):
    help = (
        "Keeps each queue's workers between WORKERS and WORKERS_MAX by what waits and for how long, until it is "
        "told to stop; it then drains them all."
    )
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            cap = worker_cap()
        except DatabaseError as error:
            raise CommandError(f"The database does not say how many connections it has: {error}") from error
        connections.close_all()
        wanted = policies()
        least = sum(policy.minimum for policy in wanted.values())
        if least > cap:
            raise CommandError(
                f"WORKERS asks for {least} workers, but the database has connections for {cap} of them: lower "
                "WORKERS, or raise AUTOSCALE_DB_CONNECTIONS and the server's max_connections."
            )
        env = {**os.environ, "METRICS_PORT": "0", **metrics.collect(settings.DATA_DIR / "metrics")}
        metrics.serve()
        # less than whoever supervises this process gives it
        supervisor = Supervisor([], env, out=sys.stdout, grace_s=STOP_GRACE_S - 2)
        with supervisor.interruptible(), supervisor:
            Autoscaler(wanted, supervisor, cap).run(supervisor.wait)
