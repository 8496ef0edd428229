"""Technicians and customers are called and texted in the language and voice that were chosen for them."""

from __future__ import annotations

import pytest

from accounts.models import Organization
from dispatch.core import languages
from dispatch.jobs import services
from dispatch.jobs.models import CustomerTextKind
from dispatch.jobs.rules import customer_phrases, menu, phrases
from dispatch.jobs.rules.customer_phrases import CustomerFacts
from dispatch.jobs.rules.menu import JobFacts
from dispatch.jobs.rules.on_the_way import read_on_the_way
from dispatch.jobs.rules.phrases import PromptContext
from dispatch.technicians.models import Technician
from dispatch.telephony import sms_rules
from dispatch.telephony.models import Call, OptOut, Text
from tests.harness.customer_texts import ALL, Shop, body
from tests.harness.jobs import MARIA, Floor
from tests.harness.menus import PIN, calls, entries, gives, types
from tests.jobs.test_answer_channels import reply, texted, texting  # noqa: F401
from tests.jobs.test_on_the_way import desk  # noqa: F401
from tests.jobs.test_technician_notices import assigned_to, deliver
from tests.jobs.test_threads import Desk
from tests.phones import PhoneCall, answer, manual
from tests.translations import marked_messages

LUPE, MIA, JOANNA = "Polly.Lupe-Neural", "Polly.Mia-Neural", "Polly.Joanna-Neural"
ENGLISH = {message for messages in marked_messages() for message in messages.split("\0")}
FACTS = PromptContext(
    service="Water heater repair",
    priority=1,
    address="200 W Washington St, Phoenix, AZ 85003",
    distance_m=5200,
    unit="mi",
    customer_name="Dana Whitfield",
    customer_phone="+16025550123",
)


def voices_of(call: PhoneCall) -> set[tuple[str, str]]:
    return {(words["voice"], words["language"]) for words in call.now["said"]}


def speaks_spanish(call: PhoneCall, voice: str = LUPE, locale: str = "es-US") -> None:
    """All that was said is in this voice, and no sentence is in English."""
    assert voices_of(call) == {(voice, locale)}
    assert not {words["text"] for words in call.now["said"]} & ENGLISH


def in_spanish(organization: Organization, voice: str = LUPE) -> None:
    Organization.objects.filter(pk=organization.pk).update(language="es", voice=voice)
    organization.refresh_from_db()


# --- calls


def test_spanish_technician_hears_and_accepts_an_offer_in_the_chosen_voice(floor: Floor) -> None:
    ana = floor.technician("Ana Ruiz", km=5, language="es", voice=MIA)
    floor.phone(ana).will(manual())
    job = floor.started(priority=1)
    call = floor.rings(ana).answer()
    call.hears("Tenemos un trabajo para usted.").hears("Emergencia. Water heater repair.")
    call.hears("200 W Washington St, Phoenix, Arizona, 8 5 0 0 3.").hears("A unas 3 millas de usted.")
    call.hears("Oprima 1 para aceptar").press("1").hears("El trabajo es suyo.")
    call.hears("Su número es 6 0 2, 5 5 5, 0 1 2 3.").hears("Adiós.").ended("completed")
    speaks_spanish(call, MIA, "es-MX")
    assert '200 <lang xml:lang="en-US">W Washington St</lang>, Phoenix' in " ".join(
        words["ssml"] for words in call.now["said"]
    )
    floor.until(lambda: floor.status(job) == "assigned")


def test_each_technician_of_an_organization_hears_their_own_language(floor: Floor) -> None:
    floor.organization.refresh_from_db()
    ann, ana = floor.technician("Ann", km=1), floor.technician("Ana", km=2, language="es")
    floor.phone(ann).will(manual())
    floor.phone(ana).will(manual())
    floor.started()
    first = floor.rings(ann).answer().hears("We have a job for you.")
    first.press("2").hears("You declined the job. Goodbye.").ended()
    assert voices_of(first) == {(JOANNA, "en-US")}
    second = floor.until(lambda: Call.objects.filter(to_phone=ana.phone).exists()) and floor.rings(ana).answer()
    second.hears("Tenemos un trabajo").press("2").hears("Usted rechazó el trabajo.").ended()
    speaks_spanish(second)


