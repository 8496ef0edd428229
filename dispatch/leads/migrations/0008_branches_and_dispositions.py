from typing import Any

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


def copy_keys(apps: Any, schema_editor: Any) -> None:
    """Give each key of a campaign a branch. The column stays, for processes of the previous version."""
    branch = apps.get_model("leads", "KeyBranch")
    campaigns = apps.get_model("leads", "Campaign").objects.exclude(keys={})
    branch.objects.bulk_create(
        [
            branch(organization_id=organization_id, campaign_id=pk, key=key, say=str(say)[:1000], action="say")
            for pk, organization_id, keys in campaigns.values_list("pk", "organization_id", "keys")
            for key, say in (keys.items() if isinstance(keys, dict) else ())
            if key in tuple("0123456789")
        ],
        batch_size=1000,
    )


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0007_limits"),
        ("leads", "0007_leads_in_the_long_run"),
    ]

    operations = [
        migrations.CreateModel(
            name="DispositionRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "disposition",
                    models.CharField(
                        max_length=40,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z][a-z0-9_]{0,39}$",
                                "Use lowercase letters, digits and underscores, such as wants_quote.",
                            )
                        ],
                        verbose_name="recorded outcome",
                    ),
                ),
                (
                    "then",
                    models.CharField(
                        choices=[("again", "Call again"), ("finish", "Don't call again")],
                        default="again",
                        max_length=8,
                    ),
                ),
                (
                    "delay_h",
                    models.PositiveSmallIntegerField(
                        default=24,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(2160),
                        ],
                        verbose_name="after (h)",
                    ),
                ),
            ],
            options={
                "ordering": ["disposition"],
            },
        ),
        migrations.CreateModel(
            name="KeyBranch",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "key",
                    models.CharField(
                        max_length=1,
                        validators=[django.core.validators.RegexValidator("^[0-9]$", "One key, 0 to 9.")],
                    ),
                ),
                (
                    "say",
                    models.CharField(
                        blank=True, help_text="Said first. May contain placeholders.", max_length=1000
                    ),
                ),
                (
                    "action",
                    models.CharField(
                        choices=[
                            ("say", "End the call"),
                            ("connect", "Connect to a person"),
                            ("later", "Call back later"),
                            ("text", "Send a text"),
                            ("opt_out", "Never call again"),
                        ],
                        default="say",
                        max_length=16,
                        verbose_name="then",
                    ),
                ),
                (
                    "disposition",
                    models.CharField(
                        blank=True,
                        help_text="In your words, such as wants_quote.",
                        max_length=40,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z][a-z0-9_]{0,39}$",
                                "Use lowercase letters, digits and underscores, such as wants_quote.",
                            )
                        ],
                        verbose_name="outcome to record",
                    ),
                ),
                (
                    "phones",
                    models.CharField(
                        blank=True,
                        help_text="Phone numbers, separated by commas. All ring; the first who accepts talks to the lead.",
                        max_length=400,
                        verbose_name="people to connect to",
                    ),
                ),
                (
                    "introduction",
                    models.CharField(
                        blank=True,
                        help_text="Only the person hears it, before accepting. May contain placeholders.",
                        max_length=500,
                    ),
                ),
                (
                    "ring_s",
                    models.PositiveSmallIntegerField(
                        default=20,
                        validators=[
                            django.core.validators.MinValueValidator(5),
                            django.core.validators.MaxValueValidator(120),
                        ],
                        verbose_name="ring time (s)",
                    ),
                ),
                (
                    "otherwise",
                    models.CharField(blank=True, max_length=1000, verbose_name="said if nobody accepts"),
                ),
                (
                    "call_back_h",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(720),
                        ],
                        verbose_name="call back after (h)",
                    ),
                ),
                (
                    "text",
                    models.CharField(
                        blank=True,
                        help_text="May contain placeholders.",
                        max_length=480,
                        verbose_name="text to send",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "key branches",
                "ordering": ["key"],
            },
        ),
        migrations.AddField(
            model_name="campaign",
            name="variables",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Names of your leads' data that the script uses, separated by commas. name, appointment and other usual names are known.",
                max_length=400,
            ),
        ),
        migrations.AddField(
            model_name="campaign",
            name="voicemail",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                help_text="Left after the beep if a machine answers. Needs answering-machine detection.",
                verbose_name="message for voicemail",
            ),
        ),
        migrations.AddField(
            model_name="lead",
            name="call_back_at",
            field=models.DateTimeField(
                blank=True, help_text="When the person asked to be called again, during the call.", null=True
            ),
        ),
        migrations.AddField(
            model_name="lead",
            name="cancel_requested_at",
            field=models.DateTimeField(
                blank=True, editable=False, help_text="When it was canceled during its call.", null=True
            ),
        ),
        migrations.AddField(
            model_name="lead",
            name="contact_from",
            field=models.TimeField(
                blank=True,
                help_text="The person may be called from this local time, within all other hours.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="lead",
            name="contact_until",
            field=models.TimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="lead",
            name="disposition",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The outcome in the organization's words.",
                max_length=40,
            ),
        ),
        migrations.AddField(
            model_name="lead",
            name="notes",
            field=models.TextField(blank=True, db_default="", default=""),
        ),
        migrations.AddField(
            model_name="dispositionrule",
            name="campaign",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="disposition_rules",
                to="leads.campaign",
            ),
        ),
        migrations.AddField(
            model_name="dispositionrule",
            name="organization",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
            ),
        ),
        migrations.AddField(
            model_name="keybranch",
            name="campaign",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="branches",
                to="leads.campaign",
            ),
        ),
        migrations.AddField(
            model_name="keybranch",
            name="organization",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
            ),
        ),
        migrations.AddConstraint(
            model_name="dispositionrule",
            constraint=models.UniqueConstraint(
                fields=("campaign", "disposition"), name="one_rule_per_disposition"
            ),
        ),
        migrations.AddConstraint(
            model_name="keybranch",
            constraint=models.UniqueConstraint(fields=("campaign", "key"), name="one_branch_per_key"),
        ),
        migrations.RunPython(copy_keys, migrations.RunPython.noop),
    ]
