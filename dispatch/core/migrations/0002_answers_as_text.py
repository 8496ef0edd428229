"""Remembered answers keep the order of their members, which jsonb does not. What was remembered before stays as it is;
processes of the version before read and write the column as well."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("core", "0001_initial")]

    operations = [
        migrations.AlterField(
            model_name="rememberedanswer",
            name="body",
            field=models.TextField(help_text="JSON, its members in the order in which they were answered."),
        ),
    ]
