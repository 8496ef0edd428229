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

  document.addEventListener("click", (event) => {
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
