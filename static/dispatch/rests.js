/* Parts that refresh themselves pause while the user has something open, focused or selected in them. */
(() => {
  "use strict";

  const IN_USE = "details[open], form:focus-within, summary:focus-visible";

  function rests(part) {
    if (!part?.matches?.("[data-rests]")) return false;
    const selected = document.getSelection();
    return Boolean(part.querySelector(IN_USE)) || (!selected.isCollapsed && selected.containsNode(part, true));
  }

  document.addEventListener("htmx:beforeRequest", (event) => { if (rests(event.target)) event.preventDefault(); });
  document.addEventListener("htmx:beforeSwap", (event) => { if (rests(event.target)) event.detail.shouldSwap = false; });
})();
