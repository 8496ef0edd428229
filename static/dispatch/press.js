/* Defer page updates while a pointer or key is pressed: an element replaced between press and release would never
   receive the click. Updates that arrive meanwhile wait until the release.

   The second click of a double click does not reach a button that has replaced the first one under the pointer, and does
   not send a form with `data-once` again: the page would show only that everything was done already.

   A button whose form is being sent waits (`data-waits`): it looks so, and its presses do nothing. Sending the form again
   would do the same twice, and tell the person only that it was done already. The other buttons of the form wait, too, if
   it drops requests (`hx-sync="this:drop"`): what they are about changes with the response.

   A part that receives `refresh` or `renew` during its own request is requested once more. htmx would queue the second
   request until the first response, which replaces the part, and then drop it. So is a part whose request was aborted
   by an element that shares its `hx-sync`. */
(() => {
  "use strict";

  const CLICK_MS = 50; // a click may follow the pointer's release within this time
  const MAX_PRESS_MS = 30000; // a press without a release ends after this, unless another one began

  let pressed = false;
  let over = 0;
  let waiting = [];

  /* Run `go` now, or after the current press is released and its click handled. */
  window.whenLetGo = (go) => {
    if (pressed) waiting.push(go);
    else go();
  };

  function press() {
    pressed = true;
    clearTimeout(over);
    over = setTimeout(finishPress, MAX_PRESS_MS);
  }

  function release(after) {
    if (!pressed) return;
    clearTimeout(over);
    over = setTimeout(finishPress, after);
  }

  function finishPress() {
    const now = waiting;
    pressed = false;
    waiting = [];
    for (const go of now) go();
  }

  const listen = (kind, listener) => window.addEventListener(kind, listener, true);
  listen("pointerdown", (event) => { if (event.isPrimary && !event.button) press(); });
  listen("pointerup", () => release(CLICK_MS));
  listen("pointercancel", () => release(0));
  listen("dragend", () => release(0));
  window.addEventListener("blur", () => release(0)); // of the window only: the release happens elsewhere
  listen("click", () => release(0));
  listen("keydown", (event) => { if (event.key === " ") press(); }); // a button is activated on keyup
  listen("keyup", () => release(0));

  let clicked = null;

  listen("click", (event) => {
    const button = event.target.closest?.("button");
    if (button && event.detail > 1 && clicked?.isConnected === false) {
      event.preventDefault();
      event.stopImmediatePropagation();
    } else clicked = button;
  });

  const waits = (button) => button && "waits" in button.dataset;

  listen("click", (event) => {
    if (!waits(event.target.closest?.("button"))) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  });
  listen("submit", (event) => { // also by keys, without a click
    if (!waits(event.submitter)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  });
  document.addEventListener("htmx:beforeSend", ({ detail: { elt, xhr, requestConfig: { verb, triggeringEvent } } }) => {
    const button = elt.matches("button") ? elt : triggeringEvent?.submitter;
    if (verb === "get" || !button) return;
    const buttons = elt.getAttribute("hx-sync") === "this:drop" ? elt.querySelectorAll("button[type=submit]") : [button];
    for (const one of buttons) one.dataset.waits = "";
    xhr.addEventListener("loadend", () => { for (const one of buttons) if (!one.dataset.waits) delete one.dataset.waits; });
  });

  const sent = new Set();

  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || !event.target.matches("[data-once]")) return;
    if (sent.has(event.target)) event.preventDefault();
    sent.add(event.target);
    setTimeout(() => sent.delete(event.target), MAX_PRESS_MS); // if the answer was lost or the person stopped it
  });
  window.addEventListener("pageshow", () => sent.clear());

  /* A self-refreshing part that arrived during a press is fetched again after it. */
  document.addEventListener("htmx:beforeSwap", (event) => {
    const asked = event.detail.requestConfig;
    if (!pressed || !event.detail.shouldSwap || asked?.elt !== event.detail.target) return;
    event.detail.shouldSwap = false;
    window.whenLetGo(() => window.htmx.ajax("GET", asked.path, { source: asked.elt, target: asked.elt }));
  });

  /* Ids of the parts that are being read, and whether they are to be read again. */
  const reading = new Map();
  const replacesItself = (part) => part.id && part.getAttribute("hx-swap") === "outerHTML" && ["refresh", "renew"].includes(part.getAttribute("hx-trigger"));
  document.addEventListener("htmx:trigger", ({ target }) => { if (reading.has(target.id)) reading.set(target.id, true); });
  document.addEventListener("htmx:beforeSend", ({ detail: { elt, xhr } }) => {
    if (!replacesItself(elt)) return;
    reading.set(elt.id, false);
    const readAgain = () => {
      const now = document.getElementById(elt.id);
      if (now && replacesItself(now)) window.htmx.trigger(now, now.getAttribute("hx-trigger"));
    };
    xhr.addEventListener("abort", () => setTimeout(readAgain)); // after the other request was sent
    xhr.addEventListener("loadend", () => {
      const isStale = reading.get(elt.id);
      reading.delete(elt.id);
      if (isStale && document.getElementById(elt.id) !== elt) readAgain();
    });
  });
})();
