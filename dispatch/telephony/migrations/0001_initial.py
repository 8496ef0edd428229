import dispatch.core.clock
import django.db.models.deletion
import phonenumber_field.modelfields
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("capacity", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Call",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "purpose",
                    models.CharField(
                        choices=[("alert", "Alert"), ("offer", "Offer"), ("lead", "Lead"), ("test", "Test")],
                        max_length=16,
                    ),
                ),
                (
                    "subject_id",
                    models.BigIntegerField(help_text="ID of what the call is about, such as the offer."),
                ),
                ("attempt", models.PositiveSmallIntegerField(default=1)),
                ("line_slot", models.PositiveIntegerField()),
                ("pool_slot", models.PositiveIntegerField()),
                ("to_phone", phonenumber_field.modelfields.PhoneNumberField(max_length=128, region=None)),
                ("from_phone", phonenumber_field.modelfields.PhoneNumberField(max_length=128, region=None)),
                ("ring_timeout_s", models.PositiveSmallIntegerField(default=30)),
                ("time_limit_s", models.PositiveSmallIntegerField(default=300)),
                (
                    "detect_machine",
                    models.BooleanField(default=False, help_text="Have the provider detect who answered."),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("created", "Created"),
                            ("requesting", "Requesting"),
                            ("unknown", "Unknown"),
                            ("submitted", "Submitted"),
                            ("ringing", "Ringing"),
                            ("answered", "Answered"),
                            ("completed", "Completed"),
                            ("busy", "Busy"),
                            ("no_answer", "No answer"),
                            ("failed", "Failed"),
                            ("canceled", "Canceled"),
                            ("rejected", "Rejected by the provider"),
                            ("not_placed", "Not placed"),
                            ("lost", "End not reported"),
                        ],
                        default="created",
                        max_length=16,
                    ),
                ),
                ("sid", models.CharField(blank=True, max_length=64, null=True)),
                (
                    "not_before",
                    models.DateTimeField(
                        default=dispatch.core.clock.now, help_text="The call is not placed before this time."
                    ),
                ),
                ("place_by", models.DateTimeField(help_text="Deadline for claiming the request.")),
                (
                    "send_by",
                    models.DateTimeField(help_text="Deadline for sending the claimed request.", null=True),
                ),
                ("cancel_requested_at", models.DateTimeField(blank=True, null=True)),
                ("empty_listings", models.PositiveSmallIntegerField(default=0)),
                (
                    "checked_at",
                    models.DateTimeField(
                        blank=True, help_text="When the provider was last asked about it.", null=True
                    ),
                ),
                ("last_sequence", models.IntegerField(default=-1)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                ("requested_at", models.DateTimeField(blank=True, null=True)),
                ("submitted_at", models.DateTimeField(blank=True, null=True)),
                ("answered_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("duration_s", models.PositiveIntegerField(blank=True, null=True)),
                ("answered_by", models.CharField(blank=True, max_length=32)),
                ("keys_pressed", models.CharField(blank=True, max_length=64)),
                (
                    "context",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="Included in every event of the call, so that its subject finds them.",
                    ),
                ),
                ("error_code", models.CharField(blank=True, max_length=16)),
                ("error_message", models.CharField(blank=True, max_length=255)),
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="capacity.provideraccount",
                    ),
                ),
                (
                    "number",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="calls",
                        to="capacity.outboundnumber",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="calls",
                        to="capacity.dispatchpool",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "created")), fields=["not_before"], name="call_to_place"
                    ),
                    models.Index(
                        condition=models.Q(("ended_at", None)), fields=["status", "id"], name="call_open"
                    ),
                    models.Index(fields=["requested_at"], name="call_requested_at"),
                    models.Index(
                        condition=models.Q(("purpose", "lead")),
                        fields=["organization", "created_at"],
                        name="lead_call_lately",
                    ),
                    models.Index(fields=["organization", "to_phone", "requested_at"], name="call_to_phone"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("purpose", "subject_id", "attempt"), name="one_call_per_attempt"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("sid__isnull", False)),
                        fields=("account", "sid"),
                        name="one_call_per_sid",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)),
                        fields=("organization", "to_phone"),
                        name="one_open_call_per_phone",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)),
                        fields=("number", "line_slot"),
                        name="one_open_call_per_line",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)),
                        fields=("pool", "pool_slot"),
                        name="one_open_call_per_pool_slot",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="CallEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "key",
                    models.CharField(
                        help_text="Deduplicates events: a sequence number or a digest.", max_length=128
                    ),
                ),
                ("kind", models.CharField(max_length=32)),
                ("payload", models.JSONField(default=dict)),
                ("at", models.DateTimeField(default=dispatch.core.clock.now)),
                (
                    "call",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="provider_events",
                        to="telephony.call",
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
                "ordering": ["id"],
                "constraints": [models.UniqueConstraint(fields=("call", "key"), name="each_provider_event_once")],
            },
        ),
        migrations.CreateModel(
            name="InboundCall",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("sid", models.CharField(max_length=64)),
                (
                    "from_phone",
                    models.CharField(blank=True, help_text="E.164. Empty if withheld.", max_length=32),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[("answered", "Answered"), ("completed", "Completed")],
                        default="answered",
                        max_length=16,
                    ),
                ),
                ("purpose", models.CharField(blank=True, max_length=16)),
                ("subject_id", models.BigIntegerField(blank=True, null=True)),
                ("keys_pressed", models.CharField(blank=True, max_length=64)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("duration_s", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="capacity.provideraccount",
                    ),
                ),
                (
                    "number",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="inbound_calls",
                        to="capacity.outboundnumber",
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
                    models.Index(fields=["organization", "-id"], name="inbound_call_newest"),
                    models.Index(
                        condition=models.Q(("ended_at", None)), fields=["created_at"], name="inbound_call_open"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("account", "sid"), name="one_inbound_call_per_sid")
                ],
            },
        ),
        migrations.CreateModel(
            name="OptOut",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("phone", phonenumber_field.modelfields.PhoneNumberField(max_length=128, region=None)),
                (
                    "source",
                    models.CharField(
                        choices=[
                            ("stop", "Sent STOP"),
                            ("provider", "Reported by the provider"),
                            ("hand", "Entered manually"),
                        ],
                        default="hand",
                        editable=False,
                        max_length=16,
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
            options={
                "verbose_name": "opt-out",
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "phone"), name="one_opt_out_per_phone")
                ],
            },
        ),
        migrations.CreateModel(
            name="Text",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "direction",
                    models.CharField(
                        choices=[("out", "Outbound"), ("in", "Inbound")], default="out", max_length=3
                    ),
                ),
                (
                    "purpose",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "—"),
                            ("alert", "Alert"),
                            ("offer", "Offer"),
                            ("job", "Job details"),
                            ("link", "Link to their page"),
                            ("reply", "Reply"),
                            ("test", "Test"),
                        ],
                        help_text="Of an inbound text: the purpose that handled it.",
                        max_length=16,
                    ),
                ),
                (
                    "subject_id",
                    models.BigIntegerField(
                        blank=True, help_text="ID of what the text is about, such as the offer.", null=True
                    ),
                ),
                ("attempt", models.PositiveIntegerField(default=1)),
                ("to_phone", phonenumber_field.modelfields.PhoneNumberField(max_length=128, region=None)),
                (
                    "from_phone",
                    models.CharField(help_text="E.164, or the sender's short code or name.", max_length=32),
                ),
                ("body", models.TextField(max_length=1600)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("created", "Created"),
                            ("requesting", "Requesting"),
                            ("unknown", "Unknown"),
                            ("submitted", "Submitted"),
                            ("sent", "Sent"),
                            ("delivered", "Delivered"),
                            ("undelivered", "Undelivered"),
                            ("failed", "Failed"),
                            ("rejected", "Rejected by the provider"),
                            ("canceled", "Canceled"),
                            ("not_sent", "Not sent"),
                            ("received", "Received"),
                        ],
                        default="created",
                        max_length=16,
                    ),
                ),
                ("sid", models.CharField(blank=True, max_length=64, null=True)),
                (
                    "not_before",
                    models.DateTimeField(default=dispatch.core.clock.now, help_text="Earliest time to send it."),
                ),
                ("not_after", models.DateTimeField(help_text="Deadline for sending it.")),
                (
                    "send_by",
                    models.DateTimeField(help_text="Deadline for sending the claimed request.", null=True),
                ),
                ("empty_listings", models.PositiveSmallIntegerField(default=0)),
                (
                    "checked_at",
                    models.DateTimeField(
                        blank=True, help_text="When the provider was last asked about it.", null=True
                    ),
                ),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                ("requested_at", models.DateTimeField(blank=True, null=True)),
                ("submitted_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "handled_at",
                    models.DateTimeField(
                        blank=True, help_text="Of an inbound text: when it was processed.", null=True
                    ),
                ),
                (
                    "context",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="Included in every event of the text, so that its subject finds them.",
                    ),
                ),
                ("error_code", models.CharField(blank=True, max_length=16)),
                ("error_message", models.CharField(blank=True, max_length=255)),
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="capacity.provideraccount",
                    ),
                ),
                (
                    "number",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="texts",
                        to="capacity.outboundnumber",
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
                        condition=models.Q(("status", "created")), fields=["not_before"], name="text_to_send"
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["requesting", "unknown"])),
                        fields=["id"],
                        name="text_in_doubt",
                    ),
                    models.Index(
                        condition=models.Q(("ended_at", None), ("status__in", ["submitted", "sent"])),
                        fields=["submitted_at"],
                        name="text_unreported",
                    ),
                    models.Index(fields=["number", "requested_at"], name="text_pace_of_number"),
                    models.Index(fields=["organization", "to_phone", "-id"], name="text_to_phone"),
                    models.Index(fields=["organization", "from_phone", "-id"], name="text_from_phone"),
                    models.Index(
                        condition=models.Q(("direction", "in"), ("handled_at", None)),
                        fields=["created_at"],
                        name="text_to_deal_with",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("direction", "out")),
                        fields=("purpose", "subject_id", "attempt"),
                        name="one_text_per_attempt",
                    ),
                    models.UniqueConstraint(fields=("account", "sid"), name="one_text_per_sid"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("direction", "in"),
                            models.Q(("subject_id__isnull", False), models.Q(("purpose", ""), _negated=True)),
                            _connector="OR",
                        ),
                        name="our_texts_are_about_something",
                    ),
                ],
            },
        ),
    ]
