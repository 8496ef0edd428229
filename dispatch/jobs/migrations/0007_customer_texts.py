import django.db.models.deletion
import phonenumber_field.modelfields
from django.db import migrations, models

import dispatch.core.clock


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_membership_invitation_details"),
        ("jobs", "0006_running_late"),
        ("technicians", "0001_initial"),
        ("telephony", "0006_customer_texts"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="on_the_way_at",
            field=models.DateTimeField(
                help_text="When the technician was first reported to be on the way.", null=True
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="eta_at",
            field=models.DateTimeField(help_text="When the technician should arrive.", null=True),
        ),
        migrations.AlterField(
            model_name="techniciannotice",
            name="reached_by",
            field=models.CharField(blank=True, help_text="text, call or dispatcher.", max_length=16),
        ),
        migrations.CreateModel(
            name="CustomerTextPolicy",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("sends_received", models.BooleanField(default=False, verbose_name="request received")),
                ("sends_assigned", models.BooleanField(default=False, verbose_name="who is coming")),
                (
                    "sends_on_the_way",
                    models.BooleanField(default=False, verbose_name="on the way, with the arrival time"),
                ),
                ("sends_completed", models.BooleanField(default=False, verbose_name="work done")),
                ("sends_cancelled", models.BooleanField(default=False, verbose_name="request cancelled")),
                (
                    "sender_name",
                    models.CharField(
                        blank=True,
                        help_text="Begins every text. Leave empty to use the organization's name.",
                        max_length=40,
                    ),
                ),
                (
                    "contact_phone",
                    phonenumber_field.modelfields.PhoneNumberField(
                        blank=True,
                        default="",
                        help_text="The number that customers call, shown on their page and in the text about a cancellation.",
                        max_length=128,
                        region=None,
                    ),
                ),
                (
                    "organization",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="customer_text_policy",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "customer texts",
                "verbose_name_plural": "customer texts",
            },
        ),
        migrations.CreateModel(
            name="CustomerText",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("received", "the request was received"),
                            ("assigned", "a technician is coming"),
                            ("on_the_way", "the technician is on the way"),
                            ("completed", "the work is done"),
                            ("cancelled", "the request was cancelled"),
                        ],
                        max_length=16,
                    ),
                ),
                ("text_id", models.BigIntegerField(blank=True, null=True)),
                ("attempt", models.PositiveSmallIntegerField(default=1)),
                (
                    "reason",
                    models.CharField(blank=True, help_text="Why no text could be sent.", max_length=160),
                ),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now)),
                (
                    "failed_at",
                    models.DateTimeField(
                        blank=True, help_text="When it was reported as not delivered.", null=True
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="customer_texts",
                        to="jobs.job",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
                (
                    "technician",
                    models.ForeignKey(
                        blank=True,
                        help_text="Who is coming.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="technicians.technician",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("text_id__isnull", False)),
                        fields=["text_id"],
                        name="customer_text_of_text",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("kind", "assigned"), _negated=True),
                        fields=("job", "kind"),
                        name="one_customer_text_per_kind",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("kind", "assigned")),
                        fields=("job", "technician"),
                        name="one_customer_text_per_technician",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("kind", "assigned"), ("technician__isnull", False)),
                            models.Q(models.Q(("kind", "assigned"), _negated=True), ("technician__isnull", True)),
                            _connector="OR",
                        ),
                        name="customer_text_names_who_is_coming",
                    ),
                ],
            },
        ),
    ]
