from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """The index is built while messages are written. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("outbox", "0004_canceled_label")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS message_order", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="message",
            index=models.Index(
                fields=["group", "status", "mode", "sequence", "id"],
                condition=models.Q(status__in=["PENDING", "ERROR"]) & ~models.Q(mode="IMMEDIATE"),
                name="message_order",
            ),
        ),
        RemoveIndexConcurrently(model_name="message", name="message_heads"),
    ]
