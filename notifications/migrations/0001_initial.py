import dispatch.core.clock
import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("capacity", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Alert",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("event_id", models.BigIntegerField()),
                ("kind", models.CharField(max_length=64)),
                ("title", models.CharField(max_length=160)),
                ("body", models.CharField(blank=True, max_length=500)),
                ("subject_type", models.CharField(max_length=32)),
                ("subject_id", models.BigIntegerField()),
                (
                    "status",
                    models.CharField(
                        choices=[("open", "Open"), ("acknowledged", "Acknowledged"), ("settled", "Resolved")],
                        default="open",
                        max_length=16,
                    ),
                ),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                (
                    "plan",
                    models.JSONField(
                        default=dict, help_text="The escalation policy as it was when the alert was raised."
                    ),
                ),
                ("cycle", models.PositiveSmallIntegerField(default=0)),
                ("step", models.PositiveSmallIntegerField(default=0)),
                ("step_token", models.UUIDField(default=uuid.uuid4)),
                ("next_action_at", models.DateTimeField(blank=True, null=True)),
                ("repeats", models.PositiveIntegerField(default=0)),
                ("next_repeat_at", models.DateTimeField(blank=True, null=True)),
                ("acknowledged_at", models.DateTimeField(blank=True, null=True)),
                ("acknowledged_via", models.CharField(blank=True, help_text="app, phone or text.", max_length=16)),
                ("settled_at", models.DateTimeField(blank=True, null=True)),
                ("settled_how", models.CharField(blank=True, max_length=160)),
                (
                    "acknowledged_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
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
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "open")), fields=["next_action_at"], name="alert_to_escalate"
                    ),
                    models.Index(
                        condition=models.Q(("status", "open")), fields=["next_repeat_at"], name="alert_to_repeat"
                    ),
                    models.Index(
                        condition=models.Q(("status", "settled"), _negated=True),
                        fields=["subject_type", "subject_id"],
                        name="alert_of",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "event_id"), name="one_alert_per_event"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("next_action_at__isnull", False),
                                ("next_repeat_at__isnull", False),
                                ("status", "open"),
                            ),
                            models.Q(
                                models.Q(("status", "open"), _negated=True),
                                ("next_action_at", None),
                                ("next_repeat_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="an_open_alert_has_a_next_step",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Claim",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("subject_type", models.CharField(max_length=32)),
                ("subject_id", models.BigIntegerField()),
                ("claimed_at", models.DateTimeField(default=dispatch.core.clock.now)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "subject_type", "subject_id"), name="one_claim_per_subject"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="EscalationPolicy",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "repeat_s",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="On the dispatchers' screens.",
                        null=True,
                        verbose_name="repeat every (s)",
                    ),
                ),
                (
                    "again_after_s",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Time after the last step, if nobody has acknowledged.",
                        null=True,
                        verbose_name="start over after (s)",
                    ),
                ),
                (
                    "call_pool",
                    models.ForeignKey(
                        blank=True,
                        help_text="Pool whose numbers place alert calls. Leave empty to use the default pool.",
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
            ],
            options={
                "verbose_name_plural": "escalation policies",
                "constraints": [models.UniqueConstraint(fields=("organization",), name="one_escalation_policy")],
            },
        ),
        migrations.CreateModel(
            name="EscalationStep",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("position", models.PositiveSmallIntegerField(default=1)),
                (
                    "audience",
                    models.CharField(
                        choices=[
                            ("on_duty", "Dispatchers on duty"),
                            ("dispatchers", "All dispatchers"),
                            ("admins", "Admins"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "after_s",
                    models.PositiveIntegerField(
                        default=60,
                        help_text="Time after the previous step, or after the alert for the first step.",
                        verbose_name="delay (s)",
                    ),
                ),
                (
                    "spacing_s",
                    models.PositiveIntegerField(
                        default=0,
                        help_text="0 contacts everyone at once. Otherwise one person after another, in escalation order.",
                        verbose_name="between people (s)",
                    ),
                ),
                ("sms", models.BooleanField(default=True, verbose_name="SMS")),
                ("voice", models.BooleanField(default=True, verbose_name="voice call")),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "policy",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="steps",
                        to="notifications.escalationpolicy",
                    ),
                ),
            ],
            options={
                "ordering": ["position", "id"],
                "constraints": [
                    models.UniqueConstraint(fields=("policy", "position"), name="one_step_per_position"),
                    models.CheckConstraint(
                        condition=models.Q(("sms", True), ("voice", True), _connector="OR"),
                        name="a_step_has_a_channel",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Notification",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("event_id", models.BigIntegerField()),
                ("kind", models.CharField(max_length=64)),
                (
                    "level",
                    models.CharField(
                        choices=[("quiet", "Quiet"), ("toast", "Toast"), ("critical", "Critical")],
                        default="toast",
                        max_length=16,
                    ),
                ),
                ("title", models.CharField(max_length=160)),
                ("body", models.CharField(blank=True, max_length=500)),
                ("subject_type", models.CharField(max_length=32)),
                ("subject_id", models.BigIntegerField()),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                ("read_at", models.DateTimeField(blank=True, null=True)),
                ("acknowledged_at", models.DateTimeField(blank=True, null=True)),
                ("settled_at", models.DateTimeField(blank=True, help_text="When the cause ended.", null=True)),
                ("settled_how", models.CharField(blank=True, max_length=160)),
                (
                    "acknowledged_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "alert",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notifications",
                        to="notifications.alert",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notifications",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("read_at", None)), fields=["user", "-id"], name="notification_unread"
                    ),
                    models.Index(
                        condition=models.Q(("settled_at", None)),
                        fields=["organization", "subject_type", "subject_id"],
                        name="notification_unsettled",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("user", "event_id"), name="one_notification_per_event")
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "channel",
                    models.CharField(
                        choices=[("email", "Email"), ("sms", "SMS"), ("voice", "Voice call")], max_length=8
                    ),
                ),
                ("cycle", models.PositiveSmallIntegerField(default=0)),
                (
                    "step",
                    models.PositiveSmallIntegerField(
                        blank=True, help_text="Escalation step. Empty if sent immediately.", null=True
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("sending", "Sending"),
                            ("sent", "Sent"),
                            ("failed", "Failed"),
                            ("dropped", "No longer needed"),
                        ],
                        default="waiting",
                        max_length=8,
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("next_attempt_at", models.DateTimeField(blank=True, default=dispatch.core.clock.now, null=True)),
                ("error", models.CharField(blank=True, max_length=255)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "notification",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="notifications.notification",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("status__in", ("waiting", "sending"))),
                        fields=["channel", "next_attempt_at"],
                        name="delivery_to_make",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("notification", "channel", "cycle", "step"),
                        name="each_delivery_once",
                        nulls_distinct=False,
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("next_attempt_at__isnull", False), ("status__in", ("waiting", "sending"))),
                            models.Q(
                                models.Q(("status__in", ("waiting", "sending")), _negated=True),
                                ("next_attempt_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="an_open_delivery_has_a_next_attempt",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Preference",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("kind", models.CharField(max_length=64)),
                (
                    "shown",
                    models.BooleanField(
                        default=True, help_text="Show it as it happens. Otherwise it is only listed."
                    ),
                ),
                ("email", models.BooleanField(default=False, verbose_name="email")),
                ("sms", models.BooleanField(default=False, verbose_name="SMS")),
                (
                    "voice",
                    models.BooleanField(default=False, help_text="Alerts only.", verbose_name="voice call"),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "ordering": ["kind"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "user", "kind"), name="one_preference_per_kind"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Route",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("kind", models.CharField(max_length=64)),
                (
                    "to",
                    models.CharField(
                        blank=True,
                        choices=[("dispatchers", "Dispatchers"), ("admins", "Admins")],
                        help_text="Leave empty to use the installation's default.",
                        max_length=16,
                    ),
                ),
                (
                    "level",
                    models.CharField(
                        blank=True,
                        choices=[("quiet", "Quiet"), ("toast", "Toast"), ("critical", "Critical")],
                        help_text="Leave empty to use the default level.",
                        max_length=16,
                    ),
                ),
                ("is_on", models.BooleanField(default=True, verbose_name="enabled")),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "verbose_name": "notification rule",
                "ordering": ["kind"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "kind"), name="one_route_per_kind")
                ],
            },
        ),
    ]
