"""The labels of fields are words that people read, not the names of columns."""

from __future__ import annotations

import pytest
from django.utils.translation import override

from dispatch.jobs.models import Job, Submission
from dispatch.outbox.models import Endpoint
from dispatch.telephony.models import Call


@pytest.mark.parametrize(
    ("model", "field", "english", "spanish"),
    [
        (Call, "duration_s", "duration (s)", "duración (s)"),
        (Call, "sid", "SID", "SID"),
        (Endpoint, "expire_after_s", "expire after (s)", "vence después de (s)"),
        (Job, "lat", "latitude", "latitud"),
        (Submission, "api_key", "API key", "clave de API"),
    ],
)
def test_label_of_a_field_has_no_abbreviated_name(model, field, english, spanish):
    label = model._meta.get_field(field).verbose_name
    with override("en-us"):
        assert str(label) == english
    with override("es"):
        assert str(label) == spanish
