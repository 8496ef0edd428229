/* Select messages: all on the page at once, or all matching ones, which disables the individual checkboxes. */
(() => {
  "use strict";

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
