from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("leads", "0005_canceled_label")]

    operations = [
        migrations.AddField(
            model_name="lead",
            name="refusals",
            field=models.IntegerField(
                db_default=0,
                default=0,
                editable=False,
                help_text="Consecutive calls that the provider refused.",
            ),
        ),
        migrations.AddField(
            model_name="lead",
            name="sent_back",
            field=models.IntegerField(
                db_default=0,
                default=0,
                editable=False,
                help_text="Consecutive calls that the provider never accepted.",
            ),
        ),
    ]
