import accounts.models
import dispatch.core.clock
import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.text
import phonenumber_field.modelfields
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [
        migrations.CreateModel(
            name="Organization",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("name", models.CharField(max_length=120)),
                ("slug", models.SlugField(unique=True)),
                (
                    "time_zone",
                    models.CharField(
                        default="America/New_York", max_length=64, validators=[accounts.models.validate_time_zone]
                    ),
                ),
                (
                    "default_region",
                    models.CharField(
                        default="US", help_text="Default country for numbers without a country code.", max_length=2
                    ),
                ),
                (
                    "distance_unit",
                    models.CharField(choices=[("mi", "miles"), ("km", "kilometres")], default="mi", max_length=2),
                ),
                (
                    "allowed_countries",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=2),
                        default=accounts.models.default_countries,
                        help_text="Countries that may be called.",
                        size=None,
                    ),
                ),
                ("is_active", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="User",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("password", models.CharField(max_length=128, verbose_name="password")),
                ("last_login", models.DateTimeField(blank=True, null=True, verbose_name="last login")),
                (
                    "is_superuser",
                    models.BooleanField(
                        default=False,
                        help_text="Designates that this user has all permissions without explicitly assigning them.",
                        verbose_name="superuser status",
                    ),
                ),
                ("email", models.EmailField(max_length=254, unique=True)),
                ("name", models.CharField(max_length=120)),
                ("phone", phonenumber_field.modelfields.PhoneNumberField(blank=True, max_length=128, region=None)),
                ("is_active", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "email_confirmed_at",
                    models.DateTimeField(
                        editable=False, help_text="When they first opened a link sent to this address.", null=True
                    ),
                ),
                (
                    "groups",
                    models.ManyToManyField(
                        blank=True,
                        help_text="The groups this user belongs to. A user will get all permissions granted to each of their groups.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.group",
                        verbose_name="groups",
                    ),
                ),
                (
                    "user_permissions",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Specific permissions for this user.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.permission",
                        verbose_name="user permissions",
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.UniqueConstraint(
                        django.db.models.functions.text.Lower("email"), name="one_user_per_email"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[("dispatcher", "Dispatcher"), ("admin", "Admin")],
                        default="dispatcher",
                        max_length=16,
                    ),
                ),
                ("is_active", models.BooleanField(default=True)),
                (
                    "joined_at",
                    models.DateTimeField(
                        default=dispatch.core.clock.now,
                        editable=False,
                        help_text="Empty while the invitation has not been accepted.",
                        null=True,
                    ),
                ),
                ("on_duty", models.BooleanField(default=False)),
                ("duty_changed_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "alert_order",
                    models.PositiveSmallIntegerField(
                        default=100, help_text="Order in which people get phone alerts, lowest first."
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("user", "organization"), name="one_membership_per_organization"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("joined_at__isnull", False),
                            models.Q(("is_active", False), ("on_duty", False)),
                            _connector="OR",
                        ),
                        name="only_who_joined_is_active",
                        violation_error_message="This person hasn't accepted the invitation yet.",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("name", models.CharField(max_length=80)),
                ("prefix", models.CharField(editable=False, max_length=12, unique=True)),
                ("secret_hash", models.CharField(editable=False, max_length=64)),
                (
                    "scopes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[
                                ("submissions:write", "Submit forms"),
                                ("read", "Read everything"),
                                ("jobs:write", "Manage jobs"),
                                ("messages:write", "Send and manage messages"),
                                ("leads:write", "Add and manage leads"),
                                ("schedules:write", "Create and manage schedules"),
                                ("manage", "Manage technicians, policies, pools and numbers"),
                            ],
                            max_length=32,
                        ),
                        default=list,
                        size=None,
                    ),
                ),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("last_used_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        editable=False,
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
                "verbose_name": "API key",
                "ordering": ["-created_at"],
            },
        ),
        migrations.CreateModel(
            name="RetentionRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "what",
                    models.CharField(help_text="The kind of data.", max_length=40),
                ),
                ("days", models.PositiveIntegerField(help_text="Days. 0 keeps the data forever.")),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "ordering": ["what"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "what"), name="one_retention_rule_each")
                ],
            },
        ),
    ]
