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
        ("schedules", "0008_due_in_turn"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="schedule",
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
                    "DROP INDEX CONCURRENTLY IF EXISTS schedules_schedule_organization_id_8bb21e99",
                    "CREATE INDEX CONCURRENTLY schedules_schedule_organization_id_8bb21e99 ON schedules_schedule (organization_id)",
                ),
            ],
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="run",
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
                    "DROP INDEX CONCURRENTLY IF EXISTS schedules_run_organization_id_7e9b1fe0",
                    "CREATE INDEX CONCURRENTLY schedules_run_organization_id_7e9b1fe0 ON schedules_run (organization_id)",
                ),
            ],
        ),
    ]
