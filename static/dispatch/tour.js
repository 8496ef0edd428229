/* The tour of the demo's board, in five steps. The server stores for each user that it was dismissed. */
(() => {
  "use strict";
  const D = window.Dispatch;

  function start(box) {
    const steps = [...box.querySelector("template").content.querySelectorAll("li")];
    const part = (name) => box.querySelector(`[data-${name}]`);
    let at = 0;

    const target = (step) => document.querySelector(step.dataset.target);
    const unmark = () => document.querySelectorAll(".toured").forEach((marked) => marked.classList.remove("toured"));

    function show(scroll) {
      unmark();
      const step = steps[at];
      part("title").textContent = step.querySelector("h2").textContent;
      part("words").innerHTML = step.querySelector("p").innerHTML;
      part("at").textContent = at + 1;
      part("of").textContent = steps.length;
      part("back").disabled = at === 0;
      part("next").textContent = at === steps.length - 1 ? T.get("Done") : T.get("Next");
      const marked = target(step);
      if (!marked) return;
      marked.classList.add("toured");
      if (scroll) marked.scrollIntoView({ block: "nearest" });
    }

    function end() {
      unmark();
      const headers = { "X-CSRFToken": D.cookie("csrftoken") };
      fetch(box.dataset.dismiss, { method: "POST", headers, keepalive: true }).catch(() => {}); // shown again next time
      const had = box.contains(document.activeElement);
      box.hidden = true;
      if (had) document.getElementById("main").focus();
    }

    part("next").addEventListener("click", () => (at === steps.length - 1 ? end() : (at++, show(true))));
    part("back").addEventListener("click", () => { at = Math.max(0, at - 1); show(true); });
    part("end").addEventListener("click", end);
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      end();
    });
    box.hidden = false;
    show(false);
  }

  document.addEventListener("DOMContentLoaded", () => {
    const box = document.getElementById("tour");
    if (box) start(box);
  });
})();
