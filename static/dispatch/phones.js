"use strict";
// Keep the page of simulated phones up to date (long polling) and submit its forms without leaving the page.
(() => {
  const body = document.body, problem = document.getElementById("problem"), ringing = document.getElementById("ringing");
  const aloud = document.getElementById("aloud"), find = document.getElementById("find");
  const cards = new Map([...document.querySelectorAll(".phone-card")].map((card) => [card.dataset.key, card]));
  let version = Number(body.dataset.version);
  const spoken = new Map(); // call → number of its sentences read aloud

  for (const part of document.querySelectorAll("[data-needs-script]")) part.hidden = part === ringing;

  function showProblem(text) {
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
    }), document.createTextNode(now.length > 6 ? ` and ${now.length - 6} more are ringing.` : now.length > 1 ? " are ringing." : " is ringing."));
    document.title = (now.length ? `(${now.length}) ` : "") + "Phones · Dispatch";
  }

  function readOut(heard, lives) {
    if (!heard) return;
    const from = spoken.get(heard.sid) ?? 0;
    spoken.set(heard.sid, heard.said.length);
    if (!aloud.checked || !window.speechSynthesis || !lives) return;
    for (const line of heard.said.slice(from)) {
      const words = new SpeechSynthesisUtterance(line);
      if (heard.language) words.lang = heard.language;
      speechSynthesis.speak(words);
    }
  }

  function show(key, news) {
    const card = cards.get(key);
    if (!card) return;
    const live = card.querySelector(".live"), focused = live.contains(document.activeElement) && document.activeElement;
    const name = focused && focused.dataset.focus;
    const lives = card.dataset.state !== "idle" || news.state !== "idle"; // a call that had already ended is not read aloud
    if (card.dataset.state === "in-progress" && news.heard?.cut && window.speechSynthesis) speechSynthesis.cancel();
    card.dataset.state = news.state;
    live.innerHTML = news.html; // rendered by our template, which escapes everything
    scrollToEnd(live);
    if (name) (live.querySelector(`[data-focus="${CSS.escape(name)}"]`) || live.querySelector("button"))?.focus({ preventScroll: true });
    readOut(news.heard, lives);
  }

  function scrollToEnd(within) {
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
        for (const [key, phone] of Object.entries(news.phones)) show(key, phone);
        if (Object.keys(news.phones).length) showRinging();
        if (problem.dataset.of === "news") { showProblem(""); problem.dataset.of = ""; }
      } catch (error) {
        problem.dataset.of = "news";
        showProblem("The phone simulator isn't responding. Retrying.");
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
    const result = await answer.json().catch(() => ({}));
    problem.dataset.of = "act";
    showProblem(result.problem || (answer.ok ? "" : "That didn't work. Reload the page."));
    if (answer.ok && form.classList.contains("compose")) form.reset();
  });

  find.addEventListener("input", () => {
    const words = find.value.trim().toLowerCase();
    for (const card of cards.values()) card.hidden = !card.dataset.name.toLowerCase().includes(words);
  });

  aloud.addEventListener("change", () => { if (!aloud.checked && window.speechSynthesis) speechSynthesis.cancel(); });

  scrollToEnd(document);
  showRinging();
  watch();
})();
