/* Poll the customer's status page and update it only if it changed. Without this script the customer reloads the
   page. */
(() => {
  "use strict";
  const shown = document.getElementById("request");
  const hint = document.getElementById("looks");
  if (!shown || !hint) return;
  const pause = Number(hint.dataset.every) * 1000;
  hint.textContent = hint.dataset.hint;

  /* Replace the forms, unless the customer is filling one in that the request still allows. */
  function updateForms(page) {
    const forms = document.getElementById("changes");
    const current = page.getElementById("changes");
    if (!forms || (current?.querySelector("form") && forms.querySelector("details[open]"))) return;
    if (current) forms.replaceWith(document.importNode(current, true));
    else forms.remove();
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
      if (current && current.innerHTML.trim() !== shown.innerHTML.trim()) {
        shown.innerHTML = current.innerHTML;
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
