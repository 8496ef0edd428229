from django.db import migrations, models


class Migration(migrations.Migration):
    """Keep when a browser last got a push notification, and why it last did not."""

    dependencies = [("notifications", "0009_push_in_turn_p")]

    operations = [
        migrations.AddField(
            model_name="pushsubscription",
            name="succeeded_at",
            field=models.DateTimeField(editable=False, null=True, verbose_name="last success"),
        ),
        migrations.AddField(
            model_name="pushsubscription",
            name="failed_at",
            field=models.DateTimeField(editable=False, null=True, verbose_name="last failure"),
        ),
        migrations.AddField(
            model_name="pushsubscription",
            name="failure",
            field=models.CharField(
                blank=True, db_default="", default="", editable=False, max_length=255,
                verbose_name="reason of the last failure",
            ),
        ),
    ]  # fmt: skip
