import django.core.validators
import django.db.models.deletion
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

import dispatch.core.clock

_SLOT = models.UniqueConstraint(
    condition=models.Q(("concurrency_slot__isnull", False), ("status__in", ["in_progress", "running"])),
    fields=("concurrency_limit", "concurrency_slot"),
    name="one_run_per_concurrency_slot",
)


class Migration(migrations.Migration):
    """What an interrupted build of an index left is dropped first."""

    atomic = False
    dependencies = [
        ("accounts", "0009_member_language"),
        ("schedules", "0006_rules_payloads_and_deferrals"),
    ]

    operations = [
        migrations.CreateModel(
            name="ConcurrencyLimit",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "key",
                    models.CharField(help_text="The name by which schedules and runs refer to it.", max_length=80),
                ),
                (
                    "max_runs",
                    models.PositiveIntegerField(
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(1000),
                        ],
                        verbose_name="runs at once",
                    ),
                ),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            model_name="concurrencylimit",
            constraint=models.UniqueConstraint(
                fields=("organization", "key"), name="one_concurrency_limit_per_key"
            ),
        ),
        migrations.AddConstraint(
            model_name="concurrencylimit",
            constraint=models.CheckConstraint(
                condition=models.Q(("max_runs__gte", 1), ("max_runs__lte", 1000)),
                name="concurrency_limit_is_in_range",
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="concurrency_limit",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                help_text="Of a manual run, the limit it was started with; of others, the one it last waited for.",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="+",
                to="schedules.concurrencylimit",
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="concurrency_slot",
            field=models.SmallIntegerField(
                help_text="The slot of the limit that it holds while it is in progress or running.", null=True
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="waits_since",
            field=models.DateTimeField(
                help_text="When a run that waits for a slot became due: its place in the queue of its key.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="schedule",
            name="concurrency_limit",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                help_text="Limits how many runs with this key are in progress at once, of this and other schedules.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="schedules.concurrencylimit",
            ),
        ),
        migrations.AlterField(
            model_name="run",
            name="waiting_for",
            field=models.CharField(
                blank=True,
                help_text='"earlier": an earlier run has to end first. "concurrency": as many runs with its key as its limit allows are in progress. Otherwise why its request cannot be sent now: "endpoint", "circuit", "pool paused", "rate", "slot", "lookup" or "token_pending".',
                max_length=16,
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_waits_for_concurrency", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("status", "retrying"), ("waiting_for", "concurrency")),
                fields=["concurrency_limit", "waits_since", "id"],
                name="run_waits_for_concurrency",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_held", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("status", "retrying"), models.Q(("waiting_for", ""), _negated=True)),
                fields=["organization"],
                name="run_held",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS schedule_with_limit", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("concurrency_limit__isnull", False)),
                fields=["concurrency_limit"],
                name="schedule_with_limit",
            ),
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS one_run_per_concurrency_slot", migrations.RunSQL.noop
                ),
                migrations.RunSQL(
                    "CREATE UNIQUE INDEX CONCURRENTLY one_run_per_concurrency_slot ON schedules_run "
                    "(concurrency_limit_id, concurrency_slot) "
                    "WHERE concurrency_slot IS NOT NULL AND status IN ('in_progress', 'running')",
                    "DROP INDEX CONCURRENTLY IF EXISTS one_run_per_concurrency_slot",
                ),
            ],
            state_operations=[migrations.AddConstraint(model_name="run", constraint=_SLOT)],
        ),
    ]
