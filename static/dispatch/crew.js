/* Keep the technician strip up to date. A technician's state depends on offers, on jobs, and on the time: a shift begins
   or ends without an event. An open group and the focus stay. The links of the technicians keep what the address says. */
(() => {
  "use strict";

  const D = window.Dispatch;
  const PAUSE_MS = 2000;
  const EVERY_MS = 60000;
  const SUBJECTS = new Set(["technician", "offer", "job"]);
  let drawnAt = 0;
  let timer = 0;
  let kept = null;

  /* At most every two seconds (trailing edge: the last change is always drawn). A page that is shown again fetches the
     strip itself. */
  function drawSoon() {
    if (timer || document.hidden) return;
    timer = setTimeout(() => {
      timer = 0;
      drawnAt = Date.now();
      window.htmx.trigger("#crew-slot", "refresh");
    }, Math.max(0, drawnAt + PAUSE_MS - Date.now()));
  }

  /* Remember the open group and the focused element of the strip while it is replaced. */
  function keep(slot) {
    const at = slot.contains(document.activeElement) ? document.activeElement : null;
    const group = at?.closest("details")?.dataset.group;
    const technician = at?.dataset.technician;
    const label = at?.getAttribute("aria-label");
    kept = {
      group,
      open: slot.querySelector("details[open]")?.dataset.group,
      focus: technician ? `[data-technician="${technician}"]` : label ? `[aria-label="${CSS.escape(label)}"]` : group ? `[data-group="${group}"] summary` : "",
    };
  }

  function restore(slot) {
    const open = kept?.open && slot.querySelector(`[data-group="${kept.open}"]`);
    if (open) open.open = true;
    const found = kept?.focus && slot.querySelector(kept.focus);
    const isShown = found && found.checkVisibility(); // a technician may be in another group by now, which is closed
    (isShown ? found : kept?.group && slot.querySelector(`[data-group="${kept.group}"] summary`))?.focus({ preventScroll: true });
    kept = null;
  }

  /* A technician is one more filter: the others, the layout and the map stay. They may have changed since the link was
     rendered. */
  function aim({ target }) {
    const link = target.closest?.("#crew-slot a[data-technician]");
    if (!link) return;
    const query = new URLSearchParams(location.search);
    query.set("technician", link.dataset.technician);
    link.setAttribute("href", `${location.pathname}?${query}`);
  }

  for (const kind of ["pointerdown", "focusin", "click"]) document.addEventListener(kind, aim);
  document.addEventListener("DOMContentLoaded", () => {
    document.body.addEventListener("dispatch:events", (event) => {
      if (event.detail.some((one) => SUBJECTS.has(one.subject))) drawSoon();
    });
    setInterval(() => { if (D.state === "live") drawSoon(); }, EVERY_MS);
  });
  document.addEventListener("htmx:beforeSwap", (event) => { if (event.detail.target.id === "crew-slot") keep(event.detail.target); });
  document.addEventListener("htmx:afterSettle", (event) => { if (event.detail.target?.id === "crew-slot") restore(event.detail.target); });
})();
