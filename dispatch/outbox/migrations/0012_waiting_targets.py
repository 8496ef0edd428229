from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find the waiting targets of each organization. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("outbox", "0011_fewer_indexes")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS group_waiting_targets", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="messagegroup",
            index=models.Index(
                fields=["organization", "target", "wake_at"],
                condition=models.Q(wake_at__isnull=False),
                name="group_waiting_targets",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS message_immediate_targets", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="message",
            index=models.Index(
                fields=["organization", "target", "due_at", "id"],
                condition=models.Q(status="PENDING", mode="IMMEDIATE"),
                name="message_immediate_targets",
            ),
        ),
        RemoveIndexConcurrently(model_name="messagegroup", name="group_waiting_line"),
        RemoveIndexConcurrently(model_name="message", name="message_immediate_line"),
    ]
