from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns that processes of the previous version may leave out."""

    dependencies = [("leads", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="campaign",
            name="allows_duplicates",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Off: a lead is left out while the campaign has an open lead to the same phone.",
                verbose_name="call a phone more than once at a time",
            ),
        ),
        migrations.AddField(
            model_name="lead",
            name="is_only_of_phone",
            field=models.BooleanField(
                editable=False,
                help_text="Whether the campaign has no other open lead to this phone.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="lead",
            name="simulated_at",
            field=models.DateTimeField(blank=True, help_text="When a dry run would have called it.", null=True),
        ),
        migrations.AddField(
            model_name="lead",
            name="simulated_outcome",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="What a dry run would have done: called, or the outcome with which it would have ended.",
                max_length=24,
            ),
        ),
    ]
