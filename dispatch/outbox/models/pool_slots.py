"""Define PoolGate and DirectRequest: what limits the requests of a pool, beside the slots of its messages."""

from __future__ import annotations

from django.db import models

from accounts.scoping import OwnedModel
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock


class PoolGate(models.Model):
    """The lock and the rate bucket of a message pool. `full_at` is when its whole burst is available again."""

    pool = models.OneToOneField(DispatchPool, primary_key=True, on_delete=models.CASCADE, related_name="+")
    full_at = models.DateTimeField(default=clock.now)

    def __str__(self) -> str:
        return f"gate of {self.pool_id}"


class DirectRequest(OwnedModel):
    """A request in progress that belongs to no message, such as a scheduled run's. It holds a slot of its pool.

    Its slot is free again when the row is deleted, or at `lease_until` if the process died.
    """

    pool = models.ForeignKey(DispatchPool, on_delete=models.CASCADE, related_name="+", db_index=False)
    slot = models.PositiveIntegerField()
    lease_until = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["pool", "slot"], name="one_direct_request_per_slot")]

    def __str__(self) -> str:
        return f"slot {self.slot} of pool {self.pool_id}"
