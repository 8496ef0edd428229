import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Drop indexes that are prefixes of others.

    Django would also drop other indexes on these columns, so the statements are given here. Not in one
    transaction, so that no table is locked.
    """

    atomic = False
    dependencies = [
        ("accounts", "0013_handover_notes"),
        ("outbox", "0010_direct_requests"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="messagegroup",
                    name="organization",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organization",
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS outbox_messagegroup_organization_id_32113941",
                    "CREATE INDEX CONCURRENTLY outbox_messagegroup_organization_id_32113941 ON outbox_messagegroup (organization_id)",
                ),
            ],
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="message",
                    name="organization",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organization",
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS outbox_message_organization_id_68ff6ca6",
                    "CREATE INDEX CONCURRENTLY outbox_message_organization_id_68ff6ca6 ON outbox_message (organization_id)",
                ),
            ],
        ),
    ]
