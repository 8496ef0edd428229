/* Keyboard shortcuts of the board. Inactive while typing, with Ctrl, Alt or Meta, and when the user has turned them
   off. */
(() => {
  "use strict";
  const D = window.Dispatch;
  let before = "";

  function typing(target) {
    return target.closest?.("input:not([type=radio], [type=checkbox], [type=range]), textarea, select, [contenteditable]");
  }

  function rows() {
    return [...document.querySelectorAll("#lists a.open")].filter((row) => row.offsetParent !== null && !row.closest("[inert]"));
  }

  function step(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    const open = at < 0 ? all.findIndex((row) => row.dataset.open === D.board.openJob()) : at;
    const next = all[Math.min(all.length - 1, Math.max(0, open < 0 ? 0 : open + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }

  function job() {
    const focused = document.activeElement?.closest("#lists li")?.querySelector("a.open");
    return focused?.dataset.open || D.board.openJob();
  }

  async function act(...names) {
    const id = job();
    if (!id) return D.say(T.get("Choose a job first with j and k."));
    if (D.state === "stale" || D.state === "closed") return D.note(T.get("You're offline. Nothing was sent."), "late");
    if (D.board.openJob() !== id && !await D.board.open(id)) return;
    for (const name of names) {
      const button = document.getElementById("act-" + name);
      if (button) return button.click();
    }
    D.note(T.get("This isn't possible in the job's current state."), "late");
  }

  const KEYS = {
    j: () => step(1),
    k: () => step(-1),
    n: () => {
      const open = document.querySelector("#new-job-form #id_customer_phone"); // "Correct" has such a field, too
      if (open) open.focus();
      else document.getElementById("new-job").click();
    },
    a: () => act("assign"),
    c: () => act("call-next"),
    p: () => act("pause", "resume"),
    l: () => act("report-late"),
    x: () => { if (!D.acknowledgeOldest()) D.say(T.get("No alerts to acknowledge.")); },
    "/": () => document.getElementById("text").focus(),
    "?": () => document.getElementById("keys").showModal(),
  };

  document.addEventListener("keydown", (event) => {
    /* A key that is held down steps through the jobs, but acts only once. */
    if (event.defaultPrevented || (event.repeat && !["j", "k"].includes(event.key))) return;
    const dialog = document.querySelector("dialog[open]");
    if (event.key === "Escape") {
      if (dialog) return;
      if (typing(event.target) && !event.target.closest("#drawer")) {
        event.preventDefault(); // the browser would empty the search, and the lists would stay
        return document.getElementById("main").focus({ preventScroll: true });
      }
      if (document.getElementById("ask-back")) return document.getElementById("ask-back").click();
      if (document.getElementById("drawer") || D.panel.isLoading()) D.board.close();
      return;
    }
    if (dialog || event.ctrlKey || event.altKey || event.metaKey || D.stored("shortcuts", "1") !== "1" || typing(event.target)) return;
    const key = event.shiftKey ? event.key : event.key.toLowerCase(); // with Caps Lock, too
    if (before === "g" && key === "m") {
      before = "";
      event.preventDefault();
      return D.board.toggleMap();
    }
    before = key;
    if (KEYS[key]) {
      event.preventDefault();
      KEYS[key]();
    }
  });
})();
