from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find a batch of due pushes without sorting them all. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("notifications", "0008_push_p")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS push_in_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("channel", "push"), ("status__in", ("waiting", "sending"))),
                fields=["organization", "next_attempt_at"],
                name="push_in_turn",
            ),
        ),
    ]
