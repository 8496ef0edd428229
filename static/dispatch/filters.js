/* Request the lists of the board: for the filters that a user sets, and for those of the address after a step back or
   forward. A request that failed is sent again until one succeeds, more and more rarely: otherwise a search would stand
   above the lists of all jobs. */
(() => {
  "use strict";

  const D = window.Dispatch;
  const FORM = "filters";
  const STEP = "board"; // the element that makes the requests of steps
  let latest = FORM; // the id of the element that made the latest request
  let failures = 0;
  let isWaiting = false; // to send a request again
  let isStepping = false; // whether the lists and filters of the address are yet to arrive

  /* Request the lists and the filters of the address. If it names those that are shown, do so only if an earlier step
     is under way, which may have given up a search. */
  async function follow(isShown = false) {
    if (isShown && !isStepping) return;
    isStepping = true;
    window.htmx.trigger("#" + STEP, "htmx:abort");
    try {
      await window.htmx.ajax("GET", location.pathname + location.search, {
        source: "#" + STEP, target: "#lists", swap: "outerHTML", select: "#lists", selectOOB: "#filters",
        headers: { "HX-History-Restore-Request": "true" }, // the response is the whole page
      });
    } catch { /* sent again */ }
  }

  function sendAgain() {
    if (!failures) return;
    if (latest === STEP) follow();
    else window.htmx.trigger("#" + FORM, "submit");
  }

  function requested({ detail: { requestConfig: { elt } } }) {
    if (![FORM, STEP].includes(elt.id)) return;
    if (elt.id !== latest) {
      failures = 0;
      window.htmx.trigger("#" + latest, "htmx:abort");
    }
    latest = elt.id;
    isStepping = latest === STEP;
  }

  async function failed({ detail: { requestConfig: { elt }, xhr } }) {
    if (elt.id !== latest || (xhr.status && xhr.status < 500)) return;
    if (!failures && latest === STEP) D.note(T.get("The board of this address can't be loaded yet. It appears when the server answers again."), "late");
    else if (!failures && D.state !== "live") D.note(T.get("No connection. The filters apply when it is back."), "late");
    failures += 1;
    if (isWaiting) return;
    isWaiting = true;
    await D.pauseAfter(failures - 1);
    isWaiting = false;
    sendAgain();
  }

  /* A step keeps the title, which counts what is unread. Another page than the board, as that to sign in, is loaded. */
  function stepArrived({ detail }) {
    if (detail.requestConfig?.elt.id !== STEP || !detail.shouldSwap) return;
    detail.ignoreTitle = true;
    if (new DOMParser().parseFromString(detail.serverResponse, "text/html").getElementById("lists")) return;
    detail.shouldSwap = false;
    location.reload();
  }

  D.filters = { follow };
  document.addEventListener("htmx:beforeRequest", requested);
  document.addEventListener("htmx:sendError", failed);
  document.addEventListener("htmx:responseError", failed);
  document.addEventListener("htmx:beforeSwap", stepArrived);
  document.addEventListener("htmx:afterRequest", ({ detail: { requestConfig: { elt }, successful } }) => {
    if (elt.id !== latest || !successful) return;
    failures = 0;
    isStepping = false;
  });
})();
