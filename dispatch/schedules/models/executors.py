"""Define Executor and ShardLease: how executors divide the shards."""

from __future__ import annotations

from django.db import models


class Executor(models.Model):
    """A live process that claims due runs. The shards are divided among the executors."""

    name = models.CharField(max_length=128, primary_key=True)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class ShardLease(models.Model):
    """Which executor holds a shard, and until when."""

    shard = models.PositiveSmallIntegerField(primary_key=True)
    holder = models.CharField(max_length=128, blank=True)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.shard}: {self.holder or 'nobody'}"
