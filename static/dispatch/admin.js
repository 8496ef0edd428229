/* Fix accessibility of the theme's multi-select boxes: give the search input its field's label, and hide the list
   semantics around it from screen readers. The boxes are rendered after the page, and again after each choice.

   Make the content the main landmark, to which the skip link leads.

   Capitalize the labels of list rows on phones. Bring tabs back that the theme has moved into its menu while the page
   was still being laid out. */
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
    const content = document.getElementById("content");
    content?.setAttribute("role", "main");
    content?.setAttribute("tabindex", "-1");
    for (const cell of document.querySelectorAll("[data-label]")) cell.dataset.label = cell.dataset.label.replace(/^./u, (letter) => letter.toUpperCase());
  });

  window.addEventListener("load", () => {
    const moved = document.getElementById("tabs-dropdown");
    for (let left = moved?.childElementCount || 0; left > 0; left--) window.dispatchEvent(new Event("resize"));
  });
})();
