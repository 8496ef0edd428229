"""Write spoken prompts as Twilio's documents, with the voice and, if it takes them, marks in SSML.

Prompts stay within Twilio's limits: long sentences are split, and a document is repeated less often.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

from dispatch.core.speech import NUMBER, STREET, Fragment, Sentence, fragments_of
from dispatch.core.voices import default_voice
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.providers.twilio_codes import speakable_text
from dispatch.telephony.speech import Speech

# A <Say> takes 4096 bytes (3000 with Polly voices), and 4500 characters URL-encoded. A document takes 64 kB.
MAX_SAY_BYTES, MAX_SAY_ENCODED, MAX_DOCUMENT_BYTES = 3000, 4500, 60_000
# Bytes of a Say's tags with its voice and marks, and of a Gather's tags with its URL.
_SAY_TAGS, _MARK_TAGS, _GATHER_TAGS = 80, 80, 1000
# A longer sentence is split, and then spoken without marks.
_MAX_MARKED = MAX_SAY_ENCODED // 13
_SENTENCE_ENDS = ".!?;:\u3002\uff01\uff1f"
# Stands for the URL of the answer in a document. No text contains it.
_ANSWER_URL = f"urn:answer:{secrets.token_hex(16)}"
_HOUSE_NUMBER = re.compile(r"\d[\w-]* +")


def render(prompt: VoicePrompt, answer_url: str) -> str:
    """Return the document of a prompt, whose answer is sent to `answer_url`.

    A campaign's script is often the same in all calls, and writing it takes longer than the rest of a response. So
    documents of plain texts are remembered without the URL.
    """
    is_plain = all(type(sentence) is str for sentence in prompt.say)  # marks are no part of a text's equality
    document = _remembered(prompt) if is_plain else _written(prompt)
    return document.replace(_ANSWER_URL, escape(answer_url, {'"': "&quot;"})) if prompt.keys else document


def _written(prompt: VoicePrompt) -> str:
    from twilio.twiml.voice_response import Gather, VoiceResponse

    sentences, times = fit(prompt.say, prompt.times)
    speech = prompt.speech
    document = VoiceResponse()
    if prompt.keys:
        gather = Gather(
            input="dtmf",
            num_digits=prompt.digits,
            finish_on_key="#" if prompt.digits > 1 else "",
            timeout=prompt.wait_s,
            action=_ANSWER_URL,
            method="POST",
            language=speech.voice.locale if speech else None,
        )
        for sentence in sentences:
            say(gather, sentence, speech)
        if prompt.play:
            gather.play(prompt.play)
        spoken = gather.to_xml(xml_declaration=False) * times  # written once: it costs most of the time
    else:
        for sentence in sentences:
            say(document, sentence, speech)
        if prompt.play:
            document.play(prompt.play)
        spoken = ""
    if prompt.hangs_up:
        document.hangup()
    return str(document.to_xml().replace("<Response>", f"<Response>{spoken}", 1))


_remembered = lru_cache(256)(_written)


def options(speech: Speech | None) -> dict[str, str]:
    """Return the attributes of a <Say>: its voice and language. Without speech, Twilio's defaults apply."""
    return {} if speech is None else {"voice": speech.voice.name, "language": speech.voice.locale}


def say(parent: Any, sentence: str, speech: Speech | None) -> None:
    """Append a <Say> to a document or Gather."""
    fragments = _speakable(sentence)
    if speech is None or not speech.voice.takes_markup or not any(fragment.kind for fragment in fragments):
        parent.say("".join(fragment.text for fragment in fragments), **options(speech))
        return
    verb = parent.say(**options(speech))
    plain = ""
    for fragment in fragments:
        before, kind, value, marked = _markup(fragment, speech)
        plain += before
        if marked:
            if plain:
                verb.nest(plain)
            getattr(verb, kind)(marked, **value)
            plain = ""
    if plain:
        verb.nest(plain)


def _markup(fragment: Fragment, speech: Speech) -> tuple[str, str, dict[str, str], str]:
    """Return (plain text, SSML element, its attributes, text inside) of a fragment. Without marks, the last is "".

    Only elements that Amazon documents for neural voices. A number is spoken slowly, to be written down. The name
    of a street is spoken in its language, its house number in the listener's.
    """
    text = fragment.text
    if fragment.kind == NUMBER:
        return "", "prosody", {"rate": "slow"}, text
    if fragment.kind == STREET and fragment.language == speech.language:
        return ("", "say_as", {"interpret_as": "address"}, text) if speech.language == "en" else (text, "", {}, "")
    if fragment.kind == STREET:
        house = _HOUSE_NUMBER.match(text)
        size = house.end() if house else 0
        return text[:size], "lang", {"xml_lang": default_voice(fragment.language).locale}, text[size:]
    return text, "", {}, ""


def _speakable(sentence: str) -> list[Fragment]:
    """Return the fragments without characters that XML forbids."""
    fragments = fragments_of(sentence)
    if len(fragments) == 1:
        return [fragments[0]._replace(text=speakable_text(fragments[0].text))]
    return [fragment._replace(text=speakable_text(f"x{fragment.text}x")[1:-1]) for fragment in fragments]


def split_sentence(text: str) -> list[str]:
    """Split a text into parts that a <Say> takes: after a sentence, else between words, else anywhere."""
    if isinstance(text, Sentence) and 0 < len(text) <= _MAX_MARKED:
        return [text]
    text = speakable_text(text)
    parts = []
    while text:
        size = _fitting(text)
        if size < len(text):
            size = _last_break(text[:size]) or size
        parts.append(text[:size].strip())
        text = text[size:].strip()
    return [part for part in parts if part]


def _fitting(text: str) -> int:
    """Return the number of leading characters within both limits."""
    if len(text) * 12 <= MAX_SAY_ENCODED:  # at most four bytes per character, and three characters per byte
        return len(text)
    size = encoded = 0
    for position, char in enumerate(text):
        size += len(char.encode())
        encoded += len(quote_plus(char))
        if size > MAX_SAY_BYTES or encoded > MAX_SAY_ENCODED:
            return position
    return len(text)


def _last_break(text: str) -> int:
    """Return the length of the text up to its last sentence end, else its last space, in its second half."""
    ends = [position + 1 for position, char in enumerate(text) if char in _SENTENCE_ENDS]
    spaces = [position for position, char in enumerate(text) if char.isspace()]
    for positions in (ends, spaces):
        if positions and positions[-1] > len(text) // 2:
            return positions[-1]
    return 0


def fit(sentences: Sequence[str], times: int) -> tuple[list[str], int]:
    """Return the split sentences and how often the document can repeat them.

    Sentences that exceed the limit even if spoken once are dropped from the end.
    """
    parts = [part for sentence in sentences for part in split_sentence(sentence)]
    sizes = [_size(part) for part in parts]
    while len(parts) > 1 and sum(sizes) + _GATHER_TAGS > MAX_DOCUMENT_BYTES:
        parts.pop()
        sizes.pop()
    return parts, max(1, min(times, MAX_DOCUMENT_BYTES // (sum(sizes) + _GATHER_TAGS)))


def _size(part: str) -> int:
    """Return the most bytes that a sentence takes in the document."""
    marks = sum(bool(fragment.kind) for fragment in fragments_of(part))
    return len(escape(part).encode()) + _SAY_TAGS + marks * _MARK_TAGS
