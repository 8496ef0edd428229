/* Load pages into the job panel of the board or the timeline. The page requested last is the one shown: an earlier one
   that has not arrived is given up, as it is when the panel is closed. A form that was sent is awaited, and a page that
   polls yields. A part of the panel that could not be refreshed is refreshed again, and a page that the address names
   is requested until it arrives. The form of an action that has become impossible stays with what was entered, says why
   (`#ask-state`), and can't be sent. */
(() => {
  "use strict";

  const D = window.Dispatch;
  const RETRY_MS = 2000;
  const ABOVE = "#notices, #said, #keys, script"; // what a sheet does not cover
  const narrow = window.matchMedia("(width < 720px)");
  const REFRESHED = new Set(["ask-state", "drawer-body", "thread", "thread-list", "notes-list"]);
  let retry = 0;
  let latest = null; // the latest request for the panel, as { xhr, verb, isPaused }; null once it was closed

  function isLoading() { return Boolean(latest) && (latest.isPaused || latest.xhr.readyState < XMLHttpRequest.DONE); }

  /* Show nothing of what was requested. The body, which requests what `load` loads, would otherwise request nothing
     else until the response. */
  function giveUp() {
    const former = isLoading() && latest.verb === "get" ? latest.xhr : null;
    latest = null;
    former?.abort(); // which ends the request at once
  }

  /* Load a page. Return whether a response arrived before something else was requested. With `tellFailure`, a request
     that failed is sent again until one succeeds or something else is requested; `tellFailure` tells the user once. */
  async function load(path, tellFailure = null) {
    giveUp();
    const source = tellFailure ? { source: "#drawer-slot" } : {};
    for (let failures = 0; ; failures += 1) {
      const response = window.htmx.ajax("GET", path, { ...source, target: "#drawer-slot", swap: "innerHTML" });
      const request = latest;
      try {
        await response;
      } catch { /* judged by its status */ }
      const isSuperseded = () => !request || request !== latest;
      if (isSuperseded()) return false;
      const { status } = request.xhr;
      if (!tellFailure || (status && status < 500)) return status > 0;
      if (!failures) tellFailure();
      request.isPaused = true;
      await D.pauseAfter(failures);
      if (isSuperseded()) return false;
    }
  }

  function requested(event) {
    const { elt, target, xhr, requestConfig } = event.detail;
    if (target.id !== "drawer-slot") return;
    if (isLoading() && elt.id === "drawer") return event.preventDefault();
    giveUp();
    latest = { xhr, verb: requestConfig.verb };
  }

  /* What the server did not send is refreshed later, all at once: `D.panel.refresh` is the page's. */
  function retryFailed({ defaultPrevented, detail: { target, xhr, requestConfig } }) {
    const isRefresh = REFRESHED.has(target.id) && requestConfig.verb === "get";
    if (defaultPrevented || !(isRefresh || target.id === "drawer-slot")) return;
    let isAborted = false;
    xhr.addEventListener("abort", () => { isAborted = true; });
    xhr.addEventListener("loadend", () => {
      if (isAborted || retry || (xhr.status && xhr.status < 500)) return;
      retry = setTimeout(() => { retry = 0; D.panel.refresh(); }, RETRY_MS * (0.5 + Math.random()));
    });
  }

  /* The response to a form that was sent before something else was opened, or before the panel was closed, is not shown.
     A refusal is reported. */
  function skipOutdated(event) {
    const { target, xhr, serverResponse } = event.detail;
    if (target.id !== "drawer-slot" || xhr === latest?.xhr) return;
    event.detail.shouldSwap = false;
    const page = new DOMParser().parseFromString(serverResponse, "text/html");
    const refused = page.getElementById("refused");
    if (!refused) return;
    const job = page.getElementById("drawer")?.dataset.job;
    const text = [...refused.querySelectorAll("p, li")].map((line) => line.textContent.trim()).join(" ");
    D.note(job ? `#${job}: ${text}` : text, "attention");
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

  function hasObstacle() { return "obstacle" in (document.getElementById("ask-state")?.dataset || {}); }

  /* htmx enables the button of a form that it has sent. */
  function disableImpossible() {
    const button = document.querySelector("#ask [data-do]");
    if (!button || !hasObstacle()) return;
    const hasFocus = document.activeElement === button;
    button.disabled = true;
    if (hasFocus) document.getElementById("ask-back").focus({ preventScroll: true });
  }

  function stateSettled() {
    disableImpossible();
    if (hasObstacle()) return document.getElementById("ask-state").scrollIntoView({ block: "nearest" });
    document.getElementById("refused")?.remove(); // it named the former obstacle
    if (!isLoading()) document.querySelector("#ask [data-do]").disabled = false;
  }

  /* Act on clicks on these elements, as { selector: act }. With a modifier key, a link is followed as usual. */
  function onClick(acts) {
    document.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
      for (const [selector, act] of Object.entries(acts)) {
        const element = event.target.closest(selector);
        if (!element) continue;
        event.preventDefault();
        return act(element);
      }
    });
  }

  /* On a phone, the panel is a sheet that covers the page. Neither keys nor screen readers reach what it covers. */
  function cover() {
    const slot = document.getElementById("drawer-slot");
    const isCovered = narrow.matches && slot.childElementCount > 0;
    for (let part = slot; part !== document.body; part = part.parentElement) {
      for (const other of part.parentElement.children) if (other !== part && !other.matches(ABOVE)) other.inert = isCovered;
    }
  }

  D.panel = { load, giveUp, isLoading, onClick, cover };
  document.addEventListener("htmx:beforeSend", requested);
  document.addEventListener("htmx:beforeSend", retryFailed);
  document.addEventListener("htmx:beforeSwap", skipOutdated);
  document.addEventListener("htmx:afterSettle", (event) => {
    if (["thread", "thread-list", "drawer-slot"].includes(event.detail.target?.id)) threadSettled();
    if (event.detail.target?.id === "ask-state") stateSettled();
  });
  document.addEventListener("htmx:afterRequest", disableImpossible);
  document.addEventListener("htmx:afterSettle", cover); // a part that was replaced is covered as before
  narrow.addEventListener("change", cover);
})();
