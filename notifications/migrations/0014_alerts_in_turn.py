from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find the due alerts of each organization. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("notifications", "0013_fewer_indexes")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS alert_to_escalate_in_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="alert",
            index=models.Index(
                fields=["organization", "next_action_at"],
                condition=models.Q(status="open"),
                name="alert_to_escalate_in_turn",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS alert_to_repeat_in_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="alert",
            index=models.Index(
                fields=["organization", "next_repeat_at"],
                condition=models.Q(status="open"),
                name="alert_to_repeat_in_turn",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS alert_to_return_in_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="alert",
            index=models.Index(
                fields=["organization", "returns_at"],
                condition=models.Q(status="acknowledged"),
                name="alert_to_return_in_turn",
            ),
        ),
        RemoveIndexConcurrently(model_name="alert", name="alert_to_escalate"),
        RemoveIndexConcurrently(model_name="alert", name="alert_to_repeat"),
        RemoveIndexConcurrently(model_name="alert", name="alert_to_return"),
    ]
