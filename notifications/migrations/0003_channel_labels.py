from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("notifications", "0002_returning_alerts"),
    ]

    operations = [
        migrations.AlterField(
            model_name="delivery",
            name="channel",
            field=models.CharField(choices=[("email", "Email"), ("sms", "Text"), ("voice", "Call")], max_length=8),
        ),
        migrations.AlterField(
            model_name="escalationstep",
            name="sms",
            field=models.BooleanField(default=True, verbose_name="text"),
        ),
        migrations.AlterField(
            model_name="escalationstep",
            name="voice",
            field=models.BooleanField(default=True, verbose_name="call"),
        ),
        migrations.AlterField(
            model_name="preference",
            name="sms",
            field=models.BooleanField(default=False, verbose_name="text"),
        ),
        migrations.AlterField(
            model_name="preference",
            name="voice",
            field=models.BooleanField(default=False, help_text="Alerts only.", verbose_name="call"),
        ),
    ]
