/* Fix accessibility of the theme's multi-select boxes: give the search input its field's label, and hide the list
   semantics around it from screen readers. The boxes are rendered after the page, and again after each choice. */
(() => {
  "use strict";

  function name() {
    for (const box of document.querySelectorAll(".select2-container")) {
      const label = box.previousElementSibling?.labels?.[0]?.textContent.trim();
      if (label) box.querySelector("input.select2-search__field")?.setAttribute("aria-label", label);
      for (const part of box.querySelectorAll("ul.select2-selection__rendered, ul.select2-selection__rendered > li")) part.setAttribute("role", "none");
    }
  }

  let drawn = 0;
  document.addEventListener("DOMContentLoaded", () => {
    new MutationObserver(() => { drawn ||= requestAnimationFrame(() => { drawn = 0; name(); }); }).observe(document.body, { childList: true, subtree: true });
    name();
  });
})();
