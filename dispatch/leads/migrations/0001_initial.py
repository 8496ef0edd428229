from datetime import time
import dispatch.core.clock
import dispatch.core.crypto
import dispatch.leads.models.campaigns
import dispatch.leads.rules.states
import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import phonenumber_field.modelfields
from django.db import migrations, models

# Hours in which the law of the United States and of some stricter states allows sales calls: a start for superusers
# to check with counsel and to keep, not legal advice.
EVERY_DAY, WEEK_AND_SATURDAY, SUNDAY = [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5], [6]
RULES = [
    ("", "United States", EVERY_DAY, time(8), time(21), "47 CFR 64.1200(c)(1)"),
    ("FL", "Florida", EVERY_DAY, time(8), time(20), "Fla. Stat. 501.616(6)"),
    ("OK", "Oklahoma", EVERY_DAY, time(8), time(20), "Okla. Stat. tit. 15, 775C.4"),
    ("WA", "Washington", EVERY_DAY, time(8), time(20), "RCW 80.36.390"),
    ("TX", "Texas", WEEK_AND_SATURDAY, time(9), time(21), "Tex. Bus. & Com. Code 301.051"),
    ("TX", "Texas", SUNDAY, time(12), time(21), "Tex. Bus. & Com. Code 301.051"),
]


