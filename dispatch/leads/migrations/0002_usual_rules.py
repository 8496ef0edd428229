"""Hours in which the law of the United States and of some stricter states allows sales calls: a start for superusers
to check with counsel and to keep, not legal advice."""

from datetime import time

from django.db import migrations

EVERY_DAY, WEEK_AND_SATURDAY, SUNDAY = [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5], [6]
RULES = [
    ("", "United States", EVERY_DAY, time(8), time(21), "47 CFR 64.1200(c)(1)"),
    ("FL", "Florida", EVERY_DAY, time(8), time(20), "Fla. Stat. 501.616(6)"),
    ("OK", "Oklahoma", EVERY_DAY, time(8), time(20), "Okla. Stat. tit. 15, 775C.4"),
    ("WA", "Washington", EVERY_DAY, time(8), time(20), "RCW 80.36.390"),
    ("TX", "Texas", WEEK_AND_SATURDAY, time(9), time(21), "Tex. Bus. & Com. Code 301.051"),
    ("TX", "Texas", SUNDAY, time(12), time(21), "Tex. Bus. & Com. Code 301.051"),
]


def write(apps, schema_editor):
    rule = apps.get_model("leads", "CallingRule")
    for region, name, weekdays, window_from, window_until, source in RULES:
        rule.objects.create(
            country="US",
            region=region,
            name=name,
            weekdays=weekdays,
            window_from=window_from,
            window_until=window_until,
            source=source,
        )


class Migration(migrations.Migration):
    dependencies = [("leads", "0001_initial")]
    operations = [migrations.RunPython(write, migrations.RunPython.noop)]
