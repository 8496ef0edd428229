from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0011_report_subscriptions")]

    operations = [
        migrations.AlterField(
            model_name="user",
            name="language",
            field=models.CharField(
                blank=True,
                choices=[("en", "English"), ("es", "Spanish")],
                db_default="",
                default="",
                help_text="Of their pages and alerts. Empty: the browser's; for alerts, the organization's.",
                max_length=2,
            ),
        )
    ]
