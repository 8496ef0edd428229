from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0005_user_tour_dismissed_at"),
    ]

    operations = [
        migrations.AddField(
            model_name="organization",
            name="requires_second_factor",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Members without a second factor can only set one up and sign out. API keys are not affected.",
            ),
        ),
        migrations.AddField(
            model_name="user",
            name="second_factor_at",
            field=models.DateTimeField(
                editable=False,
                help_text="When they set up their first second factor. Empty: they have none.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="user",
            name="sessions_ended_at",
            field=models.DateTimeField(
                editable=False, help_text="When all their sessions were ended last.", null=True
            ),
        ),
    ]
