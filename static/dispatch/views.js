/* The menu of the board's views. Its forms are sent one after another, so that each of them reports its outcome. The menu
   is replaced after the last form, and read again if the address has changed meanwhile. */
(() => {
  "use strict";

  const waiting = []; // functions that send the forms whose turn comes later
  let isSending = false;
  let isOutdated = false;

  function isOfMenu(target) { return target?.id === "views-menu"; }

  /* A form waits with what was entered and with the address of its time. */
  function asked(event) {
    const { target, verb, elt, etc, question, triggeringEvent, issueRequest } = event.detail;
    if (!isOfMenu(target) || !isSending) return;
    event.preventDefault();
    if (verb === "get") isOutdated = true;
    else if (!question || window.confirm(question)) {
      const button = triggeringEvent?.submitter || elt;
      etc.values = Object.fromEntries(new FormData(elt.closest("form")));
      button.dataset.waits = "";
      if (button.matches("button[name]")) etc.values[button.name] = button.value;
      etc.headers = { "HX-Current-URL": location.href };
      waiting.push(() => issueRequest(true));
    }
  }

  function sent({ detail: { target, xhr, requestConfig: { verb } } }) {
    if (!isOfMenu(target) || verb === "get") return;
    isSending = true;
    window.htmx.trigger("#views", "htmx:abort"); // press.js reads it again
    xhr.addEventListener("loadend", () => {
      isSending = false;
      while (!isSending && waiting.length) waiting.shift()();
      if (isSending || !isOutdated) return;
      isOutdated = false;
      window.htmx.trigger("#views", "refresh");
    });
  }

  /* A response that is not shown, or not for long, reports its refusal. */
  function arrived({ detail }) {
    if (!isOfMenu(detail.target) || detail.requestConfig.verb === "get") return;
    const { xhr, requestConfig, serverResponse } = detail;
    if (waiting.length) {
      detail.shouldSwap = false;
      isOutdated = true;
    } else if (requestConfig.headers["HX-Current-URL"] === location.href) isOutdated = !detail.shouldSwap;
    if (!isOutdated || xhr.status !== 422) return;
    const refused = new DOMParser().parseFromString(serverResponse, "text/html").querySelector("[role=alert]");
    window.Dispatch.note(refused.textContent.trim(), "attention");
  }

  document.addEventListener("htmx:confirm", asked);
  document.addEventListener("htmx:beforeSend", sent);
  document.addEventListener("htmx:beforeSwap", arrived);
})();
