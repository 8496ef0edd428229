from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """The indexes are built while rows are written. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("telephony", "0012_customers_of_calls")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS call_of_organization", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="call",
            index=models.Index(fields=["organization", "requested_at"], name="call_of_organization"),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS call_of_customer", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="call",
            index=models.Index(
                condition=models.Q(("customer", ""), _negated=True),
                fields=["organization", "customer", "created_at"],
                name="call_of_customer",
            ),
        ),
        RemoveIndexConcurrently(model_name="call", name="lead_call_lately"),
    ]