def test_technician_without_a_choice_hears_the_organizations(floor: Floor) -> None:
    in_spanish(floor.organization, "Polly.Pedro-Neural")
    ann = floor.technician("Ann")
    bob = floor.technician("Bob", km=2, language="en", voice="Google.en-US-Neural2-D")
    floor.phone(ann).will(answer(press="2"))
    floor.phone(bob).will(manual())
    floor.started()
    speaks_spanish(floor.rings(ann).hears("rechazó").ended(), "Polly.Pedro-Neural")
    call = floor.until(lambda: Call.objects.filter(to_phone=bob.phone).exists()) and floor.rings(bob).answer()
    call.hears("We have a job for you.").hears("Phoenix, Arizona").hang_up()
    assert voices_of(call) == {("Google.en-US-Neural2-D", "en-US")}
    assert not any(words["ssml"] for words in call.now["said"])


def test_menu_of_a_spanish_caller_is_spanish_on_every_page(texting: Floor) -> None:  # noqa: F811
    ana = texting.technician("Ana Ruiz", max_open_jobs=9, language="es")
    first, second = gives(texting, ana), gives(texting, ana)
    call = texting.phone(ana).calls_us(str(texting.number.phone))
    call.hears("Hola, Ana.").hears("Tiene 2 trabajos abiertos.").hears("Trabajo 1 de 2.")
    call.hears(
        "Oprima 1 si ya terminó, 2 si va retrasado, 3 si no puede ir, 4 si empieza ahora, 5 para el siguiente"
    )
    call.press("2").hears("¿Cuántos minutos va retrasado?")
    types(call, "20#").hears("va 20 minutos tarde").hears("Oprima 5 para el siguiente trabajo, o 9 para este")
    call.press("5").hears("Trabajo 2 de 2.").press("3").hears("No puede ir: Water heater repair.")
    call.press("2").hears("El trabajo sigue siendo suyo.").press("8").hears("esa tecla no es válida")
    call.press("1").hears("El trabajo quedó marcado como terminado.").hears(
        "Tiene 1 trabajo abierto más."
    ).hang_up()
    speaks_spanish(call)
    assert sorted(texting.status(job) for job in (first, second)) == ["assigned", "completed"]


def test_pin_is_asked_and_refused_in_spanish(floor: Floor) -> None:
    from dispatch.technicians import services as technicians

    ana = floor.technician("Ana Ruiz", language="es")
    gives(floor, ana)
    technicians.set_pin(ana.pk, PIN, actor=MARIA)
    call = calls(floor, ana, attestation="").hears("Marque su PIN").has_not_heard("Whitfield")
    call.press("1111").hears("El PIN es incorrecto.").press(PIN).hears("El nombre del cliente es Dana Whitfield.")


def test_news_is_spoken_in_the_technicians_language(floor: Floor) -> None:
    ana = floor.technician("Ana", language="es")
    job = assigned_to(floor, ana)
    services.cancel(job.pk, "The customer called", actor=MARIA)
    deliver(floor)
    call = floor.rings(ana).answer().hears("Le llama Copper State Plumbing.").hears("Su trabajo fue cancelado.")
    call.hears("No necesita ir.").press("1").hears("Gracias. Adiós.").ended()
    speaks_spanish(call)


def test_unknown_caller_hears_the_organizations_language(floor: Floor) -> None:
    in_spanish(floor.organization)
    floor.technician("Ann")
    call = calls(floor, Technician(phone="+16025550199"))
    call.hears("Hola. Le llama Copper State Plumbing.").hears("No hay nada pendiente para usted.")


# --- texts


def test_spanish_technician_is_texted_and_answers_si(texting: Floor) -> None:  # noqa: F811
    ana = texting.technician("Ana", km=5, language="es")
    texting.phone(ana).will(manual())
    job = texting.started()
    offer = texted(texting, ana, "a unas 3 millas de usted")
    assert "Responda 1 para aceptar, 2 para rechazar." in offer
    reply(texting, ana, "¡Sí!")
    texting.until(lambda: texting.status(job) == "assigned")
    assert texted(texting, ana, "Gracias.") == "Gracias. El trabajo es suyo."
    assert "Sus trabajos: " in texted(texting, ana, "el trabajo es suyo. Water heater repair")
    reply(texting, ana, "En camino 20")
    assert texted(texting, ana, "Llegada prevista").endswith(".m.")
    reply(texting, ana, "voy 10 min tarde")
    assert texted(texting, ana, "10 minutos tarde")
    assert texting.job(job).late_minutes == 10


