"""Edit a recording within a form: listen to it, upload a file, enter an address, or remove it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import UploadedFile
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.widgets import INPUT_CLASSES

from accounts.admin.base import OwnedForm
from dispatch.core.api.problems import Conflict
from dispatch.leads.models import Recording
from dispatch.leads.rules import audio
from dispatch.leads.services import recordings

HELP = _("WAV or MP3, at most 5 MB, or the https address of such a file.")
_EITHER = _("Choose a file or enter an address, not both.")


@dataclass(frozen=True)
class RecordingInput:
    """What a person entered: a file, an address, or the wish to remove the current recording."""

    file: UploadedFile | None = None
    url: str = ""
    is_removed: bool = False

    def __bool__(self) -> bool:
        return bool(self.file or self.url or self.is_removed)


class RecordingWidget(forms.Widget):
    """A player of the current recording, a file, an address, and a check box to remove it."""

    template_name = "admin/leads/recording_widget.html"
    needs_multipart_form = True

    def value_from_datadict(self, data: Any, files: Any, name: str) -> RecordingInput:
        return RecordingInput(files.get(name), data.get(f"{name}-url", "").strip(), f"{name}-remove" in data)

    def value_omitted_from_data(self, data: Any, files: Any, name: str) -> bool:
        return not self.value_from_datadict(data, files, name)

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        current = value if isinstance(value, Recording) else None
        context = {
            "name": name,
            "id": (attrs or {}).get("id", f"id_{name}"),
            "recording": current,
            "path": recordings.path_of(current) if current is not None and not current.url else "",
            "entered_url": value.url if isinstance(value, RecordingInput) else "",
            "classes": " ".join(INPUT_CLASSES),
        }
        return render_to_string(self.template_name, context)


class RecordingField(forms.Field):
    """A field for a recording. Its initial value is the current Recording or None, its value a RecordingInput.

    WithRecordings turns that into the Recording that the row is to have.
    """

    widget = RecordingWidget

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, **options)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(data)

    def clean(self, value: RecordingInput) -> RecordingInput:
        if value.file and value.url:
            raise ValidationError(_EITHER)
        return value

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return what the form shows again: the current recording, as browsers do not send a file twice."""
        return initial if initial is not None else data


class WithRecordings(OwnedForm):
    """A form of a row with recordings. `recording_fields`: its RecordingFields, named after foreign keys."""

    recording_fields: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.recording_fields:
            self.initial[name] = getattr(self.instance, name)

    def clean(self) -> dict[str, Any]:
        """Give the row its new recordings, which are saved with it."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        owner = getattr(cleaned.get("organization"), "pk", None) or self.instance.organization_id
        for name in set(self.recording_fields) & set(cleaned):
            entered, cleaned[name] = cleaned[name], self.initial[name]
            if entered and owner is not None:
                try:
                    cleaned[name] = _make(entered, owner)
                except ValidationError as error:
                    self.add_error(name, error)
        return cleaned

    def save_recordings(self) -> None:
        """Save the new recordings of the row, before the row itself.

        Raises Conflict if others were added meanwhile and there are too many.
        """
        for name in self.recording_fields:
            recording = getattr(self.instance, name)
            if recording is not None and recording.pk is None:
                try:
                    setattr(self.instance, name, recordings.save_recording(recording))
                except ValidationError as error:
                    raise Conflict(error.messages[0]) from None

    def save(self, commit: bool = True) -> Any:
        if commit:
            self.save_recordings()
        return super().save(commit)


def _make(entered: RecordingInput, organization_id: int) -> Recording | None:
    """Return the recording that was entered, or None if it is to be removed. Raises ValidationError."""
    if entered.file:
        content = entered.file.read(audio.MAX_BYTES + 1)
        return recordings.from_file(organization_id, content, entered.file.name or "")
    return recordings.from_url(organization_id, entered.url) if entered.url else None
