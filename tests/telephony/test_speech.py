"""The voice of a call: which one is chosen, and how the provider's document speaks with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from accounts.models import Organization
from dispatch.capacity.models import ProviderAccount
from dispatch.core import languages
from dispatch.core.speech import NUMBER, STREET, Fragment, Sentence, fill
from dispatch.core.voices import VOICES, Voice, voice_problem
from dispatch.dev.simulator.twiml import LOCALES, TwimlError, Verb, parse
from dispatch.leads.models import Campaign
from dispatch.technicians.models import Technician
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.providers import twilio
from dispatch.telephony.speech import Speech, speaking, speech_for

SPEAKER = twilio.make(ProviderAccount(account_sid="AC1", auth_token="token"))
BY_NAME = {voice.name: voice for voice in VOICES}
PLACE = Sentence.of((Fragment("200 W Washington St", STREET, "en"), Fragment(", Phoenix")))
PHONE = fill("Their number is {number}.", number=Sentence.of((Fragment("6 0 2, 5 5 5", NUMBER),)))


def said_by(voice: Voice, *say: str, keys: str = "") -> list[Verb]:
    """What the provider understands."""
    prompt = VoicePrompt(say=say, keys=keys, times=1, speech=Speech(voice.language, voice))
    return parse(SPEAKER.render(prompt, "http://127.0.0.1/x")[0])


# --- the choice


@pytest.mark.parametrize(
    ("organization", "own", "language", "voice"),
    [
        ({}, None, "en", "Polly.Joanna-Neural"),
        ({"voice": "Polly.Matthew-Neural"}, {}, "en", "Polly.Matthew-Neural"),
        ({}, {"language": "es"}, "es", "Polly.Lupe-Neural"),
        ({}, {"language": "es", "voice": "Polly.Mia-Neural"}, "es", "Polly.Mia-Neural"),
        ({"language": "es", "voice": "Polly.Pedro-Neural"}, {}, "es", "Polly.Pedro-Neural"),
        ({"language": "es", "voice": "Polly.Pedro-Neural"}, {"language": "en"}, "en", "Polly.Joanna-Neural"),
        (
            {"language": "es", "voice": "Polly.Pedro-Neural"},
            {"voice": "Polly.Amy-Neural"},
            "es",
            "Polly.Pedro-Neural",
        ),
        ({"voice": "Retired"}, {"voice": "Retired, too"}, "en", "Polly.Joanna-Neural"),
    ],
)
def test_most_specific_voice_that_speaks_the_language_counts(
    organization: dict[str, Any], own: dict[str, Any] | None, language: str, voice: str
) -> None:
    technician = None if own is None else Technician(**own)
    speech = speech_for(Organization(**organization), technician)
    assert (speech.language, speech.voice.name) == (language, voice)
    campaign = None if own is None else Campaign(**own)
    assert speech_for(Organization(**organization), campaign) == speech


def test_a_voice_of_another_language_is_a_problem() -> None:
    assert "doesn't speak Spanish" in voice_problem("Polly.Joanna-Neural", "es")
    assert "Lupe" in voice_problem("Polly.Joanna-Neural", "es")
    assert voice_problem("Polly.Lupe-Neural", "es") == ""
    assert voice_problem("", "es") == ""


def test_prompts_take_the_surrounding_speech_and_it_ends_after_errors() -> None:
    speech = speech_for(Organization(language="es"))
    with pytest.raises(ZeroDivisionError), speaking(speech):
        assert VoicePrompt(("Hola.",)).speech == speech
        assert languages.gettext("Goodbye.") == "Adiós."
        raise ZeroDivisionError
    assert VoicePrompt(("Hello.",)).speech is None
    assert languages.gettext("Goodbye.") == "Goodbye."


def test_speech_of_one_task_does_not_reach_another() -> None:
    async def speak(language: str, words: str) -> None:
        for _ in range(20):
            with speaking(speech_for(Organization(language=language))):
                prompt = VoicePrompt((languages.gettext("Goodbye."),))
            await asyncio.sleep(0)
            assert prompt.say == (words,)
            assert prompt.speech is not None
            assert prompt.speech.language == language
            assert VoicePrompt(("x",)).speech is None

    async def both() -> None:
        await asyncio.gather(speak("en", "Goodbye."), speak("es", "Adiós."))

    asyncio.run(both())


# --- the document


@pytest.mark.parametrize("voice", VOICES, ids=lambda voice: voice.name)
def test_every_voice_is_known_to_the_provider_and_speaks_its_language(voice: Voice) -> None:
    (gather, hangup) = said_by(voice, "Hello.", PLACE, PHONE, keys="1")
    assert hangup.name == "Hangup"
    assert gather.attributes["language"] == voice.locale == LOCALES[voice.name]
    for verb in gather.inside:
        assert (verb.attributes["voice"], verb.attributes["language"]) == (voice.name, voice.locale)
    assert [verb.text for verb in gather.inside] == ["Hello.", str(PLACE), str(PHONE)]


def test_english_voice_reads_street_as_address_and_number_slowly() -> None:
    plain, place, phone, _ = said_by(BY_NAME["Polly.Joanna-Neural"], "Hello.", PLACE, PHONE)
    assert plain.ssml == ""
    assert place.ssml == '<say-as interpret-as="address">200 W Washington St</say-as>, Phoenix'
    assert phone.ssml == 'Their number is <prosody rate="slow">6 0 2, 5 5 5</prosody>.'


def test_spanish_voice_reads_an_english_street_in_english() -> None:
    (place, _) = said_by(BY_NAME["Polly.Lupe-Neural"], PLACE)
    assert place.ssml == '200 <lang xml:lang="en-US">W Washington St</lang>, Phoenix'
    spanish = Sentence.of((Fragment("63 Calle Fortaleza", STREET, "es"), Fragment(", San Juan")))
    (place, _) = said_by(BY_NAME["Polly.Lupe-Neural"], spanish)
    assert (place.text, place.ssml) == ("63 Calle Fortaleza, San Juan", "")


def test_voices_without_markup_get_plain_text() -> None:
    assert not any(verb.ssml for verb in said_by(BY_NAME["Google.en-US-Neural2-F"], PLACE, PHONE))


@pytest.mark.parametrize("extra", ["&<>\x00\x0b", "\ud83d\ude00" * 100, "x" * 5000, "&" * 1200])
def test_marked_sentences_of_any_content_stay_valid(extra: str) -> None:
    text = extra.encode("utf-16", "surrogatepass").decode("utf-16")
    sentence = Sentence.of((Fragment(f"1 {text}", STREET, "en"), Fragment(text), Fragment("6 0 2", NUMBER)))
    for voice in VOICES:
        verbs = said_by(voice, sentence)
        assert "".join(verb.text for verb in verbs).endswith("6 0 2")


def test_same_words_with_and_without_marks_are_two_documents() -> None:
    voice = BY_NAME["Polly.Joanna-Neural"]
    for say in ((PLACE, PHONE), (str(PLACE), str(PHONE)), (PLACE, PHONE)):
        assert any(verb.ssml for verb in said_by(voice, *say)) == (
            say == (PLACE, PHONE) and type(say[0]) is Sentence
        )


def test_same_prompt_is_answered_at_the_url_of_its_call() -> None:
    for url in ("http://127.0.0.1/1?step=1&keys=1", 'http://127.0.0.1/2?a="b"&c=<d>'):
        (gather, *_) = parse(SPEAKER.render(VoicePrompt(("Hello.",), keys="1", times=1), url)[0])
        assert gather.attributes["action"] == url


def test_prompt_without_speech_leaves_the_voice_to_the_provider() -> None:
    body, _ = SPEAKER.render(VoicePrompt((PHONE,), keys="1"), "http://127.0.0.1/x")
    assert b"voice=" not in body
    assert b"language=" not in body


@pytest.mark.parametrize(
    ("say", "code"),
    [
        ('<Say voice="Polly.Nobody-Neural">Hi</Say>', 13512),
        ('<Say voice="Polly.Lupe-Neural" language="en-US">Hi</Say>', 13511),
        ('<Say voice="Google.en-US-Neural2-F"><break/>Hi</Say>', 12200),
        ("<Say><break/>Hi</Say>", 12200),
        ('<Say voice="Polly.Lupe-Neural"><emphasis>Hi</emphasis></Say>', 12200),
        ('<Say voice="Polly.Lupe-Neural"><say-as interpret-as="characters">Hi</say-as></Say>', 12200),
        ('<Say voice="Polly.Lupe-Neural"><break/></Say>', 12200),
    ],
)
def test_simulator_refuses_what_a_voice_cannot_speak(say: str, code: int) -> None:
    with pytest.raises(TwimlError) as refused:
        parse(f"<Response>{say}</Response>")
    assert refused.value.code == code
