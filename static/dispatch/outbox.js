/* Select messages: all on the page at once, or all matching ones, which disables the individual checkboxes. Parts that
   refresh themselves pause while the user has something open or focused in them. */
(() => {
  "use strict";

  function rests(part) {
    return Boolean(part?.matches?.("[data-rests]") && part.querySelector("details[open], form:focus-within, summary:focus-visible"));
  }

  document.addEventListener("htmx:beforeRequest", (event) => { if (rests(event.target)) event.preventDefault(); });
  document.addEventListener("htmx:beforeSwap", (event) => { if (rests(event.target)) event.detail.shouldSwap = false; });

  const form = document.getElementById("many");
  if (!form) return;
  const ticks = [...form.querySelectorAll('input[name="ids"]')];
  const all = document.getElementById("tick-all");
  const everything = document.getElementById("everything");

  all.addEventListener("change", () => { for (const tick of ticks) tick.checked = all.checked; });
  form.addEventListener("change", () => {
    const count = ticks.filter((tick) => tick.checked).length;
    all.checked = count === ticks.length;
    all.indeterminate = count > 0 && count < ticks.length;
    all.disabled = everything.checked;
    for (const tick of ticks) tick.disabled = everything.checked;
  });
})();
