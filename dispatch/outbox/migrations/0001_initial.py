import dispatch.core.clock
import dispatch.core.crypto
import dispatch.outbox.models
import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("capacity", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="PoolGate",
            fields=[
                (
                    "pool",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="capacity.dispatchpool",
                    ),
                ),
                ("full_at", models.DateTimeField(default=dispatch.core.clock.now)),
            ],
        ),
        migrations.CreateModel(
            name="QuarantinedPointer",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("at", models.DateTimeField(default=dispatch.core.clock.now)),
                ("reason", models.CharField(max_length=200)),
                ("content", models.TextField()),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="Endpoint",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("name", models.CharField(max_length=80)),
                (
                    "url",
                    models.CharField(
                        max_length=2000,
                        validators=[django.core.validators.URLValidator(schemes=["http", "https"])],
                        verbose_name="URL",
                    ),
                ),
                (
                    "event_types",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=80),
                        blank=True,
                        default=list,
                        help_text='Examples: "job.assigned", "job.*" or "*". Leave empty for messages addressed to it by name only.',
                        size=None,
                    ),
                ),
                (
                    "secret",
                    dispatch.core.crypto.EncryptedTextField(
                        help_text="Signs every request (whsec_…). Stored encrypted."
                    ),
                ),
                (
                    "previous_secret",
                    dispatch.core.crypto.EncryptedTextField(
                        blank=True, default="", help_text="Also signs until it expires."
                    ),
                ),
                ("previous_secret_until", models.DateTimeField(blank=True, null=True)),
                (
                    "headers",
                    dispatch.core.crypto.EncryptedJSONField(
                        blank=True,
                        default=dict,
                        help_text='Sent with every request, such as {"Authorization": "…"}. Stored encrypted.',
                    ),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("BLOCK_ON_ERROR", "Stop the group on an error"),
                            ("NEXT_ON_ERROR", "Continue after an error"),
                            ("IMMEDIATE", "No order"),
                        ],
                        default="BLOCK_ON_ERROR",
                        max_length=16,
                    ),
                ),
                (
                    "timeout_s",
                    models.FloatField(
                        default=15.0,
                        validators=[django.core.validators.MinValueValidator(0.1)],
                        verbose_name="timeout (s)",
                    ),
                ),
                (
                    "retry_schedule_s",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(),
                        blank=True,
                        default=dispatch.outbox.models.default_retry_schedule,
                        help_text="Seconds before each retry. The number of entries is the number of retries.",
                        size=None,
                    ),
                ),
                (
                    "retry_jitter",
                    models.FloatField(
                        default=0.2,
                        help_text="Delays each retry by up to this share of its delay, at random.",
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(1),
                        ],
                    ),
                ),
                (
                    "permanent_codes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveSmallIntegerField(),
                        blank=True,
                        default=dispatch.outbox.models.default_permanent_codes,
                        help_text="Status codes that are an error at once, without a retry.",
                        size=None,
                    ),
                ),
                (
                    "expire_after_s",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Undelivered messages expire after this many seconds. Leave empty for never.",
                        null=True,
                    ),
                ),
                ("is_paused", models.BooleanField(default=False)),
                ("paused_reason", models.CharField(blank=True, max_length=200)),
                ("disabled_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("disabled_reason", models.CharField(blank=True, editable=False, max_length=200)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        limit_choices_to={"kind": "messages"},
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="capacity.dispatchpool",
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "name"), name="one_endpoint_per_name")
                ],
            },
        ),
        migrations.CreateModel(
            name="Target",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("origin", models.CharField(blank=True, max_length=300)),
                ("failures", models.PositiveIntegerField(default=0, help_text="Consecutive failures.")),
                ("failing_since", models.DateTimeField(null=True)),
                ("last_error", models.CharField(blank=True, max_length=200)),
                (
                    "openings",
                    models.PositiveIntegerField(
                        default=0, help_text="How many times in a row the circuit has opened."
                    ),
                ),
                (
                    "open_until",
                    models.DateTimeField(help_text="While set, the circuit is open or probing.", null=True),
                ),
                ("probe_until", models.DateTimeField(help_text="A probe is in flight until then.", null=True)),
                (
                    "endpoint",
                    models.OneToOneField(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="target",
                        to="outbox.endpoint",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        help_text="Only for an origin.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="capacity.dispatchpool",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("endpoint__isnull", True)),
                        fields=("organization", "origin", "pool"),
                        name="one_target_per_origin_and_pool",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("endpoint__isnull", False), ("pool__isnull", False), _connector="OR"),
                        name="target_has_a_pool",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MessageGroup",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("name", models.CharField(default="default", max_length=200)),
                ("key", models.CharField(editable=False, max_length=64, unique=True)),
                ("wake_at", models.DateTimeField(null=True)),
                (
                    "blocked_by",
                    models.BigIntegerField(help_text="The message whose ERROR blocks the group.", null=True),
                ),
                ("blocked_since", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "endpoint",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="outbox.endpoint",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="outbox.target",
                    ),
                ),
            ],
            options={
                "verbose_name": "message group",
                "indexes": [
                    models.Index(fields=["organization", "name"], name="group_of_organization"),
                    models.Index(
                        condition=models.Q(("wake_at__isnull", False)),
                        fields=["target", "wake_at"],
                        name="group_waiting_line",
                    ),
                    models.Index(
                        condition=models.Q(("blocked_by__isnull", False)),
                        fields=["organization", "blocked_since"],
                        name="group_blocked",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "url",
                    models.CharField(
                        blank=True,
                        help_text="Set if there is no endpoint.",
                        max_length=2000,
                        verbose_name="URL",
                    ),
                ),
                ("type", models.CharField(max_length=80)),
                ("payload", models.TextField()),
                ("sequence", models.IntegerField(default=99)),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("BLOCK_ON_ERROR", "Stop the group on an error"),
                            ("NEXT_ON_ERROR", "Continue after an error"),
                            ("IMMEDIATE", "No order"),
                        ],
                        default="BLOCK_ON_ERROR",
                        max_length=16,
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("PENDING", "Pending"),
                            ("QUEUED", "Queued"),
                            ("PROCESSING", "Processing"),
                            ("COMPLETED", "Completed"),
                            ("ERROR", "Error"),
                            ("CANCELLED", "Cancelled"),
                            ("EXPIRED", "Expired"),
                        ],
                        default="PENDING",
                        max_length=16,
                    ),
                ),
                ("scheduled_for", models.DateTimeField(null=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("idempotency_key", models.CharField(max_length=255, null=True)),
                ("event_id", models.BigIntegerField(null=True)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "due_at",
                    models.DateTimeField(
                        help_text="Earliest time of the next attempt, by its schedule, a retry or a deferral."
                    ),
                ),
                ("epoch", models.PositiveIntegerField(default=0)),
                (
                    "attempts",
                    models.PositiveIntegerField(default=0, help_text="Attempts counted against the retry budget."),
                ),
                (
                    "calls",
                    models.PositiveIntegerField(
                        default=0, help_text="All attempts, including those that don't count against the budget."
                    ),
                ),
                (
                    "lapses",
                    models.PositiveIntegerField(default=0, help_text="Leases that ended without a result."),
                ),
                ("in_flight", models.BooleanField(default=False)),
                ("queued_at", models.DateTimeField(null=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("lease_until", models.DateTimeField(null=True)),
                ("pool_slot", models.PositiveIntegerField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("last_error", models.CharField(blank=True, max_length=300)),
                (
                    "waiting_for",
                    models.CharField(blank=True, help_text="Why it was last requeued.", max_length=40),
                ),
                (
                    "resolution",
                    models.CharField(blank=True, help_text="ignored or resolved, set manually.", max_length=16),
                ),
                (
                    "endpoint",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="outbox.endpoint",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="capacity.dispatchpool",
                    ),
                ),
                (
                    "group",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="messages",
                        to="outbox.messagegroup",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="outbox.target",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(
                            ("status__in", ["PENDING", "ERROR"]), models.Q(("mode", "IMMEDIATE"), _negated=True)
                        ),
                        fields=["group", "status", "mode", "sequence", "created_at", "id"],
                        name="message_heads",
                    ),
                    models.Index(
                        condition=models.Q(("mode", "IMMEDIATE"), ("status", "PENDING")),
                        fields=["target", "due_at", "id"],
                        name="message_immediate_line",
                    ),
                    models.Index(
                        condition=models.Q(("in_flight", True), ("pool__isnull", False)),
                        fields=["pool", "status"],
                        name="message_in_flight",
                    ),
                    models.Index(
                        condition=models.Q(("status", "QUEUED")), fields=["queued_at"], name="message_stale"
                    ),
                    models.Index(
                        condition=models.Q(("in_flight", True), ("lease_until__isnull", False)),
                        fields=["lease_until"],
                        name="message_leases",
                    ),
                    models.Index(
                        condition=models.Q(("expires_at__isnull", False), ("status", "PENDING")),
                        fields=["expires_at"],
                        name="message_expiring",
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["COMPLETED", "CANCELLED", "EXPIRED"])),
                        fields=["organization", "ended_at"],
                        name="message_ended",
                    ),
                    models.Index(
                        models.F("organization"),
                        models.OrderBy(models.F("id"), descending=True),
                        name="message_of_organization",
                    ),
                    models.Index(
                        models.F("organization"),
                        models.OrderBy(models.F("id"), descending=True),
                        condition=models.Q(("status", "ERROR")),
                        name="message_errors",
                    ),
                    models.Index(fields=["group", "id"], name="message_of_group"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("in_flight", True), models.Q(("mode", "IMMEDIATE"), _negated=True)),
                        fields=("group",),
                        name="one_in_flight_per_group",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("pool_slot__isnull", False)),
                        fields=("pool", "pool_slot"),
                        name="one_call_per_slot",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("event_id__isnull", False)),
                        fields=("endpoint", "event_id"),
                        name="one_message_per_endpoint_and_event",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("idempotency_key__isnull", False)),
                        fields=("organization", "idempotency_key"),
                        name="one_message_per_idempotency_key",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("in_flight", True),
                            models.Q(("status__in", ["QUEUED", "PROCESSING"]), _negated=True),
                            _connector="OR",
                        ),
                        name="queued_and_processing_are_in_flight",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("in_flight", False),
                            ("status__in", ["QUEUED", "PROCESSING", "CANCELLED"]),
                            _connector="OR",
                        ),
                        name="in_flight_is_going_or_cancelled",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("pool_slot__isnull", True), ("in_flight", True), _connector="OR"),
                        name="only_a_call_holds_a_slot",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("number", models.PositiveIntegerField()),
                ("epoch", models.PositiveIntegerField()),
                ("url", models.CharField(blank=True, max_length=2000, verbose_name="URL")),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField()),
                ("elapsed_s", models.FloatField(default=0.0)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("delivered", "Delivered"),
                            ("deferred", "Deferred by the receiver"),
                            ("failed", "Failed"),
                            ("permanent", "Permanently refused"),
                            ("lapsed", "No result: lease ended"),
                        ],
                        max_length=16,
                    ),
                ),
                ("status_code", models.PositiveSmallIntegerField(null=True)),
                (
                    "answer",
                    models.TextField(blank=True, help_text="The beginning of the response body, up to 4 KB."),
                ),
                ("error_class", models.CharField(blank=True, max_length=40)),
                ("error", models.CharField(blank=True, max_length=300)),
                ("is_spent", models.BooleanField(default=True, help_text="Counts against the retry budget.")),
                (
                    "is_late",
                    models.BooleanField(default=False, help_text="From an older epoch: recorded without effect."),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "message",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempts_made",
                        to="outbox.message",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
            },
        ),
    ]
