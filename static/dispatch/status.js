/* Poll the customer's status page and update it only if it changed. Without this script the customer reloads the
   page. */
(() => {
  "use strict";
  const parts = ["state", "facts"].map((id) => document.getElementById(id));
  const hint = document.getElementById("looks");
  if (!parts.every(Boolean) || !hint) return;
  const pause = Number(hint.dataset.every) * 1000;
  hint.textContent = hint.dataset.hint;

  /* Change what is different. The element of the state stays: screen readers announce only its changes. */
  function updateParts(page) {
    const changed = parts.filter((part) => page.getElementById(part.id).innerHTML.trim() !== part.innerHTML.trim());
    for (const part of changed) part.innerHTML = page.getElementById(part.id).innerHTML;
    return changed.length > 0;
  }

  /* The focus stays on the same control, or goes to the state if the request no longer has the control. */
  function keepFocus(former) {
    const same = former.localName === "summary" && [...document.querySelectorAll("#changes summary")].find((one) => one.textContent === former.textContent);
    (same || parts[0]).focus({ preventScroll: true });
  }

  /* Replace the forms, unless the customer is filling one in that the request still allows. */
  function updateForms(page) {
    const forms = document.getElementById("changes");
    const current = page.getElementById("changes");
    if (!forms || (current?.querySelector("form") && forms.querySelector("details[open]"))) return;
    const focused = forms.contains(document.activeElement) && document.activeElement;
    if (current) forms.replaceWith(document.importNode(current, true));
    else forms.remove();
    if (focused) keepFocus(focused);
  }

  async function poll() {
    try {
      const response = await fetch(location.href, { cache: "no-store" });
      if (response.status === 410) { // the link has ended
        location.reload();
        return;
      }
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const current = response.ok ? page.getElementById("request") : null;
      if (current && updateParts(page)) {
        document.title = page.title;
        updateForms(page);
      }
      if (current && !page.getElementById("looks")) {
        hint.remove();
        return;
      }
    } catch { /* no connection: try again later */ }
    setTimeout(poll, pause);
  }
  setTimeout(poll, pause);
})();
