from django.db import migrations, models


class Migration(migrations.Migration):
    """Let a push close the notification of what is gone. The database does not change."""

    dependencies = [("notifications", "0011_push_of_endpoint")]

    operations = [
        migrations.AlterField(
            model_name="pushmessage",
            name="purpose",
            field=models.CharField(
                choices=[
                    ("alert", "Notification"),
                    ("close", "End of an alert"),
                    ("withdraw", "Withdrawal"),
                    ("offer", "Offer"),
                    ("job", "Job"),
                    ("job_news", "Change of a job"),
                    ("test", "Test"),
                ],
                max_length=8,
            ),
        ),
    ]
