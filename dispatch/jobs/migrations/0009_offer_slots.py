from typing import Any

import django.core.validators
from django.db import migrations, models


class AddFieldOnce(migrations.AddField):
    """Add a column, unless an interrupted run of this migration has added it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        table = to_state.apps.get_model(app_label, self.model_name)._meta.db_table
        database = schema_editor.connection
        with database.cursor() as cursor:
            columns = {column.name for column in database.introspection.get_table_description(cursor, table)}
        if self.name not in columns:
            super().database_forwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):
    """Slots of offers. The index is built while offers are written, and the old constraint is dropped after that.

    Rows of the previous version have slot 0, so one pending offer per job stays the rule for them.
    """

    atomic = False
    dependencies = [("jobs", "0008_rounds_and_preferences")]

    operations = [
        AddFieldOnce(
            model_name="offer",
            name="slot",
            field=models.SmallIntegerField(  # no CHECK: PostgreSQL would read the whole table to validate it
                db_default=0,
                default=0,
                help_text="Emergencies can have several offers at once: one per slot.",
                validators=[django.core.validators.MinValueValidator(0)],
            ),
        ),
        AddFieldOnce(
            model_name="offer",
            name="holds_until",
            field=models.DateTimeField(
                help_text="When the slot's next technician may be called, if later.",
                null=True,
            ),
        ),
        AddFieldOnce(
            model_name="job",
            name="fill_at",
            field=models.DateTimeField(
                help_text="When to call another technician beside the current ones.", null=True
            ),
        ),
        AddFieldOnce(
            model_name="dispatchpolicy",
            name="offers_at_once_for_emergencies",
            field=models.PositiveSmallIntegerField(
                blank=True,
                help_text="The first one who accepts has the job, and the others hear that it is taken. 1: one "
                "technician after another. Each call needs a line.",
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(5),
                ],
                verbose_name="technicians called at once for emergencies",
            ),
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AddConstraint(
                    model_name="offer",
                    constraint=models.UniqueConstraint(
                        condition=models.Q(status="pending"),
                        fields=("job", "slot"),
                        name="one_pending_offer_per_slot",
                    ),
                ),
                migrations.RemoveConstraint(model_name="offer", name="one_pending_offer_per_job"),
            ],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS one_pending_offer_per_slot", migrations.RunSQL.noop
                ),
                migrations.RunSQL(
                    "CREATE UNIQUE INDEX CONCURRENTLY one_pending_offer_per_slot ON jobs_offer (job_id, slot) "
                    "WHERE status = 'pending'",
                    "DROP INDEX CONCURRENTLY IF EXISTS one_pending_offer_per_slot",
                ),
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS one_pending_offer_per_job",
                    "CREATE UNIQUE INDEX CONCURRENTLY one_pending_offer_per_job ON jobs_offer (job_id) "
                    "WHERE status = 'pending'",
                ),
            ],
        ),
    ]