@pytest.mark.django_db
def test_spanish_words_opt_out_and_in_again(desk: Desk) -> None:  # noqa: F811
    Technician.objects.filter(pk=desk.ann.pk).update(language="es")
    desk.texts("Alto.")
    assert OptOut.objects.filter(phone=str(desk.ann.phone)).exists()
    desk.texts("Sí")
    assert not OptOut.objects.filter(phone=str(desk.ann.phone)).exists()
    desk.texts("AYUDA")
    assert "responda 1 para aceptar una oferta" in desk.replies()[-1]


@pytest.mark.django_db
def test_customers_are_texted_in_the_organizations_language() -> None:
    shop = Shop(**ALL)
    in_spanish(shop.organization)
    Technician.objects.filter(pk=shop.ann.pk).update(language="en")
    job = shop.assign(shop.job())
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=20)
    shop.sent()
    assert "recibimos su solicitud: Water heater repair" in body(job, "received")
    assert body(job, "received").endswith("Responda STOP para no recibir mensajes.")
    assert "Ann va por su solicitud" in body(job, "assigned")
    assert "Ann va en camino. Llegada prevista: " in body(job, "on_the_way")
    shop.replies("¿Cuánto falta?")
    assert "Consulte, cambie o cancele su solicitud" in Text.objects.filter(purpose="reply").latest("pk").body
    shop.replies("AYUDA")
    assert Text.objects.filter(purpose="reply").latest("pk").body.endswith("STOP termina los mensajes.")
    job_text = Text.objects.filter(purpose="job", to_phone=str(shop.ann.phone)).latest("pk")
    assert "you have a new job" in job_text.body


def test_language_of_a_technician_stays_out_of_the_dispatchers_events(floor: Floor) -> None:
    ana = floor.technician("Ana", language="es")
    floor.phone(ana).will(answer(press="1"))
    job = floor.started()
    floor.rings(ana).hears("El trabajo es suyo").ended()
    floor.until(lambda: floor.status(job) == "assigned")
    said = " ".join(entries(job))
    assert "Ana accepted" in said
    assert "trabajo" not in said


# --- words


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Sí", "1"),
        ("si", "1"),
        ("SI.", "1"),
        ("acepto", "1"),
        ("no", "2"),
        ("Rechazo", "2"),
        ("yes", "1"),
        ("sin", ""),
    ],
)
def test_answers_count_without_accents(text: str, key: str) -> None:
    assert phrases.key_in(text) == key


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("Alto", "stop"),
        ("parar!", "stop"),
        ("baja", "stop"),
        ("cancelar", ""),
        ("ayuda", "help"),
        ("STOP", "stop"),
        ("Cancel 12", ""),
    ],
)
def test_spanish_keywords_stand_beside_the_english_ones(text: str, keyword: str) -> None:
    assert sms_rules.keyword(text, opted_out=False) == keyword
    assert sms_rules.keyword("sí", opted_out=True) == "start"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("en camino", None),
        ("En camino 20", 20),
        ("voy en camino, llego en 15 minutos", 15),
        ("Ya voy para allá, 1 hora", 60),
        ("llego en 25 min.", 25),
        ("EN CAMINO 20 MINS", 20),
    ],
)
def test_spanish_on_my_way_is_understood(text: str, minutes: int | None) -> None:
    said = read_on_the_way(text)
    assert said is not None
    assert said.minutes == minutes


