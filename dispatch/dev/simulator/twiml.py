"""Parse TwiML documents into verbs. Unknown verbs and attributes are errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlsplit
from xml.etree import ElementTree

from .webhooks import is_loopback

# verb: its attributes. Others, and other verbs, are rejected.
ATTRIBUTES: dict[str, set[str]] = {
    "Say": {"voice", "language", "loop"},
    "Play": {"loop", "digits"},
    "Pause": {"length"},
    "Gather": {
        "input",
        "action",
        "method",
        "timeout",
        "finishOnKey",
        "numDigits",
        "actionOnEmptyResult",
        "language",
        "speechTimeout",
        "hints",
        "bargeIn",
        "profanityFilter",
    },
    "Dial": {"action", "method", "timeout", "callerId", "answerOnBridge", "timeLimit"},
    "Number": {"url", "method", "statusCallback", "statusCallbackMethod", "statusCallbackEvent"},
    "Connect": {"action", "method"},
    "Stream": {"url", "name", "track", "statusCallback", "statusCallbackMethod"},
    "ConversationRelay": {
        "url",
        "welcomeGreeting",
        "welcomeGreetingInterruptible",
        "language",
        "ttsProvider",
        "voice",
        "transcriptionProvider",
        "interruptible",
        "dtmfDetection",
        "hints",
    },
    "Parameter": {"name", "value"},
    "Redirect": {"method"},
    "Hangup": set(),
    "Reject": {"reason"},
    "Message": {"to", "from", "action", "method", "statusCallback"},
    "Body": set(),
}
# Elements of SSML that a Say of a Polly voice may contain, with their attributes.
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
SSML: dict[str, set[str]] = {
    "break": {"strength", "time"},
    "lang": {XML_LANG},
    "p": set(),
    "phoneme": {"alphabet", "ph"},
    "prosody": {"volume", "rate"},
    "s": set(),
    "say-as": {"interpret-as", "format"},
    "sub": {"alias"},
    "w": {"role"},
}
SAID_AS = {"address", "cardinal", "date", "digits", "fraction", "number", "ordinal", "telephone", "time", "unit"}
VOICE_VERBS = {"Say", "Play", "Pause", "Gather", "Dial", "Connect", "Redirect", "Hangup", "Reject"}
MAX_NUMBERS = 10  # of one Dial
AGENT_NOUNS = {"Stream", "ConversationRelay"}
MAX_PARAMETER = 500  # characters of a Parameter's name and value
GATHER_VERBS = {"Say", "Play", "Pause"}
MESSAGE_VERBS = {"Message", "Redirect"}
METHODS = {"GET", "POST"}
EVENTS = {"initiated", "ringing", "answered", "completed"}
# Neural voices that the simulator knows, by Twilio's name, with their languages.
LOCALES = {
    **{f"Polly.{name}-Neural": "en-US" for name in ("Danielle", "Joanna", "Kendra", "Matthew", "Ruth", "Salli")},
    **{f"Polly.{name}-Neural": "en-GB" for name in ("Amy", "Arthur", "Brian", "Emma")},
    **{f"Polly.{name}-Neural": "es-US" for name in ("Lupe", "Pedro")},
    **{f"Polly.{name}-Neural": "es-MX" for name in ("Andres", "Mia")},
    **{f"Polly.{name}-Neural": "es-ES" for name in ("Lucia", "Sergio")},
    **{f"Google.en-US-Neural2-{letter}": "en-US" for letter in "ACDEFGHIJ"},
    **{f"Google.es-US-Neural2-{letter}": "es-US" for letter in "ABC"},
}
# Limits of a Say, in bytes and URL-encoded, and of a whole document.
MAX_SAY, MAX_ENCODED_SAY, MAX_DOCUMENT = 3000, 4500, 64_000


class TwimlError(Exception):
    """The document cannot be executed; `code` is the provider's error code."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass
