from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Count an organization's open messages. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("outbox", "0006_replay_and_public_ids")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS message_open", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="message",
            index=models.Index(fields=["organization"], condition=models.Q(ended_at=None), name="message_open"),
        ),
    ]
