from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_membership_invitation_details"),
    ]

    operations = [
        migrations.AlterField(
            model_name="organization",
            name="distance_unit",
            field=models.CharField(choices=[("mi", "miles"), ("km", "kilometers")], default="mi", max_length=2),
        ),
    ]
