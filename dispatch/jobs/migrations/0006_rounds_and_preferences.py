import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0005_duplicate_indexes"),
    ]

    operations = [
        migrations.AddField(
            model_name="dispatchpolicy",
            name="radius_growth",
            field=models.PositiveSmallIntegerField(
                blank=True,
                help_text="Each round searches this much farther than the round before. 0: all rounds search the same radius.",
                null=True,
                validators=[django.core.validators.MaxValueValidator(400)],
                verbose_name="widen the radius per round (%)",
            ),
        ),
        migrations.AddField(
            model_name="dispatchpolicy",
            name="max_radius_m",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="The radius never widens beyond this.",
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(100),
                    django.core.validators.MaxValueValidator(500000),
                ],
                verbose_name="max radius (m)",
            ),
        ),
    ]
