import accounts.models
import dispatch.core.clock
import dispatch.core.crypto
import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Executor",
            fields=[
                ("name", models.CharField(max_length=128, primary_key=True, serialize=False)),
                ("expires_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="ShardLease",
            fields=[
                ("shard", models.PositiveSmallIntegerField(primary_key=True, serialize=False)),
                ("holder", models.CharField(blank=True, max_length=128)),
                ("expires_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="BulkImport",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("received", "Received"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="received",
                        max_length=16,
                    ),
                ),
                ("total", models.PositiveIntegerField()),
                ("created", models.PositiveIntegerField(default=0)),
                ("refused", models.PositiveIntegerField(default=0)),
                ("actor", models.JSONField(default=dict, help_text="The user or API key that started it.")),
                (
                    "scopes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=32),
                        default=list,
                        help_text="Scopes of the caller.",
                        size=None,
                    ),
                ),
                ("worked_at", models.DateTimeField(help_text="When a worker last claimed a part.", null=True)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "verbose_name": "bulk import",
                "indexes": [
                    models.Index(
                        models.F("organization"),
                        models.OrderBy(models.F("id"), descending=True),
                        name="bulk_of_organization",
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["received", "running"])),
                        fields=["worked_at"],
                        name="bulk_open",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BulkError",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("row", models.PositiveIntegerField()),
                ("errors", models.JSONField(help_text="As in an API response: field, code, detail.")),
                (
                    "bulk",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="row_errors",
                        to="schedules.bulkimport",
                    ),
                ),
            ],
            options={
                "ordering": ["row"],
                "constraints": [models.UniqueConstraint(fields=("bulk", "row"), name="one_error_per_row")],
            },
        ),
        migrations.CreateModel(
            name="BulkPart",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("first_row", models.PositiveIntegerField()),
                ("rows", models.JSONField()),
                (
                    "bulk",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="parts",
                        to="schedules.bulkimport",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("bulk", "first_row"), name="one_part_per_first_row")
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("name", models.CharField(max_length=120)),
                ("kind", models.CharField(max_length=32)),
                ("payload", models.JSONField(default=dict)),
                (
                    "headers",
                    dispatch.core.crypto.EncryptedJSONField(
                        blank=True, default=dict, help_text="Headers for URL calls. Stored encrypted."
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("active", "Active"),
                            ("paused", "Paused"),
                            ("ended", "Ended"),
                            ("deleted", "Deleted"),
                        ],
                        default="active",
                        max_length=16,
                    ),
                ),
                ("time_zone", models.CharField(max_length=64, validators=[accounts.models.validate_time_zone])),
                ("trigger_at", models.DateTimeField(blank=True, help_text="Run once at this time.", null=True)),
                (
                    "every",
                    models.PositiveIntegerField(
                        blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)]
                    ),
                ),
                (
                    "unit",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("second", "seconds"),
                            ("minute", "minutes"),
                            ("hour", "hours"),
                            ("day", "days"),
                            ("week", "weeks"),
                            ("month", "months"),
                            ("year", "years"),
                        ],
                        max_length=8,
                    ),
                ),
                ("cron", models.CharField(blank=True, max_length=120)),
                ("starts_at", models.DateTimeField(blank=True, null=True)),
                ("ends_at", models.DateTimeField(blank=True, null=True)),
                (
                    "max_occurrences",
                    models.PositiveIntegerField(
                        blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)]
                    ),
                ),
                ("anchor", models.DateTimeField(editable=False, help_text="Start of the interval count.")),
                (
                    "retry_schedule_s",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(),
                        blank=True,
                        default=list,
                        help_text="Seconds to wait before each retry of a run. The number of values is the number of retries.",
                        size=None,
                    ),
                ),
                (
                    "missed",
                    models.CharField(
                        choices=[
                            ("all", "Run all missed ones"),
                            ("last", "Run only the last one"),
                            ("skip", "Skip all missed ones"),
                        ],
                        default="last",
                        max_length=8,
                    ),
                ),
                (
                    "missed_after_s",
                    models.PositiveIntegerField(
                        help_text="Mark a run missed if it hasn't started after this many seconds.",
                        verbose_name="missed after (s)",
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        choices=[
                            ("allow", "Run in parallel"),
                            ("skip", "Skip while an earlier run is in progress"),
                        ],
                        default="allow",
                        max_length=8,
                    ),
                ),
                ("shard", models.PositiveSmallIntegerField(editable=False)),
                ("version", models.PositiveIntegerField(default=1, editable=False)),
                (
                    "next_at",
                    models.DateTimeField(editable=False, help_text="The trigger time of the next run.", null=True),
                ),
                (
                    "occurrences",
                    models.PositiveIntegerField(
                        default=0, editable=False, help_text="Occurrences created so far, including the next one."
                    ),
                ),
                (
                    "paused_until",
                    models.DateTimeField(editable=False, help_text="When the last pause ended.", null=True),
                ),
                (
                    "failures",
                    models.PositiveIntegerField(
                        default=0, editable=False, help_text="Consecutive runs that failed permanently."
                    ),
                ),
                ("bulk_row", models.PositiveIntegerField(editable=False, null=True)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                ("changed_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "bulk",
                    models.ForeignKey(
                        db_index=False,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="schedules.bulkimport",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("organization"),
                        models.OrderBy(models.F("id"), descending=True),
                        name="schedule_of_organization",
                    ),
                    models.Index(
                        condition=models.Q(("next_at__isnull", False)),
                        fields=["organization", "next_at"],
                        name="schedule_next",
                    ),
                    models.Index(
                        condition=models.Q(("failures__gt", 0)), fields=["organization"], name="schedule_failing"
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["ended", "deleted"])),
                        fields=["organization", "changed_at"],
                        name="schedule_over",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("cron", ""), ("every__isnull", True), ("trigger_at__isnull", False)),
                            models.Q(("cron", ""), ("every__isnull", False), ("trigger_at__isnull", True)),
                            models.Q(
                                ("every__isnull", True),
                                ("trigger_at__isnull", True),
                                models.Q(("cron", ""), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="schedule_has_one_timing",
                    ),
                    models.CheckConstraint(condition=models.Q(("shard__lt", 64)), name="schedule_shard_exists"),
                    models.UniqueConstraint(
                        condition=models.Q(("bulk__isnull", False)),
                        fields=("bulk", "bulk_row"),
                        name="one_schedule_per_bulk_row",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("kind", models.CharField(max_length=32)),
                ("shard", models.PositiveSmallIntegerField()),
                (
                    "number",
                    models.PositiveIntegerField(
                        help_text="Number of the occurrence. Empty for a manual run.", null=True
                    ),
                ),
                ("trigger_at", models.DateTimeField()),
                ("due_at", models.DateTimeField(null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("scheduled", "Scheduled"),
                            ("in_progress", "In progress"),
                            ("running", "Running"),
                            ("retrying", "Retrying"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("skipped", "Skipped"),
                            ("missed", "Missed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="scheduled",
                        max_length=16,
                    ),
                ),
                ("attempt", models.PositiveSmallIntegerField(default=1)),
                ("epoch", models.PositiveIntegerField(default=0)),
                (
                    "lapses",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Workers that died during this attempt."
                    ),
                ),
                (
                    "waiting_for",
                    models.CharField(
                        blank=True, help_text='"earlier": waiting for an earlier run to end.', max_length=16
                    ),
                ),
                ("taken_at", models.DateTimeField(help_text="When its message was last sent.", null=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("lease_until", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("result", models.JSONField(null=True)),
                ("error", models.CharField(blank=True, max_length=500)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "schedule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="runs",
                        to="schedules.schedule",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("due_at__isnull", False), ("status__in", ["scheduled", "retrying"])),
                        fields=["shard", "due_at"],
                        name="run_due",
                    ),
                    models.Index(
                        condition=models.Q(("status", "in_progress")), fields=["taken_at"], name="run_in_progress"
                    ),
                    models.Index(
                        condition=models.Q(("status", "running")), fields=["lease_until"], name="run_leases"
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["scheduled", "in_progress", "running", "retrying"])),
                        fields=["schedule"],
                        name="run_open_of_schedule",
                    ),
                    models.Index(
                        condition=models.Q(("waiting_for", "earlier")),
                        fields=["schedule"],
                        name="run_waits_for_earlier",
                    ),
                    models.Index(
                        models.F("organization"),
                        models.OrderBy(models.F("id"), descending=True),
                        name="run_of_organization",
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["scheduled", "retrying"])),
                        fields=["organization", "trigger_at"],
                        name="run_coming",
                    ),
                    models.Index(
                        models.F("organization"),
                        models.OrderBy(models.F("id"), descending=True),
                        condition=models.Q(("status", "failed")),
                        name="run_failed",
                    ),
                    models.Index(
                        condition=models.Q(("ended_at__isnull", False)), fields=["ended_at"], name="run_ended"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("number__isnull", False), ("status", "scheduled")),
                        fields=("schedule",),
                        name="one_next_run_per_schedule",
                    ),
                    models.UniqueConstraint(fields=("schedule", "number"), name="one_run_per_occurrence"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("lease_until__isnull", False), ("status", "running")),
                            models.Q(
                                models.Q(("status", "running"), _negated=True), ("lease_until__isnull", True)
                            ),
                            _connector="OR",
                        ),
                        name="only_a_running_run_has_a_lease",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("ended_at__isnull", True),
                                ("status__in", ["scheduled", "in_progress", "running", "retrying"]),
                            ),
                            models.Q(
                                ("ended_at__isnull", False),
                                ("status__in", ["succeeded", "failed", "skipped", "missed", "cancelled"]),
                            ),
                            _connector="OR",
                        ),
                        name="an_ended_run_says_when",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RunReport",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("epoch", models.PositiveIntegerField()),
                ("attempt", models.PositiveSmallIntegerField()),
                (
                    "outcome",
                    models.CharField(
                        choices=[("succeeded", "Succeeded"), ("failed", "Failed"), ("refused", "Refused")],
                        max_length=16,
                    ),
                ),
                ("result", models.JSONField(null=True)),
                ("error", models.CharField(blank=True, max_length=500)),
                ("again_in_s", models.FloatField(null=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField()),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="reports",
                        to="schedules.run",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("run", "epoch"), name="one_report_per_epoch")],
            },
        ),
    ]
