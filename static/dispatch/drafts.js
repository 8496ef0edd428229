/* Keep what is being written. A field with `data-draft`, a name that is unique on the site and begins with the id of the
   user, gets its text back after its part of the page was replaced, and in the same tab after another page was open. Its
   form keeps its nonce, so that a text whose reply was lost is not stored twice. Sending the form ends the draft. Signing
   out ends all drafts, and so does the first page of another user (`data-user`). */
(() => {
  "use strict";

  const PREFIX = "dispatch.draft.";

  function read(name) {
    try { return JSON.parse(sessionStorage.getItem(PREFIX + name)); } catch { return null; }
  }

  function write(name, draft) {
    try {
      if (draft) sessionStorage.setItem(PREFIX + name, JSON.stringify(draft));
      else sessionStorage.removeItem(PREFIX + name);
    } catch { /* storage is off or full: the text is kept as long as the field is on the page */ }
  }

  /* End all drafts, or those of others than this user. */
  function end(user = "") {
    try {
      for (const key of Object.keys(sessionStorage)) {
        if (key.startsWith(PREFIX) && !(user && key.startsWith(`${PREFIX}${user}-`))) sessionStorage.removeItem(key);
      }
    } catch { /* storage is off: there are none */ }
  }

  const stored = (field) => read(field.dataset.draft) || { text: "" };
  const store = (field, text, nonce) => write(field.dataset.draft, text && { text, nonce });

  const keep = (field) => store(field, field.value, field.form.elements.nonce?.value);

  function restore() {
    for (const field of document.querySelectorAll("[data-draft]")) {
      if (field.value) {
        keep(field); // it never left the page, or the server returned what it refused
        continue;
      }
      const { text, nonce } = stored(field);
      if (!text) continue;
      field.value = text;
      if (nonce) {
        field.ownNonce = field.form.elements.nonce.value;
        field.form.elements.nonce.value = nonce;
      }
      const box = field.closest("details:not(.menu-box)");
      if (box) box.open = true;
    }
  }

  /* The form was sent. What was written since then stays, as a new text. Meanwhile the form may have left the page, and
     its text may have come back in another one. */
  document.addEventListener("htmx:beforeOnLoad", (event) => {
    const { requestConfig, xhr } = event.detail;
    const field = requestConfig.verb === "post" && requestConfig.elt.querySelector("[data-draft]");
    if (!field || requestConfig.triggeringEvent?.submitter?.name || xhr.getResponseHeader("HX-Redirect")) return;
    if (xhr.status === 422 && !field.isConnected) reportRefusal(xhr);
    if (xhr.status !== 200) return;
    const shown = document.querySelector(`[data-draft="${field.dataset.draft}"]`);
    const text = shown ? shown.value : stored(field).text;
    const sent = requestConfig.parameters[field.name];
    const rest = text.startsWith(sent) ? text.slice(sent.length).trimStart() : text;
    store(field, rest);
    if (!shown || shown === field) return;
    shown.value = rest;
    if (shown.ownNonce) shown.form.elements.nonce.value = shown.ownNonce;
  });

  function reportRefusal(xhr) {
    const refused = new DOMParser().parseFromString(xhr.response, "text/html").querySelector("[role=alert]");
    if (refused) window.Dispatch.note(refused.textContent.trim(), "attention");
  }

  /* A text that is written after the field was emptied is another one, even if its words are the same. */
  function written(field) {
    const { nonce } = field.form.elements;
    if (nonce && !field.value && crypto.randomUUID) nonce.value = crypto.randomUUID();
    keep(field);
  }

  document.addEventListener("input", (event) => { if (event.target.matches("[data-draft]")) written(event.target); });
  document.addEventListener("htmx:afterSettle", restore);
  document.addEventListener("DOMContentLoaded", () => {
    const user = document.querySelector("[data-user]")?.dataset.user;
    if (user) end(user);
    restore();
  });
  /* Until the next page is shown, live updates may store the drafts again. */
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-sign-out], #logout-form")) return; // the latter is the admin theme's
    end();
    addEventListener("pagehide", () => end());
  });
  if (window.Dispatch) window.Dispatch.drafts = { read, write };
})();
