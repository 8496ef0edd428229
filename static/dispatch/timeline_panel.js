/* The timeline's panel: it shows the job that was opened last, and keeps it current. */
(() => {
  "use strict";

  const D = window.Dispatch;
  const EVERY_MS = 60000;
  let page = null;
  let latest = null; // the latest request for the panel, as { xhr, verb }; null once it was closed
  let isOutdated = false; // a job has changed during that request

  function slot() { return document.getElementById("drawer-slot"); }
  function openJob() { return document.getElementById("drawer")?.dataset.job || ""; }
  function isLoading() { return Boolean(latest) && latest.xhr.readyState < XMLHttpRequest.DONE; }

  function address(changed) {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changed)) value ? query.set(name, value) : query.delete(name);
    const text = query.toString();
    return page.dataset.chart + (text ? "?" + text : "");
  }

  function markOpen() {
    page.classList.toggle("with-drawer", slot().childElementCount > 0);
    for (const link of page.querySelectorAll("a[data-open]")) {
      if (openJob() && link.dataset.open === openJob()) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  /* --- opening and closing ------------------------------------------------------------------------------------------ */
  async function open(id, { act = "", query = "" } = {}) {
    giveUp(); // htmx would queue this request until the other one has ended
    const path = page.dataset.job.replace("/0/", `/${id}/`) + (act ? `act/${act}/` : "") + query;
    try {
      await window.htmx.ajax("GET", path, { target: "#drawer-slot", swap: "innerHTML" });
    } catch {
      return; // not reachable, or something else was opened meanwhile
    }
    if (openJob() === String(id)) history.replaceState(null, "", address({ job: id }));
  }

  function close() {
    const id = openJob();
    latest = null;
    slot().replaceChildren();
    history.replaceState(null, "", address({ job: "" }));
    markOpen();
    (page.querySelector(`a[data-open="${id}"]`) || document.getElementById("main")).focus({ preventScroll: true });
  }

  /* Leave the form, or close the panel. */
  function goBack() {
    const back = document.getElementById("ask-back");
    if (back) back.click();
    else if (document.getElementById("drawer")) close();
  }

  function settled() {
    markOpen();
    for (const one of document.querySelectorAll(".no-script")) one.hidden = true;
    const first = slot().querySelector("#refused") || slot().querySelector("#ask [data-do]") || slot().querySelector("#drawer-title");
    first?.focus({ preventScroll: true });
  }

  /* --- the request made last is the one shown ----------------------------------------------------------------------- */
  /* A page that has not arrived is given up. A form that was sent is awaited. */
  function giveUp() {
    if (!isLoading() || latest.verb !== "get") return;
    const { xhr } = latest;
    latest = null;
    xhr.abort();
  }

  function asked(event) {
    const { target, xhr, requestConfig } = event.detail;
    if (target.id !== "drawer-slot") return;
    giveUp();
    latest = { xhr, verb: requestConfig.verb };
    isOutdated = false;
    xhr.addEventListener("loadend", () => { if (xhr === latest?.xhr && isOutdated) refresh(); });
  }

  /* The response to a form that was sent before something else was opened, or before the panel was closed, is not shown.
     A refusal is reported. */
  function skipOutdated(event) {
    const { target, xhr, serverResponse } = event.detail;
    if (target.id !== "drawer-slot" || xhr === latest?.xhr) return;
    event.detail.shouldSwap = false;
    const answer = new DOMParser().parseFromString(serverResponse, "text/html");
    const refused = answer.getElementById("refused");
    if (!refused) return;
    const text = [...refused.querySelectorAll("p, li")].map((line) => line.textContent.trim()).join(" ");
    D.note(`#${answer.getElementById("drawer").dataset.job}: ${text}`, "attention");
  }

  /* --- keeping current ---------------------------------------------------------------------------------------------- */
  /* Updates during a request for the panel are fetched after it, because its response may be older. */
  function refresh() {
    if (isLoading()) {
      isOutdated = true;
      return;
    }
    const isWriting = document.getElementById("thread-body");
    for (const part of document.querySelectorAll(`#drawer-body, #notes-list, ${isWriting ? "#thread-list" : "#thread"}`)) window.htmx.trigger(part, part.getAttribute("hx-trigger"));
  }

  /* Show the last text. If there is somebody else to write to by now, a form without a text is replaced. */
  function threadSettled() {
    const thread = document.getElementById("thread");
    const list = document.getElementById("thread-list");
    if (!list) return;
    list.scrollTop = list.scrollHeight;
    const text = document.getElementById("thread-body");
    const canHandle = Boolean(document.getElementById("thread-handled"));
    const isStale = list.dataset.recipients !== thread.dataset.recipients || canHandle !== (list.dataset.unanswered !== "0");
    if (text && isStale && !text.value && document.activeElement !== text) window.htmx.trigger(thread, "renew");
    if (!list.hidden) list.closest("details").open = true;
  }

  D.panel = { address, goBack, markOpen, open };

  document.addEventListener("DOMContentLoaded", () => {
    page = document.getElementById("timeline");
    for (const one of document.querySelectorAll(".no-script")) one.hidden = true;
    markOpen();
    document.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
      const link = event.target.closest("a[data-open]");
      if (link) {
        event.preventDefault();
        open(link.dataset.open);
      } else if (event.target.closest("#drawer-close, [data-close-drawer]")) {
        event.preventDefault();
        close();
      }
    });
    document.addEventListener("htmx:beforeSend", asked);
    document.addEventListener("htmx:beforeSwap", skipOutdated);
    document.addEventListener("htmx:afterSettle", (event) => {
      const id = event.detail.target?.id;
      if (["thread", "thread-list", "drawer-slot"].includes(id)) threadSettled();
      if (id === "drawer-slot") settled();
    });
    document.body.addEventListener("dispatch:events", (event) => {
      if (event.detail.some((one) => one.job && (isLoading() || String(one.job) === openJob()))) refresh();
    });
    document.body.addEventListener("dispatch:refetch", refresh);
    setInterval(() => { if (!document.hidden) refresh(); }, EVERY_MS); // also what could not be fetched
  });
})();
