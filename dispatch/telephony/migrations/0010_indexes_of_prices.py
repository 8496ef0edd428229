from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models.functions import Coalesce


class Migration(migrations.Migration):
    """The indexes are built while rows are written. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("telephony", "0009_hang_up_at")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS inbound_key_to_act_on", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="inboundcall",
            index=models.Index(
                condition=models.Q(("next_action_at__isnull", False)),
                fields=["next_action_at"],
                name="inbound_key_to_act_on",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS call_without_price", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="call",
            index=models.Index(
                condition=models.Q(
                    ("price__isnull", True), ("sid__isnull", False), ("status__in", ["completed", "lost"])
                ),
                fields=["account", "ended_at"],
                name="call_without_price",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS call_with_price", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="call",
            index=models.Index(
                condition=models.Q(("price__isnull", False)),
                fields=["organization", "requested_at"],
                name="call_with_price",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS inbound_without_price", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="inboundcall",
            index=models.Index(
                condition=models.Q(("ended_at__isnull", False), ("price__isnull", True)),
                fields=["account", "ended_at"],
                name="inbound_without_price",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS inbound_with_price", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="inboundcall",
            index=models.Index(
                condition=models.Q(("price__isnull", False)),
                fields=["organization", "created_at"],
                name="inbound_with_price",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS text_without_price", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="text",
            index=models.Index(
                models.F("account"),
                Coalesce("requested_at", "created_at"),
                condition=models.Q(
                    ("price__isnull", True),
                    ("sid__isnull", False),
                    ("status__in", ["submitted", "sent", "delivered", "undelivered", "received"]),
                ),
                name="text_without_price",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS text_with_price", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="text",
            index=models.Index(
                models.F("organization"),
                Coalesce("requested_at", "created_at"),
                condition=models.Q(("price__isnull", False)),
                name="text_with_price",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS call_to_hang_up", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="call",
            index=models.Index(
                condition=models.Q(("hang_up_at__isnull", False)), fields=["hang_up_at"], name="call_to_hang_up"
            ),
        ),
    ]
