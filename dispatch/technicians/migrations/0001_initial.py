import accounts.models
import dispatch.core.clock
import dispatch.technicians.fields
import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import phonenumber_field.modelfields
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Skill",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("code", models.SlugField(max_length=64)),
                ("name", models.CharField(max_length=80)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "code"), name="one_skill_per_code")
                ],
            },
        ),
        migrations.CreateModel(
            name="Technician",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("name", models.CharField(max_length=120)),
                ("phone", phonenumber_field.modelfields.PhoneNumberField(max_length=128, region=None)),
                (
                    "lat",
                    models.FloatField(
                        validators=[
                            django.core.validators.MinValueValidator(-90),
                            django.core.validators.MaxValueValidator(90),
                        ],
                        verbose_name="latitude",
                    ),
                ),
                (
                    "lng",
                    models.FloatField(
                        validators=[
                            django.core.validators.MinValueValidator(-180),
                            django.core.validators.MaxValueValidator(180),
                        ],
                        verbose_name="longitude",
                    ),
                ),
                ("cell", models.BigIntegerField(editable=False)),
                ("position_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "time_zone",
                    models.CharField(
                        blank=True,
                        help_text="Leave empty to use the organization's time zone.",
                        max_length=64,
                        validators=[accounts.models.validate_time_zone],
                    ),
                ),
                (
                    "skill_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, editable=False, size=None
                    ),
                ),
                ("hours", dispatch.technicians.fields.WeekSpansField(editable=False, null=True)),
                (
                    "radius_m",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Maximum distance of jobs. Leave empty to use the policy's.",
                        null=True,
                        verbose_name="own radius (m)",
                    ),
                ),
                ("max_open_jobs", models.PositiveSmallIntegerField(default=1)),
                ("on_duty", models.BooleanField(default=True)),
                ("is_active", models.BooleanField(default=True)),
                ("open_jobs", models.PositiveSmallIntegerField(default=0, editable=False)),
                ("live_offer_id", models.BigIntegerField(editable=False, null=True)),
                ("last_offered_at", models.DateTimeField(editable=False, null=True)),
                (
                    "link_version",
                    models.PositiveIntegerField(
                        default=1,
                        editable=False,
                        help_text="Part of signed links to their page; a new version revokes old links.",
                    ),
                ),
                (
                    "misses_in_a_row",
                    models.PositiveSmallIntegerField(
                        default=0, editable=False, help_text="Calls missed since the last answered one."
                    ),
                ),
                (
                    "auto_paused_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="No offers since then, after too many missed calls in a row.",
                        null=True,
                    ),
                ),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                ("skills", models.ManyToManyField(blank=True, related_name="technicians", to="technicians.skill")),
            ],
            options={
                "ordering": ["name"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("is_active", True)),
                        fields=["organization", "cell"],
                        name="technician_near",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("is_active", True)),
                        fields=("organization", "phone"),
                        name="one_active_technician_per_phone",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Shift",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "weekday",
                    models.PositiveSmallIntegerField(
                        choices=[
                            (0, "Monday"),
                            (1, "Tuesday"),
                            (2, "Wednesday"),
                            (3, "Thursday"),
                            (4, "Friday"),
                            (5, "Saturday"),
                            (6, "Sunday"),
                        ]
                    ),
                ),
                ("starts", models.TimeField()),
                ("ends", models.TimeField()),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "technician",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="shifts",
                        to="technicians.technician",
                    ),
                ),
            ],
            options={
                "ordering": ["weekday", "starts"],
            },
        ),
    ]
