"""What more than one engine switch would be called; nothing changes in the table."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("leads", "0004_held_leads")]

    operations = [
        migrations.AlterModelOptions(name="engineswitch", options={"verbose_name_plural": "engine switches"}),
    ]
