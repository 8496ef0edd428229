/* Select several jobs in "Needs attention". The selection is kept while the list is updated. */
(() => {
  "use strict";
  const picked = new Set();
  let picking = false;

  function boxes() { return [...document.querySelectorAll("#lists .pick input")]; }

  function show() {
    const lists = document.getElementById("lists");
    const form = document.getElementById("selected");
    const button = document.getElementById("pick");
    if (!lists || !form || !button) return;
    const present = new Set(boxes().map((box) => box.value));
    for (const id of [...picked]) if (!present.has(id)) picked.delete(id);
    for (const box of boxes()) if (box.checked !== (picking && picked.has(box.value))) box.checked = picking && picked.has(box.value);
    button.hidden = !picking && !present.size;
    const label = picking ? T.get("Done") : T.get("Select");
    if (button.textContent !== label) button.textContent = label;
    button.setAttribute("aria-pressed", String(picking));
    lists.classList.toggle("picking", picking);
    form.hidden = !picking;
    const count = picked.size;
    const words = count ? T.plural("{count} selected", "{count} selected", count) : T.get("Nothing selected");
    const counter = document.getElementById("selected-count");
    if (counter.textContent !== words) counter.textContent = words;
    for (const one of form.querySelectorAll("[name=do]")) one.disabled = !count;
  }

  function stop() {
    const hadFocus = document.getElementById("selected")?.contains(document.activeElement);
    picking = false;
    picked.clear();
    show();
    if (!hadFocus) return;
    const button = document.getElementById("pick");
    (button.hidden ? document.getElementById("main") : button).focus({ preventScroll: true });
  }

  document.addEventListener("DOMContentLoaded", () => {
    show();
    new MutationObserver(show).observe(document.getElementById("board"), { childList: true, subtree: true });
    /* The jobs named in the event are done; others stay selected. The panel shows a question about the former selection,
       unless it is about to show why some were refused. */
    document.body.addEventListener("dispatch:selected", (event) => {
      for (const id of event.detail.done) picked.delete(String(id));
      if (picked.size) show();
      else stop();
      if (!event.detail.keeps_panel && document.querySelector("#ask [name=confirmed]")) window.Dispatch.board.close();
    });
  });
  document.addEventListener("change", (event) => {
    if (!event.target.matches(".pick input")) return;
    if (event.target.checked) picked.add(event.target.value);
    else picked.delete(event.target.value);
    show();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("#pick")) {
      if (picking) return stop();
      picking = true;
      show();
      boxes()[0]?.focus();
    } else if (event.target.closest("#pick-all")) {
      for (const box of boxes()) picked.add(box.value);
      show();
    }
  });
})();
