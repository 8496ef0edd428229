from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find a browser that renews its subscription. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("notifications", "0010_push_results")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS push_of_endpoint", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="pushsubscription",
            index=models.Index(fields=["endpoint_hash"], name="push_of_endpoint"),
        ),
    ]
