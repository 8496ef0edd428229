import dispatch.core.clock
import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import phonenumber_field.modelfields
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("capacity", "0001_initial"),
        ("technicians", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="PublicForm",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("is_on", models.BooleanField(default=True, verbose_name="switched on")),
                (
                    "heading",
                    models.CharField(blank=True, help_text="Empty: “Request a technician”.", max_length=120),
                ),
                ("intro", models.TextField(blank=True, help_text="Shown above the form.", max_length=1000)),
                (
                    "thanks",
                    models.TextField(blank=True, help_text="Shown after the form is sent.", max_length=1000),
                ),
                ("asks_urgency", models.BooleanField(default=True, verbose_name="ask how urgent it is")),
                (
                    "per_hour",
                    models.PositiveIntegerField(
                        default=60,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(10000),
                        ],
                        verbose_name="max requests per hour",
                    ),
                ),
                (
                    "embed_origins",
                    models.TextField(
                        blank=True,
                        help_text="One per line, such as https://www.example.com. Leave empty to allow any.",
                        max_length=2000,
                        verbose_name="websites that may embed the form",
                    ),
                ),
                (
                    "organization",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="public_form",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="ServiceType",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("code", models.SlugField(max_length=64)),
                ("name", models.CharField(max_length=80)),
                (
                    "spoken_name",
                    models.CharField(
                        blank=True,
                        help_text="How phone prompts say it. Leave empty to use the name.",
                        max_length=120,
                    ),
                ),
                ("is_active", models.BooleanField(default=True)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                ("required_skills", models.ManyToManyField(blank=True, related_name="+", to="technicians.skill")),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "code"), name="one_service_type_per_code")
                ],
            },
        ),
        migrations.CreateModel(
            name="DispatchPolicy",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "answer_timeout_s",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(10),
                            django.core.validators.MaxValueValidator(3600),
                        ],
                        verbose_name="delay between attempts (s)",
                    ),
                ),
                (
                    "ring_timeout_s",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(5),
                            django.core.validators.MaxValueValidator(600),
                        ],
                        verbose_name="ring time (s)",
                    ),
                ),
                (
                    "answered_extension_s",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(10),
                            django.core.validators.MaxValueValidator(600),
                        ],
                        verbose_name="time to decide after answering (s)",
                    ),
                ),
                (
                    "line_wait_s",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(5),
                            django.core.validators.MaxValueValidator(7200),
                        ],
                        verbose_name="max wait for a line (s)",
                    ),
                ),
                (
                    "technician_wait_s",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(7200),
                        ],
                        verbose_name="max wait for technicians with another offer (s)",
                    ),
                ),
                (
                    "radius_m",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(100),
                            django.core.validators.MaxValueValidator(500000),
                        ],
                        verbose_name="radius (m)",
                    ),
                ),
                (
                    "max_candidates",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(50),
                        ],
                        verbose_name="max candidates",
                    ),
                ),
                (
                    "rounds",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(5),
                        ],
                    ),
                ),
                (
                    "weight_distance",
                    models.FloatField(
                        blank=True, null=True, validators=[django.core.validators.MinValueValidator(0)]
                    ),
                ),
                (
                    "weight_workload",
                    models.FloatField(
                        blank=True, null=True, validators=[django.core.validators.MinValueValidator(0)]
                    ),
                ),
                (
                    "weight_rest",
                    models.FloatField(
                        blank=True, null=True, validators=[django.core.validators.MinValueValidator(0)]
                    ),
                ),
                (
                    "auto_pause_misses",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="0: never pause. Changes affect running jobs.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(100)],
                        verbose_name="missed calls in a row before a technician is paused",
                    ),
                ),
                (
                    "offer_by_text",
                    models.BooleanField(blank=True, null=True, verbose_name="also send offers by text"),
                ),
                (
                    "missed_call_grace_s",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="By text, link or call-back. 0: call the next technician immediately.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(3600)],
                        verbose_name="time to answer after a missed call (s)",
                    ),
                ),
                (
                    "address_by_text",
                    models.BooleanField(blank=True, null=True, verbose_name="text the address after accepting"),
                ),
                (
                    "advance_on_decline",
                    models.BooleanField(blank=True, null=True, verbose_name="when declined"),
                ),
                (
                    "advance_on_busy",
                    models.BooleanField(blank=True, null=True, verbose_name="when busy"),
                ),
                (
                    "advance_on_failed",
                    models.BooleanField(blank=True, null=True, verbose_name="when the call failed"),
                ),
                (
                    "advance_on_no_answer",
                    models.BooleanField(blank=True, null=True, verbose_name="when not answered"),
                ),
                (
                    "advance_on_hangup",
                    models.BooleanField(blank=True, null=True, verbose_name="when hung up without pressing a key"),
                ),
                (
                    "call_pool",
                    models.ForeignKey(
                        blank=True,
                        help_text="Pool of caller numbers. Leave empty for the default pool. Changes affect running jobs.",
                        limit_choices_to={"kind": "calls"},
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="capacity.dispatchpool",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "service_type",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="policy",
                        to="jobs.servicetype",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "dispatch policies",
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("service_type", None)),
                        fields=("organization",),
                        name="one_policy_per_organization",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Submission",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[("received", "Received"), ("processed", "Processed")],
                        default="received",
                        max_length=16,
                    ),
                ),
                ("form", models.JSONField(help_text="The form as received.")),
                ("customer_name", models.CharField(max_length=120)),
                ("customer_phone", phonenumber_field.modelfields.PhoneNumberField(max_length=128, region=None)),
                (
                    "priority",
                    models.PositiveSmallIntegerField(
                        choices=[(1, "Emergency"), (2, "Urgent"), (3, "Normal")], default=3
                    ),
                ),
                ("address", models.CharField(blank=True, max_length=300)),
                ("lat", models.FloatField(null=True)),
                ("lng", models.FloatField(null=True)),
                ("notes", models.TextField(blank=True, max_length=4000)),
                ("extra", models.JSONField(blank=True, default=dict)),
                ("idempotency_key", models.CharField(blank=True, max_length=255)),
                (
                    "starts",
                    models.PositiveSmallIntegerField(default=0, help_text="Number of attempts to start a job."),
                ),
                (
                    "next_start_at",
                    models.DateTimeField(
                        help_text="If no worker has started it by then, the auditor does.", null=True
                    ),
                ),
                ("last_error", models.CharField(blank=True, max_length=500)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                (
                    "api_key",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="accounts.apikey",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "service_type",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="jobs.servicetype"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "received")),
                        fields=["next_start_at"],
                        name="submission_to_start",
                    ),
                    models.Index(fields=["organization", "-id"], name="submission_newest"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status", "processed"), ("next_start_at__isnull", False), _connector="OR"
                        ),
                        name="received_submission_has_a_start",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("lat__isnull", True), ("lng__isnull", True)),
                            models.Q(("lat__isnull", False), ("lng__isnull", False)),
                            _connector="OR",
                        ),
                        name="submission_position_is_whole",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("dispatching", "Dispatching"),
                            ("assigned", "Assigned"),
                            ("pending", "Pending"),
                            ("completed", "Completed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="dispatching",
                        max_length=16,
                    ),
                ),
                (
                    "pending_reason",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "—"),
                            ("exhausted", "Nobody accepted"),
                            ("nobody_near", "No qualified technician nearby"),
                            ("no_position", "Address not found"),
                            ("no_line", "No line became free"),
                            ("processing_failed", "Processing failed"),
                        ],
                        default="",
                        max_length=32,
                    ),
                ),
                (
                    "priority",
                    models.PositiveSmallIntegerField(
                        choices=[(1, "Emergency"), (2, "Urgent"), (3, "Normal")], default=3
                    ),
                ),
                ("customer_name", models.CharField(max_length=120)),
                ("customer_phone", phonenumber_field.modelfields.PhoneNumberField(max_length=128, region=None)),
                ("address", models.CharField(blank=True, max_length=300)),
                ("lat", models.FloatField(null=True)),
                ("lng", models.FloatField(null=True)),
                (
                    "position_source",
                    models.CharField(blank=True, help_text="form, zip, or the geocoder's name.", max_length=32),
                ),
                ("notes", models.TextField(blank=True, max_length=4000)),
                ("extra", models.JSONField(blank=True, default=dict)),
                (
                    "policy",
                    models.JSONField(default=dict, help_text="Parameters of the cascade, frozen when it started."),
                ),
                (
                    "out_of_reach",
                    models.JSONField(default=dict, help_text="Technicians who are not candidates, by reason."),
                ),
                ("round", models.PositiveSmallIntegerField(default=1)),
                (
                    "first_round",
                    models.PositiveSmallIntegerField(default=1, help_text="Of the current dispatch."),
                ),
                (
                    "waiting_for",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "—"),
                            ("start", "Next step"),
                            ("answer", "An answer"),
                            ("line", "A line"),
                            ("technician", "A technician with another offer"),
                            ("person", "A dispatcher"),
                        ],
                        default="",
                        max_length=16,
                    ),
                ),
                ("waiting_since", models.DateTimeField(null=True)),
                (
                    "line_wait_until",
                    models.DateTimeField(
                        help_text="Deadline for getting a line.",
                        null=True,
                    ),
                ),
                (
                    "technician_wait_until",
                    models.DateTimeField(
                        help_text="Set after all other candidates of this round were tried.", null=True
                    ),
                ),
                ("next_action_at", models.DateTimeField(null=True)),
                ("step_token", models.UUIDField(default=uuid.uuid4)),
                ("paused_at", models.DateTimeField(null=True)),
                (
                    "failed_steps",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Consecutive failures; 3 make it pending."
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1)),
                (
                    "not_again",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(),
                        blank=True,
                        default=list,
                        help_text="Technicians who said they can't make it.",
                        size=None,
                    ),
                ),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                ("assigned_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "line_pool",
                    models.ForeignKey(
                        help_text="Pool that the job waits for.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="capacity.dispatchpool",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "technician",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="jobs",
                        to="technicians.technician",
                    ),
                ),
                (
                    "service_type",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="jobs.servicetype"
                    ),
                ),
                (
                    "submission",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="job", to="jobs.submission"
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "dispatching")),
                        fields=["next_action_at"],
                        name="job_to_move_on",
                    ),
                    models.Index(fields=["organization", "status", "-id"], name="job_by_status"),
                    models.Index(fields=["organization", "created_at"], name="job_by_day"),
                    models.Index(
                        condition=models.Q(("ended_at__isnull", False)),
                        fields=["organization", "-ended_at"],
                        name="job_ended_lately",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "dispatching"), _negated=True),
                            ("next_action_at__isnull", False),
                            ("paused_at__isnull", False),
                            _connector="OR",
                        ),
                        name="dispatching_job_has_a_next_action",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("paused_at__isnull", True), ("next_action_at__isnull", True), _connector="OR"
                        ),
                        name="paused_job_has_no_next_action",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "assigned"), _negated=True),
                            ("technician__isnull", False),
                            _connector="OR",
                        ),
                        name="assigned_job_has_a_technician",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "pending"), _negated=True),
                            models.Q(("pending_reason", ""), _negated=True),
                            _connector="OR",
                        ),
                        name="pending_job_says_why",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Candidate",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "rank",
                    models.PositiveSmallIntegerField(help_text="1 gets the first offer; ineligible come last."),
                ),
                (
                    "verdict",
                    models.CharField(
                        choices=[("in", "Eligible"), ("deferred", "Has another offer"), ("out", "Not eligible")],
                        max_length=16,
                    ),
                ),
                ("reason", models.CharField(max_length=160)),
                ("distance_m", models.PositiveIntegerField()),
                ("score", models.FloatField()),
                (
                    "skipped_round",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="The round that skipped the technician as ineligible."
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "technician",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="technicians.technician"
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="candidates", to="jobs.job"
                    ),
                ),
            ],
            options={
                "ordering": ["rank"],
                "constraints": [
                    models.UniqueConstraint(fields=("job", "technician"), name="one_candidacy_per_job"),
                    models.UniqueConstraint(fields=("job", "rank"), name="one_candidate_per_rank"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Offer",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("attempt", models.PositiveSmallIntegerField(help_text="1 for the job's first offer.")),
                ("round", models.PositiveSmallIntegerField(default=1)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("accepted", "Accepted"),
                            ("declined", "Declined"),
                            ("timed_out", "Timed out"),
                            ("failed", "Failed"),
                            ("rescinded", "Withdrawn"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                (
                    "outcome",
                    models.CharField(blank=True, help_text="How it ended (`rules.Outcome`).", max_length=32),
                ),
                ("reason", models.CharField(blank=True, max_length=160)),
                ("distance_m", models.PositiveIntegerField(default=0)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                (
                    "ringing_since",
                    models.DateTimeField(help_text="When the provider accepted the call.", null=True),
                ),
                ("answered_at", models.DateTimeField(null=True)),
                (
                    "missed_at",
                    models.DateTimeField(
                        help_text="When its call was missed and the offer stayed open for other channels.",
                        null=True,
                    ),
                ),
                ("expires_at", models.DateTimeField()),
                ("settled_at", models.DateTimeField(null=True)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="offers", to="jobs.job"
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "technician",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="offers",
                        to="technicians.technician",
                    ),
                ),
            ],
            options={
                "ordering": ["attempt"],
                "constraints": [
                    models.UniqueConstraint(fields=("job", "attempt"), name="one_offer_per_attempt"),
                    models.UniqueConstraint(
                        condition=models.Q(("status", "pending")),
                        fields=("job",),
                        name="one_pending_offer_per_job",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("status", "accepted")),
                        fields=("job",),
                        name="one_accepted_offer_per_job",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("status", "pending")),
                        fields=("technician",),
                        name="one_pending_offer_per_technician",
                    ),
                ],
            },
        ),
    ]