def write(apps, schema_editor):
    rule = apps.get_model("leads", "CallingRule")
    for region, name, weekdays, window_from, window_until, source in RULES:
        rule.objects.create(
            country="US",
            region=region,
            name=name,
            weekdays=weekdays,
            window_from=window_from,
            window_until=window_until,
            source=source,
        )


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("capacity", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="DoNotCallEverywhere",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "phone",
                    phonenumber_field.modelfields.PhoneNumberField(max_length=128, region=None, unique=True),
                ),
                ("note", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
            ],
            options={
                "verbose_name_plural": "do not call, everywhere",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="CallingRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "country",
                    models.CharField(
                        default="US",
                        max_length=2,
                        validators=[
                            django.core.validators.RegexValidator("^[A-Z]{2}$", "Two capital letters, such as US.")
                        ],
                    ),
                ),
                (
                    "region",
                    models.CharField(
                        blank=True,
                        max_length=3,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^([A-Z0-9]{1,3})?$",
                                "Code of a state, such as FL. Leave empty for the whole country.",
                            )
                        ],
                        verbose_name="state",
                    ),
                ),
                ("name", models.CharField(max_length=80)),
                (
                    "weekdays",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveSmallIntegerField(
                            validators=[django.core.validators.MaxValueValidator(6)]
                        ),
                        default=dispatch.leads.models.campaigns.every_day,
                        help_text="0 is Monday.",
                        size=None,
                    ),
                ),
                ("window_from", models.TimeField(default="08:00")),
                ("window_until", models.TimeField(default="21:00")),
                ("keeps_holidays", models.BooleanField(default=False, help_text="No calls there on a holiday.")),
                (
                    "since",
                    models.DateField(
                        blank=True,
                        help_text="First day on which it applies. Leave empty if it always did.",
                        null=True,
                    ),
                ),
                (
                    "until",
                    models.DateField(
                        blank=True, help_text="Last day on which it applies. Leave empty for no end.", null=True
                    ),
                ),
                ("source", models.CharField(help_text="Source of the rule.", max_length=200)),
            ],
            options={
                "ordering": ["country", "region", "name", "id"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("since", None), ("until", None), ("since__lte", models.F("until")), _connector="OR"
                        ),
                        name="calling_rule_ends_after_it_begins",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Campaign",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("code", models.SlugField(max_length=64)),
                ("name", models.CharField(max_length=120)),
                ("is_paused", models.BooleanField(default=False)),
                (
                    "customer",
                    models.SlugField(
                        blank=True,
                        help_text="The customer on whose behalf it calls, for rate limits. A lead can name another one.",
                        max_length=64,
                    ),
                ),
                ("window_from", models.TimeField(default="08:00", help_text="Local time of the person called.")),
                (
                    "window_until",
                    models.TimeField(
                        default="21:00", help_text="If earlier than the start, the window runs past midnight."
                    ),
                ),
                (
                    "weekdays",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveSmallIntegerField(
                            validators=[django.core.validators.MaxValueValidator(6)]
                        ),
                        default=dispatch.leads.models.campaigns.every_day,
                        help_text="0 is Monday. For an overnight window, the day on which it begins.",
                        size=None,
                    ),
                ),
                ("keeps_holidays", models.BooleanField(default=True, help_text="No calls on holidays.")),
                (
                    "patience_h",
                    models.PositiveIntegerField(
                        default=168,
                        help_text="A lead that couldn't be called within this time after it was due is given up.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(8760),
                        ],
                        verbose_name="patience (h)",
                    ),
                ),
                (
                    "max_attempts",
                    models.PositiveSmallIntegerField(
                        default=3,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(50),
                        ],
                        verbose_name="most attempts",
                    ),
                ),
                (
                    "max_attempts_24h",
                    models.PositiveSmallIntegerField(
                        default=3,
                        help_text="In any 24 hours, per phone.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(50),
                        ],
                        verbose_name="most attempts in 24 h",
                    ),
                ),
                ("script", models.TextField(blank=True, help_text="Read aloud; one sentence per line.")),
                (
                    "keys",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text='What is said when a key is pressed, for example {"1": "Thank you."}',
                    ),
                ),
                (
                    "opt_out_key",
                    models.CharField(
                        blank=True,
                        default="9",
                        help_text="Leave empty for none.",
                        max_length=1,
                        validators=[django.core.validators.RegexValidator("^[0-9]?$", "One key, 0 to 9.")],
                    ),
                ),
                (
                    "answer_url",
                    models.CharField(
                        blank=True,
                        help_text="Hands the call over to this document instead of reading the script.",
                        max_length=2000,
                        validators=[django.core.validators.URLValidator(schemes=["http", "https"])],
                        verbose_name="TwiML URL",
                    ),
                ),
                ("detect_machines", models.BooleanField(default=False, help_text="Answering-machine detection.")),
                (
                    "ring_timeout_s",
                    models.PositiveSmallIntegerField(
                        default=30,
                        validators=[
                            django.core.validators.MinValueValidator(5),
                            django.core.validators.MaxValueValidator(600),
                        ],
                        verbose_name="ring time (s)",
                    ),
                ),
                (
                    "time_limit_s",
                    models.PositiveSmallIntegerField(
                        default=300,
                        validators=[
                            django.core.validators.MinValueValidator(10),
                            django.core.validators.MaxValueValidator(14400),
                        ],
                        verbose_name="longest call (s)",
                    ),
                ),
                (
                    "precheck_url",
                    models.CharField(
                        blank=True,
                        max_length=2000,
                        validators=[django.core.validators.URLValidator(schemes=["http", "https"])],
                        verbose_name="pre-check URL",
                    ),
                ),
                (
                    "precheck_secret",
                    dispatch.core.crypto.EncryptedTextField(
                        blank=True, default="", help_text="Signs the pre-check request."
                    ),
                ),
                (
                    "precheck_timeout_s",
                    models.FloatField(
                        default=2.0,
                        validators=[
                            django.core.validators.MinValueValidator(0.1),
                            django.core.validators.MaxValueValidator(30),
                        ],
                        verbose_name="time-out (s)",
                    ),
                ),
                (
                    "precheck_without_answer",
                    models.CharField(
                        choices=[
                            ("call", "Call anyway"),
                            ("later", "Ask again later"),
                            ("drop", "Do not call"),
                        ],
                        default="later",
                        max_length=8,
                        verbose_name="if there is no response",
                    ),
                ),
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
                        help_text="The pool whose numbers make the calls.",
                        limit_choices_to={"kind": "calls"},
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="capacity.dispatchpool",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "code"), name="one_campaign_per_code"),
                    models.CheckConstraint(
                        condition=models.Q(("max_attempts__gte", 1)), name="campaign_calls_once_at_least"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ClosedDay",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("date", models.DateField()),
                ("name", models.CharField(max_length=80)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "ordering": ["date"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "date"), name="one_closed_day_per_day")
                ],
            },
        ),
        migrations.CreateModel(
            name="CustomerRate",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("customer", models.SlugField(max_length=64)),
                (
                    "most",
                    models.PositiveIntegerField(
                        validators=[django.core.validators.MinValueValidator(1)], verbose_name="maximum calls"
                    ),
                ),
                (
                    "per_s",
                    models.PositiveIntegerField(
                        default=60,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(86400),
                        ],
                        verbose_name="in any (s)",
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
                "ordering": ["customer"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "customer"), name="one_rate_per_customer")
                ],
            },
        ),
        migrations.CreateModel(
            name="DoNotCall",
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
                            ("key", "Pressed the opt-out key"),
                            ("text", "Replied STOP"),
                            ("api", "API"),
                            ("person", "Entered manually"),
                            ("file", "Imported"),
                        ],
                        default="person",
                        max_length=8,
                    ),
                ),
                ("note", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "do not call",
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "phone"), name="do_not_call_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="EngineSwitch",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "is_stopped",
                    models.BooleanField(
                        default=False, help_text="No leads are called.", verbose_name="kill switch"
                    ),
                ),
                (
                    "promoter_paused",
                    models.BooleanField(default=False, help_text="Due leads stay in the schedule."),
                ),
            ],
            options={
                "verbose_name_plural": "engine switches",
                "constraints": [models.CheckConstraint(condition=models.Q(("pk", 1)), name="one_engine_switch")],
            },
        ),
        migrations.CreateModel(
            name="Holiday",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "country",
                    models.CharField(
                        default="US",
                        max_length=2,
                        validators=[
                            django.core.validators.RegexValidator("^[A-Z]{2}$", "Two capital letters, such as US.")
                        ],
                    ),
                ),
                (
                    "region",
                    models.CharField(
                        blank=True,
                        max_length=3,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^([A-Z0-9]{1,3})?$",
                                "Code of a state, such as FL. Leave empty for the whole country.",
                            )
                        ],
                        verbose_name="state",
                    ),
                ),
                ("date", models.DateField()),
                ("name", models.CharField(max_length=80)),
            ],
            options={
                "ordering": ["date"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("country", "region", "date"), name="one_holiday_per_place_and_day"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Lead",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("phone", phonenumber_field.modelfields.PhoneNumberField(max_length=128, region=None)),
                ("lat", models.FloatField(blank=True, null=True)),
                ("lng", models.FloatField(blank=True, null=True)),
                (
                    "customer",
                    models.CharField(blank=True, help_text="Leave empty for the campaign's.", max_length=64),
                ),
                (
                    "external_id",
                    models.CharField(
                        blank=True,
                        help_text="The client's own ID for it, unique in the campaign.",
                        max_length=120,
                    ),
                ),
                (
                    "data",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="Fills the script's placeholders and is passed to the TwiML URL.",
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[("backlog", "Waiting"), ("processing", "Being called"), ("finished", "Finished")],
                        default="backlog",
                        max_length=16,
                    ),
                ),
                (
                    "outcome",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "—"),
                            ("answered", "Answered"),
                            ("no_answer", "No answer"),
                            ("busy", "Busy"),
                            ("failed", "Failed"),
                            ("voicemail", "Voicemail"),
                            ("invalid_number", "Invalid number"),
                            ("precheck_failed", "No longer wanted"),
                            ("not_placed", "Not placed"),
                            ("do_not_call", "Do not call"),
                            ("outside_window", "Outside its hours for too long"),
                            ("cancelled", "Cancelled"),
                            ("attempts_exhausted", "Attempts exhausted"),
                            ("webhook_lost", "End never reported"),
                            ("dry_run", "Dry run"),
                        ],
                        default="",
                        max_length=24,
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Why it waits, or what ended it.",
                        max_length=32,
                    ),
                ),
                (
                    "wanted_at",
                    models.DateTimeField(
                        default=dispatch.core.clock.now, help_text="When it was first to be called."
                    ),
                ),
                (
                    "due_at",
                    models.DateTimeField(
                        default=dispatch.core.clock.now, help_text="When it is to be called next."
                    ),
                ),
                (
                    "attempts",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="Attempts that count against the maximum."
                    ),
                ),
                (
                    "token",
                    models.PositiveSmallIntegerField(
                        default=0,
                        help_text="The `attempt` of its newest Call; anything that refers to an older one changes nothing.",
                    ),
                ),
                (
                    "worker",
                    models.CharField(
                        blank=True, default="", help_text="The dialer that claimed it.", max_length=64
                    ),
                ),
                ("claimed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "last_outcome",
                    models.CharField(
                        blank=True, default="", help_text="Result of the last attempt.", max_length=24
                    ),
                ),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "campaign",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="leads",
                        to="leads.campaign",
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
            ],
            options={
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "backlog")), fields=["due_at", "id"], name="lead_to_call"
                    ),
                    models.Index(
                        condition=models.Q(("status", "processing")),
                        fields=["claimed_at"],
                        name="lead_being_called",
                    ),
                    models.Index(fields=["campaign", "status"], name="lead_of_campaign"),
                    models.Index(
                        condition=models.Q(
                            (
                                "reason__in",
                                (
                                    dispatch.leads.rules.states.Reason["STOPPED"],
                                    dispatch.leads.rules.states.Reason["ORGANIZATION_OFF"],
                                    dispatch.leads.rules.states.Reason["ORGANIZATION_PAUSED"],
                                    dispatch.leads.rules.states.Reason["CAMPAIGN_PAUSED"],
                                ),
                            ),
                            ("status", "backlog"),
                        ),
                        fields=["campaign", "reason", "id"],
                        name="lead_that_is_held",
                    ),
                    models.Index(fields=["organization", "phone"], name="lead_of_phone"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("external_id", ""), _negated=True),
                        fields=("campaign", "external_id"),
                        name="one_lead_per_external_id",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("finished_at__isnull", False),
                                ("status", "finished"),
                                models.Q(("outcome", ""), _negated=True),
                            ),
                            models.Q(
                                ("finished_at__isnull", True),
                                ("outcome", ""),
                                ("status__in", ["backlog", "processing"]),
                            ),
                            _connector="OR",
                        ),
                        name="finished_lead_has_an_outcome",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "processing"), _negated=True),
                            models.Q(("claimed_at__isnull", False), ("token__gte", 1)),
                            _connector="OR",
                        ),
                        name="lead_in_processing_is_claimed",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("lat__isnull", True), ("lng__isnull", True)),
                            models.Q(("lat__isnull", False), ("lng__isnull", False)),
                            _connector="OR",
                        ),
                        name="lead_position_is_whole",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LeadDispatch",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[("off", "Off"), ("dry_run", "Dry run"), ("live", "Live")],
                        default="off",
                        max_length=8,
                    ),
                ),
                ("is_paused", models.BooleanField(default=False)),
                (
                    "organization",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="lead_dispatch",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "lead dispatch",
            },
        ),
        migrations.CreateModel(
            name="RetryRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("no_answer", "no answer"),
                            ("busy", "busy"),
                            ("failed", "failed"),
                            ("voicemail", "voicemail"),
                            ("not_placed", "not placed"),
                            ("webhook_lost", "webhook lost"),
                        ],
                        max_length=24,
                    ),
                ),
                (
                    "attempts",
                    models.PositiveSmallIntegerField(
                        default=3,
                        help_text="0 or 1: not called again.",
                        validators=[django.core.validators.MaxValueValidator(50)],
                        verbose_name="most attempts",
                    ),
                ),
                (
                    "delay_s",
                    models.PositiveIntegerField(
                        default=3600, help_text="After the first such call.", verbose_name="delay (s)"
                    ),
                ),
                (
                    "factor",
                    models.FloatField(
                        default=2.0,
                        help_text="Each further delay is multiplied by this.",
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(10.0),
                        ],
                    ),
                ),
                ("longest_s", models.PositiveIntegerField(default=86400, verbose_name="longest delay (s)")),
                (
                    "jitter",
                    models.FloatField(
                        default=0.1,
                        help_text="Varies each delay by up to this share, in both directions.",
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(1.0),
                        ],
                    ),
                ),
                (
                    "campaign",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="retry_rules",
                        to="leads.campaign",
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
                "ordering": ["outcome"],
                "constraints": [
                    models.UniqueConstraint(fields=("campaign", "outcome"), name="one_retry_rule_per_outcome")
                ],
            },
        ),
        migrations.RunPython(write, migrations.RunPython.noop),
    ]
