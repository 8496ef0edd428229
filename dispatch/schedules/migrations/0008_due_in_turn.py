from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find due runs by organization. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("schedules", "0007_concurrency_limits")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_in_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("due_at__isnull", False), ("status__in", ["scheduled", "retrying"])),
                fields=["organization", "due_at", "shard"],
                name="run_in_turn",
            ),
        ),
    ]
