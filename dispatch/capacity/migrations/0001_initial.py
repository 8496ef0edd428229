import dispatch.capacity.providers
import dispatch.core.clock
import dispatch.core.crypto
import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
import phonenumber_field.modelfields
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="DispatchPool",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("code", models.SlugField(max_length=64)),
                ("name", models.CharField(max_length=80)),
                (
                    "kind",
                    models.CharField(
                        choices=[("calls", "Calls"), ("messages", "Messages")], default="calls", max_length=16
                    ),
                ),
                (
                    "concurrency",
                    models.PositiveIntegerField(
                        default=10,
                        help_text="Maximum number of calls or messages at the same time.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(10000),
                        ],
                    ),
                ),
                (
                    "rate_per_minute",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Empty means no limit.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                ("is_default", models.BooleanField(default=False, help_text="Used if a policy names no pool.")),
                ("is_paused", models.BooleanField(default=False)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "ordering": ["code"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "code"), name="one_pool_per_code"),
                    models.UniqueConstraint(
                        condition=models.Q(("is_default", True)),
                        fields=("organization", "kind"),
                        name="one_default_pool_per_kind",
                    ),
                    models.CheckConstraint(condition=models.Q(("concurrency__gte", 1)), name="pool_has_room"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ProviderAccount",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("name", models.CharField(max_length=80)),
                (
                    "provider",
                    models.CharField(choices=dispatch.capacity.providers.choices, default="twilio", max_length=32),
                ),
                ("account_sid", models.CharField(max_length=64, verbose_name="account id")),
                (
                    "auth_token",
                    dispatch.core.crypto.EncryptedTextField(help_text="Encrypted. Signs webhooks and requests."),
                ),
                (
                    "previous_auth_token",
                    dispatch.core.crypto.EncryptedTextField(
                        blank=True,
                        default="",
                        help_text="Webhooks still accept it during a key rotation.",
                    ),
                ),
                (
                    "calls_per_second",
                    models.FloatField(default=1.0, validators=[django.core.validators.MinValueValidator(0.01)]),
                ),
                ("is_active", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "name"), name="one_account_per_name")
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboundNumber",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("phone", phonenumber_field.modelfields.PhoneNumberField(max_length=128, region=None)),
                ("name", models.CharField(blank=True, max_length=80)),
                (
                    "max_channels",
                    models.PositiveIntegerField(
                        default=1,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(1000),
                        ],
                        verbose_name="lines",
                    ),
                ),
                ("reserved_for_alerts", models.PositiveIntegerField(default=0)),
                ("reserved_for_offers", models.PositiveIntegerField(default=0)),
                ("is_paused", models.BooleanField(default=False)),
                (
                    "sends_texts",
                    models.BooleanField(
                        default=False,
                        help_text="May send SMS. The provider must have enabled and registered the number for it.",
                    ),
                ),
                (
                    "texts_per_second",
                    models.FloatField(
                        default=1.0,
                        help_text="Texts per second that the provider allows for this number.",
                        validators=[django.core.validators.MinValueValidator(0.01)],
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
                        limit_choices_to={"kind": "calls"},
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="numbers",
                        to="capacity.dispatchpool",
                    ),
                ),
                (
                    "account",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="numbers",
                        to="capacity.provideraccount",
                    ),
                ),
            ],
            options={
                "ordering": ["phone"],
                "constraints": [
                    models.UniqueConstraint(fields=("account", "phone"), name="one_number_per_account"),
                    models.UniqueConstraint(
                        condition=models.Q(("is_paused", False)),
                        fields=("phone",),
                        name="one_owner_per_caller_number",
                        violation_error_message="This number is already in use under another account or organization. A caller number belongs to one organization. Pause it there first.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "max_channels__gte",
                                django.db.models.expressions.CombinedExpression(
                                    models.F("reserved_for_alerts"), "+", models.F("reserved_for_offers")
                                ),
                            )
                        ),
                        name="reserved_lines_exist",
                    ),
                ],
            },
        ),
    ]
