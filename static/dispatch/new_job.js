/* The form for a new job: take over the name and address of the customer's latest job, and keep what was entered, also
   while another page is open. With it the nonce is kept: if the reply was lost, sending it again makes no second job. */
(() => {
  "use strict";
  let draft = null; // what was entered, as { values: [name, value] pairs, filled }, until the job is created or the form is canceled
  let filled = null; // the name and address that the last phone number found

  function formOf(part) { return part?.closest?.("#new-job-form"); }

  function fill(form, button) {
    filled = [button.dataset.name, button.dataset.address];
    form.elements.customer_name.value = button.dataset.name;
    form.elements.address.value = button.dataset.address;
    button.hidden = true;
    form.elements.address.dispatchEvent(new Event("change", { bubbles: true }));
  }

  /* Another phone number is another customer: take back what the former number entered. */
  function takeBack(form) {
    document.getElementById("new-job-earlier").replaceChildren();
    if (!filled) return;
    const fields = [form.elements.customer_name, form.elements.address];
    fields.forEach((field, n) => { if (field.value === filled[n]) field.value = ""; });
    filled = null;
  }

  function store(form, kept) {
    draft = kept;
    window.Dispatch.drafts.write(form.dataset.keptAs, kept);
  }

  function keep(form) {
    if (form) store(form, { values: [...new FormData(form)].filter(([name]) => name !== "csrfmiddlewaretoken"), filled });
  }

  function end(form) {
    filled = null;
    store(form, null);
  }

  function enter(field, value) {
    const isPossible = field && (field.tagName !== "SELECT" || [...field.options].some((option) => option.value === value));
    if (isPossible) field.value = value;
  }

  function restore(form) {
    if (form.querySelector("#refused")) return keep(form); // the server returned what it refused
    draft ||= window.Dispatch.drafts.read(form.dataset.keptAs);
    if (!draft) return;
    filled = draft.filled;
    for (const [name, value] of draft.values) enter(form.elements[name], value);
    form.elements.customer_phone.dispatchEvent(new Event("change", { bubbles: true }));
    window.Dispatch.note(T.get("What you entered before is still here. Cancel clears the form."));
  }

  document.addEventListener("input", (event) => {
    const form = formOf(event.target);
    if (form && event.target === form.elements.customer_phone) takeBack(form);
    keep(form);
  });
  document.addEventListener("change", (event) => keep(formOf(event.target)));
  document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("new-job-form"); // on its own page
    if (form) restore(form);
  });

  document.addEventListener("click", (event) => {
    /* Escape presses Cancel, too, but must not lose what a customer has just said. */
    if (event.isTrusted && event.target.closest("#new-job-form [data-close-drawer]")) end(formOf(event.target));
    const button = event.target.closest("[data-fill]");
    if (!button) return;
    fill(document.getElementById("new-job-form"), button);
    document.getElementById("id_service_type").focus();
  });

  document.addEventListener("htmx:beforeOnLoad", ({ detail: { requestConfig: { elt }, xhr } }) => {
    if (elt.id === "new-job-form" && xhr.status === 200) end(elt);
  });

  document.addEventListener("htmx:afterSettle", (event) => {
    const form = document.getElementById("new-job-form");
    if (!form) return;
    if (event.target.id === "drawer-slot") return restore(form);
    if (event.target.id !== "new-job-earlier") return;
    const button = event.target.querySelector("[data-fill]");
    /* The answer may be about a number that has been changed since. */
    const isStale = event.detail.requestConfig.parameters.customer_phone !== form.elements.customer_phone.value;
    if (isStale) return event.target.replaceChildren();
    if (!button) return;
    const { customer_name: name, address } = form.elements;
    button.hidden = name.value === button.dataset.name && address.value === button.dataset.address;
    if (!name.value.trim() && !address.value.trim()) fill(form, button);
  });
})();