class Verb:
    """Hold one verb. `text`: its words or URL. `inside`: what is nested in a Gather, Dial, Connect or Message.

    `ssml`: what a Say contains, if it has marks.
    """

    name: str
    text: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    inside: list[Verb] = field(default_factory=list)
    ssml: str = ""

    def number(self, name: str, default: int, low: int = 0, high: int = 100_000) -> int:
        """Return an attribute as a whole number. Raise TwimlError if it is not, or is out of bounds."""
        raw = self.attributes.get(name)
        if raw is None:
            return default
        try:
            value = int(raw)
        except ValueError:
            raise TwimlError(12200, f"{self.name} {name}={raw!r} is not a whole number") from None
        if not low <= value <= high:
            raise TwimlError(12200, f"{self.name} {name}={raw!r} is not within {low} and {high}")
        return value

    def method(self) -> str:
        return self.attributes.get("method", "POST")

    def flag(self, name: str) -> bool:
        return self.attributes.get(name, "false") == "true"


def parse(document: str | bytes, allowed: set[str] = VOICE_VERBS) -> list[Verb]:
    """Return the verbs of a document, validated.

    Raise TwimlError: 11750 too large, 12100 not XML, 12200 not valid TwiML, 13511 a language that the voice does
    not speak, 13512 an unknown voice, 13521 a Say that is too long.
    """
    raw = document if isinstance(document, bytes) else document.encode()
    if len(raw) > MAX_DOCUMENT:
        raise TwimlError(11750, f"the document has {len(raw)} bytes")
    if b"<!DOCTYPE" in raw.upper():
        raise TwimlError(12100, "document type declarations are not accepted")
    try:
        root = ElementTree.fromstring(document)  # noqa: S314 (no declarations, so no entities)
    except (ElementTree.ParseError, ValueError) as error:
        raise TwimlError(12100, f"document parse failure: {error}") from None
    if root.tag != "Response":
        raise TwimlError(12200, f"the root element is {root.tag!r}, not 'Response'")
    if root.attrib:
        raise TwimlError(12200, f"Response has no attributes; got {sorted(root.attrib)}")
    _no_stray_text(root)
    return [_verb(element, allowed, "Response") for element in root]


def _verb(element: ElementTree.Element, allowed: set[str], parent: str) -> Verb:
    name = element.tag
    if name not in allowed:
        raise TwimlError(12200, f"verb {name!r} is not known inside {parent}; known are {sorted(allowed)}")
    unknown = set(element.attrib) - ATTRIBUTES[name]
    if unknown:
        raise TwimlError(
            12200, f"{name} has no attributes {sorted(unknown)}; known are {sorted(ATTRIBUTES[name])}"
        )
    verb = Verb(name, "", dict(element.attrib))
    if verb.attributes.get("method", "POST") not in METHODS:
        raise TwimlError(12200, f"{name} method={verb.attributes['method']!r} is neither GET nor POST")
    if name == "Gather":
        _no_stray_text(element)
        verb.inside = [_verb(child, GATHER_VERBS, name) for child in element]
    elif name == "Dial" and len(element):
        _no_stray_text(element)
        verb.inside = [_verb(child, {"Number"}, name) for child in element]
    elif name == "Connect" or name in AGENT_NOUNS:
        _no_stray_text(element)
        verb.inside = [
            _verb(child, AGENT_NOUNS if name == "Connect" else {"Parameter"}, name) for child in element
        ]
    elif name == "Message" and len(element):
        _no_stray_text(element)
        verb.inside = [_verb(child, {"Body"}, name) for child in element]
        verb.text = " ".join(child.text for child in verb.inside)
    elif name == "Say" and len(element):
        for mark in list(element.iter())[1:]:
            _check_mark(mark, verb.attributes.get("voice", ""))
        verb.text = "".join(element.itertext()).strip()
        verb.ssml = _inner_xml(element)
    else:
        if len(element):
            raise TwimlError(12200, f"{name} cannot contain {element[0].tag!r} here")
        verb.text = (element.text or "").strip()
    _check(verb)
    return verb


def _check_mark(element: ElementTree.Element, voice: str) -> None:
    """Check an element of SSML. Only Polly's voices take them here; other voices differ in what they support."""
    if not voice.startswith("Polly."):
        raise TwimlError(12200, f"voice {voice!r} takes no SSML")
    known = SSML.get(element.tag)
    if known is None or set(element.attrib) - known:
        raise TwimlError(12200, f"SSML <{element.tag}> with {sorted(element.attrib)} is not known")
    if element.tag == "say-as" and element.attrib.get("interpret-as") not in SAID_AS:
        raise TwimlError(12200, f"say-as interpret-as={element.attrib.get('interpret-as')!r} is not known")


