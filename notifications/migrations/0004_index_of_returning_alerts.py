from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """The index is built while alerts are written. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("notifications", "0003_channel_labels")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS alert_to_return", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="alert",
            index=models.Index(
                condition=models.Q(("status", "acknowledged")), fields=["returns_at"], name="alert_to_return"
            ),
        ),
    ]