@pytest.mark.parametrize("text", ["el camino está cerrado", "no voy", "llego tarde", "en", "en camino al taller"])
def test_other_spanish_texts_are_not_on_my_way(text: str) -> None:
    assert read_on_the_way(text) is None


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("tarde 20", 20),
        ("voy tarde 20 min", 20),
        ("Voy 15 minutos tarde", 15),
        ("retrasado 30", 30),
        ("con retraso de 10 minutos", 10),
        ("late 20", 20),
        ("buenas tardes 20", None),
        ("llego a las 3", None),
    ],
)
def test_spanish_delays_are_understood(text: str, minutes: int | None) -> None:
    assert phrases.late_minutes_in(text) == minutes


# --- every phrase


def every_phrase() -> list[str]:
    """Everything that the phrases of the slice can say, in the active language."""
    said: list[str] = []
    for unit in ("mi", "km"):
        for meters in (300, 1700, 9000):
            said += [phrases.spoken_distance(meters, unit), phrases.written_distance(meters, unit)]
    said += [*phrases.offer_prompt(FACTS, has_pin=True, has_menu=True), *phrases.accepted_prompt(FACTS)]
    for news in ("assigned", "reassigned", "cancelled", "changed", "reopened"):
        said += phrases.news_prompt("Copper", news, FACTS)
    for is_texted, has_pin in ((True, False), (False, True), (False, False)):
        said += phrases.accepted_without_details(phrases.YOU_HAVE_THE_JOB, is_texted=is_texted, has_pin=has_pin)
        said += menu.ask_identity((), has_pin=has_pin, is_locked=is_texted)
    for is_started in (True, False):
        said += menu.job_page(JobFacts(FACTS, 1, 2, is_started))
    said += [*menu.greeting("Ana Ruiz", 1), *menu.no_jobs("Ana"), *menu.ask_minutes(240, is_wrong=True)]
    said += menu.confirm_give_back("Water heater repair")
    for others, has_job in ((1, True), (1, False), (0, True)):
        said += menu.result_page("", others=others, has_job=has_job)
    return said


def test_no_spoken_phrase_stays_in_english() -> None:
    english = set(every_phrase())
    with languages.override(languages.SPANISH):
        spanish = every_phrase()
    data = {"Water heater repair.", "Dana Whitfield.", "200 W Washington St, Phoenix, Arizona, 8 5 0 0 3."}
    assert english & set(spanish) == data
    assert len(spanish) > 80


def test_texts_in_spanish_fit_into_gsm_characters() -> None:
    url = "https://d.example/t/" + "x" * 70 + "/"
    facts = CustomerFacts("Copper", "Plumbing", "Ann", "3:20 p.m.", "(602) 555-0100", url, True, "Bob")
    with languages.override(languages.SPANISH):
        said = [phrases.offer_text("Copper", FACTS, url), phrases.late_reply(1), phrases.late_reply(20)]
        said += [phrases.job_text("Copper", FACTS, url, is_manual=manual) for manual in (True, False)]
        said += [phrases.news_text("Copper", news, FACTS, url) for news in ("assigned", "reassigned", "cancelled")]
        said += [phrases.page_text("Copper", url), phrases.help_text("Copper", url), phrases.which_job(2, url)]
        said += [phrases.on_the_way_recorded(eta) for eta in ("", "3:20 p.m.")]
        said += [customer_phrases.customer_text(kind, facts) for kind in CustomerTextKind.values]
        said += [customer_phrases.help_text("Copper", url)]
        said += languages.translated((*phrases.TEXT_ANSWERS.values(), phrases.NOTHING_OFFERED, phrases.WRONG_ETA))
        said += languages.translated((phrases.ANSWER_WITH, phrases.PASSED_ON))
    for text in said:
        assert sms_rules.segments(text) == (1 if len(text) <= 160 else -(-len(text) // 153)), text


@pytest.mark.parametrize(
    ("hour", "english", "spanish"),
    [(0, "12:05 AM", "12:05 a.m."), (12, "12:05 PM", "12:05 p.m."), (15, "3:05 PM", "3:05 p.m.")],
)
def test_times_are_those_of_a_clock_on_the_wall(hour: int, english: str, spanish: str) -> None:
    from datetime import UTC, datetime

    at = datetime(2026, 12, 7, hour, 5, tzinfo=UTC)
    assert customer_phrases.told_time(at, "UTC") == english
    with languages.override(languages.SPANISH):
        assert customer_phrases.told_time(at, "UTC") == spanish
