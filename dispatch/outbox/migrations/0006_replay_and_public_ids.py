from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

ADD_COLUMNS = """
ALTER TABLE outbox_message
    ADD COLUMN IF NOT EXISTS webhook_id varchar(40) NULL,
    ADD COLUMN IF NOT EXISTS replays integer DEFAULT 0 NOT NULL,
    ADD COLUMN IF NOT EXISTS replayed_at timestamp with time zone NULL
"""
DROP_COLUMNS = """
ALTER TABLE outbox_message DROP COLUMN webhook_id, DROP COLUMN replays, DROP COLUMN replayed_at
"""


class Migration(migrations.Migration):
    """The indexes are built while messages are written. An interrupted migration can be repeated."""

    atomic = False
    dependencies = [("outbox", "0005_message_order")]

    operations = [
        migrations.RunSQL(
            ADD_COLUMNS,
            DROP_COLUMNS,
            state_operations=[
                migrations.AddField(
                    model_name="message",
                    name="webhook_id",
                    field=models.CharField(
                        editable=False,
                        help_text="What receivers know the message by.",
                        max_length=40,
                        null=True,
                        verbose_name="webhook-id",
                    ),
                ),
                migrations.AddField(
                    model_name="message",
                    name="replays",
                    field=models.IntegerField(
                        db_default=0, default=0, help_text="How many times it was replayed."
                    ),
                ),
                migrations.AddField(
                    model_name="message", name="replayed_at", field=models.DateTimeField(null=True)
                ),
            ],
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS message_of_endpoint", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="message",
            index=models.Index(models.F("endpoint"), models.F("id").desc(), name="message_of_endpoint"),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS message_given_up", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="message",
            index=models.Index(
                models.F("organization"),
                models.F("id").desc(),
                condition=models.Q(status__in=["CANCELLED", "EXPIRED"]),
                name="message_given_up",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS message_webhook_id", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="message",
            index=models.Index(
                fields=["webhook_id"],
                condition=models.Q(webhook_id__isnull=False),
                name="message_webhook_id",
            ),
        ),
    ]
