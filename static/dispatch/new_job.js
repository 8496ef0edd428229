/* The form for a new job: take over the name and address of the customer's latest job. */
(() => {
  "use strict";

  function fields() { return [document.getElementById("id_customer_name"), document.getElementById("id_address")]; }

  function fill(button) {
    const [name, address] = fields();
    name.value = button.dataset.name;
    address.value = button.dataset.address;
    button.hidden = true;
    address.dispatchEvent(new Event("change", { bubbles: true }));
  }

  /* What was entered is kept while the page is open, so that closing the form by mistake loses nothing. */
  let draft = null;

  function keep(event) {
    const form = event.target.closest?.("#new-job-form");
    if (!form) return;
    draft = [...new FormData(form)].filter(([name]) => !["csrfmiddlewaretoken", "nonce"].includes(name));
  }

  document.addEventListener("input", keep);
  document.addEventListener("change", keep);
  document.addEventListener("htmx:afterSettle", (event) => {
    const form = event.target.id === "drawer-slot" && document.getElementById("new-job-form");
    if (!form || !draft || form.querySelector("[aria-invalid]")) return;
    for (const [name, value] of draft) form.elements[name].value = value;
    form.elements.customer_phone.dispatchEvent(new Event("change", { bubbles: true }));
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.requestConfig.elt.id === "new-job-form" && event.detail.successful) draft = null;
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest("#new-job-form [data-close-drawer]")) draft = null;
    const button = event.target.closest("[data-fill]");
    if (!button) return;
    fill(button);
    document.getElementById("id_service_type").focus();
  });

  /* A known customer's name and address are entered if nothing else was. */
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.target.id !== "new-job-earlier") return;
    const button = event.target.querySelector("[data-fill]");
    const [name, address] = fields();
    if (!button || !name || !address) return;
    button.hidden = name.value === button.dataset.name && address.value === button.dataset.address;
    if (!name.value.trim() && !address.value.trim()) fill(button);
  });
})();
