/* Push notifications in this browser: turn them on and off, test them, and say why they are not possible. Also starts the
   service worker in the installed app, which then has a page to show without a connection.

   A section with `data-push` (the address that takes and tells the state) has one part for each state: unsupported,
   denied, off, on. */
"use strict";
(() => {
  const WORKER = "/service-worker.js";
  const isPossible = "serviceWorker" in navigator && "PushManager" in window && "Notification" in window;

  if ("serviceWorker" in navigator && window.matchMedia("(display-mode: standalone)").matches) {
    navigator.serviceWorker.register(WORKER).catch(() => {});
  }

  /* Signing out ends push notifications here; the server removes the browser too. */
  document.addEventListener("submit", async (event) => {
    if (!event.target.matches("[data-sign-out]") || !("serviceWorker" in navigator)) return;
    remember(false);
    const worker = await navigator.serviceWorker.getRegistration(WORKER);
    worker?.active?.postMessage({ type: "signed-out" });
    (await worker?.pushManager?.getSubscription())?.unsubscribe();
  });

  /* The server's refusal, in words for people. */
  class Refusal extends Error {}

  const section = () => document.querySelector("[data-push]");
  let state = { key: "", browsers: [] };
  let current = null; // the browser's subscription, and its digest
  let digest = "";

  /* Pages show no desktop notifications of their own where push shows them. */
  function remember(isOn) {
    try {
      localStorage.setItem("dispatch.push", isOn ? "1" : "");
    } catch { /* private mode */ }
  }

  async function hash(text) {
    const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
    return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  function toBytes(key) {
    const text = atob(key.replaceAll("-", "+").replaceAll("_", "/"));
    return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  }

  function isUnder(subscription, key) {
    const given = subscription.options?.applicationServerKey;
    if (!given) return true;
    const bytes = new Uint8Array(given);
    return toBytes(key).every((byte, at) => byte === bytes[at]);
  }

  async function send(body) {
    const csrf = document.cookie.match(/(?:^|; )csrftoken=([^;]*)/)?.[1] || "";
    const answer = await fetch(section().dataset.push, {
      method: body ? "POST" : "GET",
      headers: { "Content-Type": "application/json", "X-CSRFToken": decodeURIComponent(csrf) },
      body: body ? JSON.stringify(body) : undefined,
      cache: "no-store",
    }).catch(() => { throw new Refusal(section().dataset.unreached); });
    const said = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Refusal(said.problem || section().dataset.unexplained);
    return said;
  }

  async function look() {
    state = await send();
    const worker = await navigator.serviceWorker.getRegistration(WORKER);
    current = (await worker?.pushManager.getSubscription()) || null;
    digest = current ? await hash(current.endpoint) : "";
    render();
    if (name() === "on") worker?.active?.postMessage({ type: "turned-on", subscription: current.toJSON() });
    else if (isPossible && Notification.permission === "granted") worker?.active?.postMessage({ type: "check" });
  }

  function name() {
    if (!isPossible) return "unsupported";
    if (Notification.permission === "denied") return "denied";
    const isOn = current && state.browsers.includes(digest) && isUnder(current, state.key);
    return isOn ? "on" : "off";
  }

  function render() {
    const box = section();
    if (!box) return;
    box.hidden = false;
    const shown = name();
    box.dataset.state = shown;
    for (const part of box.querySelectorAll("[data-when]")) part.hidden = part.dataset.when !== shown;
    if (shown === "on" || shown === "off") remember(shown === "on");
    for (const row of box.querySelectorAll("[data-browser]")) {
      const mark = row.querySelector("[data-here]");
      if (mark) mark.hidden = row.dataset.browser !== digest;
    }
  }

  function say(text, isProblem = false) {
    const line = section()?.querySelector("[data-said]");
    if (!line) return;
    line.textContent = text;
    line.classList.toggle("error", isProblem);
    line.hidden = !text;
  }

  /* Errors of the browser itself are in its words, and for developers: they are in its console. */
  function explain(error) {
    const isRefusal = error instanceof Refusal;
    if (!isRefusal) console.error(error);
    const { failed, unexplained } = section().dataset;
    say(`${failed} ${isRefusal ? error.message : unexplained}`, true);
  }

  async function turnOn() {
    if ((await Notification.requestPermission()) !== "granted") return render();
    const worker = await navigator.serviceWorker.register(WORKER);
    await navigator.serviceWorker.ready;
    const before = await worker.pushManager.getSubscription();
    // Someone else's, or one under another key.
    if (before && (!state.browsers.includes(await hash(before.endpoint)) || !isUnder(before, state.key))) {
      if (!section().hasAttribute("data-shared") || !isUnder(before, state.key)) await before.unsubscribe();
    }
    current = await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: toBytes(state.key) });
    digest = await hash(current.endpoint);
    state = await send({ do: "on", subscription: current.toJSON() });
    worker.active?.postMessage({ type: "turned-on", subscription: current.toJSON() });
    render();
    refresh();
  }

  async function turnOff() {
    const gone = digest;
    if (!section().hasAttribute("data-shared")) {
      (await navigator.serviceWorker.getRegistration(WORKER))?.active?.postMessage({ type: "turned-off" });
      await current?.unsubscribe();
    }
    current = null;
    digest = "";
    state = await send({ do: "off", browser: gone });
    render();
    refresh();
  }

  async function test() {
    await send({ do: "test", browser: digest });
    say(section().dataset.sent);
    refresh();
  }

  /* The console lists all browsers. */
  function refresh() {
    document.getElementById("push-browsers")?.dispatchEvent(new Event("changed"));
  }

  const ACTS = { on: turnOn, off: turnOff, test };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-push-do]");
    if (!button) return;
    button.disabled = true;
    say("");
    try {
      await ACTS[button.dataset.pushDo]();
    } catch (error) {
      explain(error);
    } finally {
      button.disabled = false;
    }
  });
  /* The service worker has replaced this browser's subscription. */
  navigator.serviceWorker?.addEventListener("message", (event) => {
    if (event.data?.type === "renewed" && section()) look().catch(() => {});
  });
  document.addEventListener("htmx:afterSwap", render);
  document.addEventListener("DOMContentLoaded", () => {
    if (!section()) return;
    if (isPossible) look().catch((error) => { render(); explain(error); });
    else render();
  });
})();
