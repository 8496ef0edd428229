/* Choosing messages: all on the page at once; "all that the filters find" makes the single ticks needless. And what is
   fetched again by itself rests while somebody reads or writes in it. */
(() => {
  "use strict";

  document.addEventListener("htmx:beforeRequest", (event) => {
    const part = event.target.closest?.("[data-rests]");
    if (part && part === event.target && part.querySelector("details[open], form:focus-within, summary:focus-visible")) event.preventDefault();
  });

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
