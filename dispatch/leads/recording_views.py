"""Serve the files of recordings to the phone provider, at signed addresses that nobody can guess."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_safe

from dispatch.leads.models import RecordingFile
from dispatch.leads.rules import audio
from dispatch.leads.services import recordings

# A recording never changes. The provider may keep a copy for this long after it was deleted.
MAX_AGE_S = 3600


@require_safe
def recording_file(request: HttpRequest, recording_id: int, signature: str, extension: str) -> HttpResponse:
    """GET /telephony/recordings/<id>/<signature>.<wav|mp3>: the file. Any other address is a 404."""
    recording = recordings.find_by_signature(recording_id, signature)
    if recording is None or extension != audio.EXTENSIONS[recording.content_type]:
        raise Http404
    etag = f'"{recording.digest}"'
    headers = {"Cache-Control": f"public, max-age={MAX_AGE_S}", "ETag": etag}
    response = get_conditional_response(request, etag=etag)
    if response is None:
        if request.method == "HEAD":
            headers["Content-Length"] = str(recording.size_bytes)
            return HttpResponse(content_type=recording.content_type, headers=headers)
        file = RecordingFile.objects.filter(recording=recording).first()
        if file is None:  # deleted meanwhile
            raise Http404
        response = HttpResponse(bytes(file.content), content_type=recording.content_type)
    for name, value in headers.items():
        response[name] = value
    return response


urlpatterns = [
    path("<int:recording_id>/<slug:signature>.<slug:extension>", recording_file, name="recording_file"),
]
