from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """The indexes are built while rows are written. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("telephony", "0010_indexes_of_prices")]

    operations = [
        migrations.AddField(
            model_name="call",
            name="customer",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The customer on whose behalf it calls, for rate limits.",
                max_length=64,
            ),
        ),
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