def _inner_xml(element: ElementTree.Element) -> str:
    """Return what an element contains, as XML."""
    whole = ElementTree.tostring(element, encoding="unicode")
    return whole.partition(">")[2].rpartition("<")[0].strip()


def _no_stray_text(element: ElementTree.Element) -> None:
    stray = [part for part in (element.text, *(child.tail for child in element)) if part and part.strip()]
    if stray:
        raise TwimlError(12200, f"text outside of a verb: {stray[0].strip()!r}")


def _check_voice(attributes: dict[str, str]) -> None:
    """Check that the voice exists and speaks the language."""
    voice, language = attributes.get("voice", ""), attributes.get("language", "")
    locale = LOCALES.get(voice)
    if "-Neural" in voice and locale is None:
        raise TwimlError(13512, f"Say voice={voice!r} is not known")
    if locale and language and locale != language:
        raise TwimlError(13511, f"Say voice={voice!r} does not speak language={language!r}")


def _check_socket_url(verb: Verb) -> None:
    """Check the URL of a WebSocket. The provider takes wss only; this machine may be called by ws, too."""
    parts = urlsplit(verb.attributes.get("url", ""))
    if parts.scheme not in {"ws", "wss"} or (parts.scheme == "ws" and not is_loopback(parts.hostname or "")):
        raise TwimlError(12200, f"{verb.name} url={verb.attributes.get('url')!r} is not a wss URL")
    if verb.name == "Stream" and parts.query:
        raise TwimlError(12200, "the URL of a Stream has no query: use Parameter")


def _check(verb: Verb) -> None:
    if verb.name in {"Say", "Redirect"} and not verb.text:
        raise TwimlError(12200, f"{verb.name} is empty")
    if verb.name == "Say":
        _check_voice(verb.attributes)
        size, encoded = len(verb.text.encode()), len(quote_plus(verb.text))
        if size > MAX_SAY or encoded > MAX_ENCODED_SAY:
            raise TwimlError(13521, f"Say has {size} bytes, {encoded} URL-encoded")
    if verb.name == "Play" and not verb.text and "digits" not in verb.attributes:
        raise TwimlError(12200, "Play needs a URL or digits")
    if verb.name in {"Hangup", "Pause"} and verb.text:
        raise TwimlError(12200, f"{verb.name} cannot contain text")
    if verb.name == "Reject" and verb.attributes.get("reason", "rejected") not in {"rejected", "busy"}:
        raise TwimlError(12200, f"Reject reason={verb.attributes['reason']!r} is neither rejected nor busy")
    if verb.name == "Dial":
        verb.number("timeout", 30, 5, 600)
        if not verb.text and not 1 <= len(verb.inside) <= MAX_NUMBERS:
            raise TwimlError(12200, f"Dial has {len(verb.inside)} numbers")
    if verb.name == "Connect" and len(verb.inside) != 1:
        raise TwimlError(12200, f"Connect has {len(verb.inside)} nouns")
    if verb.name in AGENT_NOUNS:
        _check_socket_url(verb)
    if (
        verb.name == "Parameter"
        and len("".join(verb.attributes.get(n, "") for n in ("name", "value"))) > MAX_PARAMETER
    ):
        raise TwimlError(12200, f"Parameter {verb.attributes.get('name')!r} is too long")
    if verb.name == "Number" and set(verb.attributes.get("statusCallbackEvent", "completed").split()) - EVENTS:
        raise TwimlError(12200, f"Number statusCallbackEvent={verb.attributes['statusCallbackEvent']!r}")
    for name, low, high in (("loop", 0, 1000), ("length", 0, 600), ("numDigits", 1, 64)):
        verb.number(name, low, low, high)
    if verb.name == "Gather":
        verb.number("timeout", 5, 0, 600)
        kinds = set(verb.attributes.get("input", "dtmf").split())
        if not kinds <= {"dtmf", "speech"}:
            raise TwimlError(12200, f"Gather input={verb.attributes['input']!r} is not of dtmf, speech")
        finish = verb.attributes.get("finishOnKey", "#")
        if len(finish) > 1 or (finish and finish not in "0123456789*#"):
            raise TwimlError(12200, f"Gather finishOnKey={finish!r} is not one key")
        if verb.attributes.get("actionOnEmptyResult", "false") not in {"true", "false"}:
            raise TwimlError(12200, "Gather actionOnEmptyResult is neither true nor false")
