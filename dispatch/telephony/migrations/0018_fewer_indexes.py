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
        ("telephony", "0017_unchecked_references"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="callevent",
                    name="call",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="provider_events",
                        to="telephony.call",
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS telephony_callevent_call_id_87b9ca06",
                    "CREATE INDEX CONCURRENTLY telephony_callevent_call_id_87b9ca06 ON telephony_callevent (call_id)",
                ),
            ],
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="text",
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
                    "DROP INDEX CONCURRENTLY IF EXISTS telephony_text_organization_id_8c401320",
                    "CREATE INDEX CONCURRENTLY telephony_text_organization_id_8c401320 ON telephony_text (organization_id)",
                ),
            ],
        ),
    ]
