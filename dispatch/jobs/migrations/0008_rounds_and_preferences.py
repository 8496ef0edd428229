import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0007_customer_texts"),
        ("technicians", "0002_people"),
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
        migrations.AddField(
            model_name="dispatchpolicy",
            name="weight_skills",
            field=models.FloatField(
                blank=True, null=True, validators=[django.core.validators.MinValueValidator(0)]
            ),
        ),
        migrations.AddField(
            model_name="servicetype",
            name="preferred_skills",
            field=models.ManyToManyField(
                blank=True,
                help_text="Technicians who have these are called earlier.",
                related_name="+",
                to="technicians.skill",
            ),
        ),
        migrations.AddField(
            model_name="submission",
            name="preferred_technician",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="technicians.technician",
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="preferred_technician",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                help_text="The customer's choice: called first if eligible.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="technicians.technician",
            ),
        ),
        migrations.AlterField(
            model_name="candidate",
            name="rank",
            field=models.PositiveSmallIntegerField(
                help_text="1 gets the first offer; ineligible come last, except the customer's preferred technician."
            ),
        ),
    ]
