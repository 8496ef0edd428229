from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telephony", "0005_people"),
    ]

    operations = [
        migrations.AlterField(
            model_name="text",
            name="purpose",
            field=models.CharField(
                blank=True,
                choices=[
                    ("", "—"),
                    ("alert", "Alert"),
                    ("offer", "Offer"),
                    ("job", "Job details"),
                    ("job_news", "Change of a job"),
                    ("link", "Link to their page"),
                    ("thread", "Conversation about a job"),
                    ("customer", "Text to the customer"),
                    ("reply", "Reply"),
                    ("test", "Test"),
                ],
                help_text="Of an inbound text: the purpose that handled it.",
                max_length=16,
            ),
        ),
    ]
