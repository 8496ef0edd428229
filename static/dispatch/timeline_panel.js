/* The timeline's panel: open and close it, and keep it current. `panel.js` loads its pages. */
(() => {
  "use strict";

  const D = window.Dispatch;
  let page = null;
  let isOutdated = false; // a job has changed during a request for the panel

  function slot() { return document.getElementById("drawer-slot"); }
  function openJob() { return document.getElementById("drawer")?.dataset.job || ""; }

  function address(changed) {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changed)) value ? query.set(name, value) : query.delete(name);
    const text = query.toString();
    return page.dataset.chart + (text ? "?" + text : "");
  }

  function markOpen() {
    page.classList.toggle("with-drawer", slot().childElementCount > 0);
    D.panel.cover();
    for (const link of page.querySelectorAll("a[data-open]")) {
      if (openJob() && link.dataset.open === openJob()) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  /* --- opening and closing ------------------------------------------------------------------------------------------ */
  async function open(id, { act = "", query = "" } = {}) {
    const path = page.dataset.job.replace("/0/", `/${id}/`) + (act ? `act/${act}/` : "") + query;
    if (await D.panel.load(path) && openJob() === String(id)) history.replaceState(null, "", address({ job: id }));
  }

  function close() {
    const id = openJob();
    D.panel.giveUp();
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

  /* --- keeping current ---------------------------------------------------------------------------------------------- */
  /* Updates during a request for the panel are fetched after it, because its response may be older. */
  function asked({ detail: { target, xhr } }) {
    if (target.id !== "drawer-slot") return;
    isOutdated = false;
    xhr.addEventListener("loadend", () => { if (isOutdated) refresh(); });
  }

  function refresh() {
    isOutdated = D.panel.isLoading();
    if (isOutdated) return;
    const isWriting = document.getElementById("thread-body");
    for (const part of document.querySelectorAll(`#drawer-body, #ask-state, #notes-list, ${isWriting ? "#thread-list" : "#thread"}`)) window.htmx.trigger(part, part.getAttribute("hx-trigger"));
  }

  Object.assign(D.panel, { address, goBack, markOpen, open, refresh });

  document.addEventListener("DOMContentLoaded", () => {
    page = document.getElementById("timeline");
    for (const one of document.querySelectorAll(".no-script")) one.hidden = true;
    markOpen();
    D.panel.onClick({
      "a[data-open]": (link) => open(link.dataset.open),
      "#drawer-close, [data-close-drawer]": () => close(),
    });
    document.addEventListener("htmx:beforeSend", asked);
    document.addEventListener("htmx:afterSettle", (event) => { if (event.detail.target?.id === "drawer-slot") settled(); });
    document.body.addEventListener("dispatch:events", (event) => {
      if (event.detail.some((one) => one.job && (D.panel.isLoading() || String(one.job) === openJob()))) refresh();
    });
    document.body.addEventListener("dispatch:refetch", refresh);
  });
})();
