/* Parts that refresh themselves pause while the user has something open, focused or selected in them. A refresh that
   does not wait leaves the focus where it was: on the same link, button or scrolled area of the new content. */
(() => {
  "use strict";

  const IN_USE = "details[open], form:focus-within, summary:focus-visible";
  let held = null;

  function rests(part) {
    if (!part?.matches?.("[data-rests]")) return false;
    const selected = document.getSelection();
    return Boolean(part.querySelector(IN_USE)) || (!selected.isCollapsed && selected.containsNode(part, true));
  }

  /* The controls of a part that cannot be told from this one but by their order. */
  function alike(part, control) {
    const same = (name) => (other) => other.getAttribute(name) === control.getAttribute(name);
    return [...part.querySelectorAll(control.localName)].filter(same("href")).filter(same("tabindex"));
  }

  document.addEventListener("htmx:beforeRequest", (event) => { if (rests(event.target)) event.preventDefault(); });
  document.addEventListener("htmx:beforeSwap", (event) => {
    const part = event.target, focused = document.activeElement;
    if (rests(part)) event.detail.shouldSwap = false;
    else if (part.matches("[data-rests]") && part.contains(focused)) held = { part, focused, place: alike(part, focused).indexOf(focused) };
  });
  document.addEventListener("htmx:afterSwap", () => {
    const found = held && document.getElementById(held.part.id);
    if (!found) return;
    if (document.activeElement === document.body) alike(found, held.focused)[held.place]?.focus({ preventScroll: true });
    held = null;
  });
})();
