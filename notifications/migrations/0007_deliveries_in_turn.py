from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find a batch of due deliveries without sorting them all.

    What an interrupted build left is dropped first.
    """

    atomic = False
    dependencies = [("notifications", "0006_chat_channels")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS email_in_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("channel", "email"), ("status__in", ("waiting", "sending"))),
                fields=["organization", "next_attempt_at"],
                name="email_in_turn",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS call_or_text_in_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("channel__in", ("sms", "voice")), ("status__in", ("waiting", "sending"))),
                fields=["organization", "next_attempt_at"],
                name="call_or_text_in_turn",
            ),
        ),
    ]
