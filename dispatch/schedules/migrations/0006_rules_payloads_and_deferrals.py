import django.contrib.postgres.fields
import django.db.models.deletion
from django.contrib.postgres.operations import AddConstraintNotValid, AddIndexConcurrently
from django.db import migrations, models

import dispatch.core.clock


class Migration(migrations.Migration):
    """Existing rows satisfy the new CHECK, because they satisfied the old one: a later migration may validate it.

    What an interrupted build of the index left is dropped first.
    """

    atomic = False
    dependencies = [
        ("accounts", "0009_member_language"),
        ("schedules", "0005_stretches"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="deferred_since",
            field=models.DateTimeField(
                help_text="Since when its attempt has been deferred without being made.", null=True
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="payload",
            field=models.JSONField(help_text="The payload of this run. NULL: the schedule's.", null=True),
        ),
        migrations.AddField(
            model_name="schedule",
            name="rrule",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="A recurrence rule (RFC 5545) without COUNT and UNTIL, such as FREQ=MONTHLY;BYDAY=-1FR.",
                max_length=500,
                verbose_name="recurrence rule",
            ),
        ),
        migrations.AlterField(
            model_name="run",
            name="waiting_for",
            field=models.CharField(
                blank=True,
                help_text='"earlier": an earlier run has to end first. Otherwise why its request cannot be sent now: "endpoint", "circuit", "pool paused", "rate", "slot", "lookup" or "token_pending".',
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="runreport",
            name="outcome",
            field=models.CharField(
                choices=[
                    ("succeeded", "Succeeded"),
                    ("failed", "Failed"),
                    ("refused", "Refused"),
                    ("cancelled", "Canceled"),
                    ("deferred", "Deferred"),
                ],
                max_length=16,
            ),
        ),
        migrations.CreateModel(
            name="ExclusionCalendar",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("name", models.CharField(max_length=80)),
                (
                    "url",
                    models.CharField(
                        blank=True, help_text="Read once a day.", max_length=2000, verbose_name="URL"
                    ),
                ),
                ("content", models.TextField(blank=True, help_text="The text of the iCalendar file.")),
                ("entries", models.JSONField(default=list, editable=False)),
                ("version", models.PositiveIntegerField(default=1, editable=False)),
                ("applied_version", models.PositiveIntegerField(default=1, editable=False)),
                (
                    "refreshed_at",
                    models.DateTimeField(editable=False, help_text="When it was last read.", null=True),
                ),
                ("refresh_at", models.DateTimeField(editable=False, help_text="When it is read next.")),
                ("last_error", models.CharField(blank=True, editable=False, max_length=300)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="schedule",
            name="exclude_calendars",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(),
                blank=True,
                help_text="Ids of the exclusion calendars. Occurrences on their days and intervals are left out.",
                null=True,
                size=None,
            ),
        ),
        migrations.AddIndex(
            model_name="exclusioncalendar",
            index=models.Index(fields=["refresh_at"], name="exclusion_calendar_refresh"),
        ),
        migrations.AddConstraint(
            model_name="exclusioncalendar",
            constraint=models.UniqueConstraint(
                fields=("organization", "name"), name="one_exclusion_calendar_per_name"
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS schedule_with_calendars", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("exclude_calendars__isnull", False)),
                fields=["organization"],
                name="schedule_with_calendars",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_own_payload", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("payload__isnull", False)), fields=["organization"], name="run_own_payload"
            ),
        ),
        migrations.RemoveConstraint(
            model_name="schedule",
            name="schedule_has_one_timing",
        ),
        AddConstraintNotValid(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("cron", ""), ("every__isnull", True), ("rrule", ""), ("trigger_at__isnull", False)),
                    models.Q(("cron", ""), ("every__isnull", False), ("rrule", ""), ("trigger_at__isnull", True)),
                    models.Q(
                        ("every__isnull", True),
                        ("rrule", ""),
                        ("trigger_at__isnull", True),
                        models.Q(("cron", ""), _negated=True),
                    ),
                    models.Q(
                        ("cron", ""),
                        ("every__isnull", True),
                        ("trigger_at__isnull", True),
                        models.Q(("rrule", ""), _negated=True),
                    ),
                    _connector="OR",
                ),
                name="schedule_has_one_timing",
            ),
        ),
    ]
