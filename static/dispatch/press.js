/* Nothing changes under a pressed pointer or key: what is replaced between press and release never hears the click.
   News that come meanwhile wait, for as long as a finger rests. */
(() => {
  "use strict";

  const CLICK_MS = 50; // so long after the pointer a click may still come
  const LONGEST_MS = 30000; // a press whose end nobody saw is over then, if nothing was pressed since

  let pressed = false;
  let over = 0;
  let waiting = [];

  /* Does it now, or when what is pressed has been let go and done its work. */
  window.whenLetGo = (go) => {
    if (pressed) waiting.push(go);
    else go();
  };

  function press() {
    pressed = true;
    clearTimeout(over);
    over = setTimeout(letGo, LONGEST_MS);
  }

  function release(after) {
    if (!pressed) return;
    clearTimeout(over);
    over = setTimeout(letGo, after);
  }

  function letGo() {
    const now = waiting;
    pressed = false;
    waiting = [];
    for (const go of now) go();
  }

  const hear = (kind, heard) => window.addEventListener(kind, heard, true);
  hear("pointerdown", (event) => { if (event.isPrimary && !event.button) press(); });
  hear("pointerup", () => release(CLICK_MS));
  hear("pointercancel", () => release(0));
  hear("dragend", () => release(0));
  window.addEventListener("blur", () => release(0)); // of the window alone: it ends somewhere else
  hear("click", () => release(0));
  hear("keydown", (event) => { if (event.key === " ") press(); }); // a button is pressed at the end of it
  hear("keyup", () => release(0));

  /* A part of a page that fetches itself again is asked for once more when it may be replaced. */
  document.addEventListener("htmx:beforeSwap", (event) => {
    const asked = event.detail.requestConfig;
    if (!pressed || !event.detail.shouldSwap || asked?.elt !== event.detail.target) return;
    event.detail.shouldSwap = false;
    window.whenLetGo(() => window.htmx.ajax("GET", asked.path, { source: asked.elt, target: asked.elt }));
  });
})();
