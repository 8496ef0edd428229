"use strict";
// Keeps the page of simulated phones true: asks for what changed, and sends its forms without leaving the page.
(() => {
  const body = document.body, problem = document.getElementById("problem"), ringing = document.getElementById("ringing");
  const aloud = document.getElementById("aloud"), find = document.getElementById("find");
  const cards = new Map([...document.querySelectorAll(".phone-card")].map((card) => [card.dataset.key, card]));
  let version = Number(body.dataset.version);
  const spoken = new Map(); // call → how many of its sentences were read out

  for (const part of document.querySelectorAll("[data-needs-script]")) part.hidden = part === ringing;

  function tell(text) {
    problem.hidden = !text;
    problem.querySelector("p").textContent = text;
  }

  function showRinging() {
    const now = [...cards.values()].filter((card) => card.dataset.state === "ringing");
    ringing.hidden = !now.length;
    ringing.className = "notice";
    ringing.replaceChildren(...now.slice(0, 6).flatMap((card, at) => {
      const link = document.createElement("a");
      link.href = `#${card.id}`;
      link.textContent = card.querySelector("h3").textContent;
      return at ? [document.createTextNode(", "), link] : [link];
    }), document.createTextNode(now.length > 6 ? ` and ${now.length - 6} more ring.` : now.length > 1 ? " ring." : " rings."));
    document.title = (now.length ? `(${now.length}) ` : "") + "Phones · Dispatch";
  }

  function readOut(heard, lives) {
    if (!heard) return;
    const from = spoken.get(heard.sid) ?? 0;
    spoken.set(heard.sid, heard.said.length);
    if (!aloud.checked || !window.speechSynthesis || !lives) return;
    for (const line of heard.said.slice(from)) speechSynthesis.speak(new SpeechSynthesisUtterance(line));
  }

  function show(key, news) {
    const card = cards.get(key);
    if (!card) return;
    const live = card.querySelector(".live"), focused = live.contains(document.activeElement) && document.activeElement;
    const name = focused && focused.dataset.focus;
    const lives = card.dataset.state !== "idle" || news.state !== "idle"; // a call that was over before is not read out
    if (card.dataset.state === "in-progress" && news.heard?.cut && window.speechSynthesis) speechSynthesis.cancel();
    card.dataset.state = news.state;
    live.innerHTML = news.html; // our own template, in which everything is escaped
    settle(live);
    if (name) (live.querySelector(`[data-focus="${CSS.escape(name)}"]`) || live.querySelector("button"))?.focus({ preventScroll: true });
    readOut(news.heard, lives);
  }

  function settle(within) {
    for (const list of within.querySelectorAll(".captions, .texts")) list.scrollTop = list.scrollHeight;
  }

  async function watch() {
    for (;;) {
      try {
        const answer = await fetch(`${body.dataset.news}?after=${version}`, { headers: { Accept: "application/json" } });
        const news = await answer.json();
        if (!answer.ok) throw new Error(news.problem || answer.status);
        version = news.version;
        await new Promise(window.whenLetGo);
        for (const [key, one] of Object.entries(news.phones)) show(key, one);
        if (Object.keys(news.phones).length) showRinging();
        if (problem.dataset.of === "news") { tell(""); problem.dataset.of = ""; }
      } catch (error) {
        problem.dataset.of = "news";
        tell("The telephone simulator does not answer. It is asked again.");
        await new Promise((go) => setTimeout(go, 2000));
      }
    }
  }

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.closest(".phone-card")) return;
    event.preventDefault();
    const data = new FormData(form);
    if (event.submitter?.name) data.set(event.submitter.name, event.submitter.value);
    const line = form.closest(".phone-card").querySelector(".line");
    if (line && data.has("to")) data.set("to", line.value);
    const answer = await fetch(form.action, { method: "POST", body: data, headers: { Accept: "application/json" } });
    const told = await answer.json().catch(() => ({}));
    problem.dataset.of = "act";
    tell(told.problem || (answer.ok ? "" : "That did not work. Reload the page."));
    if (answer.ok && form.classList.contains("compose")) form.reset();
  });

  find.addEventListener("input", () => {
    const words = find.value.trim().toLowerCase();
    for (const card of cards.values()) card.hidden = !card.dataset.name.toLowerCase().includes(words);
  });

  aloud.addEventListener("change", () => { if (!aloud.checked && window.speechSynthesis) speechSynthesis.cancel(); });

  settle(document);
  showRinging();
  watch();
})();
