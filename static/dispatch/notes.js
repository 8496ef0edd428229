/* The notes of a job: "@" offers colleagues in a list, and Ctrl+Enter sends. */
(() => {
  "use strict";

  const MAX_SHOWN = 6;
  const IN_WORD = /[\p{L}\p{M}\p{N}_]/u;
  let names = []; // of the colleagues
  let asked = false;
  let begin = -1; // position of the "@" of the open list
  let active = 0;

  const field = () => document.getElementById("note-text");
  const list = () => document.getElementById("note-members");
  const isOpen = () => Boolean(list()) && !list().hidden;

  async function loadNames() {
    if (asked) return;
    asked = true;
    try {
      const answer = await fetch(field().dataset.members, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(String(answer.status));
      ({ names } = await answer.json());
      update();
    } catch {
      asked = false; // the next "@" asks again
    }
  }

  /* The position of the "@" before the cursor, if a mention may be written there, else -1. */
  function mentionStart(text, cursor) {
    const at = text.slice(0, cursor).lastIndexOf("@");
    const before = [...text.slice(0, at)].at(-1);
    return at < 0 || text.slice(at, cursor).includes("\n") || (before && IN_WORD.test(before)) ? -1 : at;
  }

  function matches(query) {
    const wanted = query.normalize().toLowerCase();
    const has = (name) => name.startsWith(wanted) || (wanted && name.includes(` ${wanted}`));
    return names.filter((name) => has(name.normalize().toLowerCase())).slice(0, MAX_SHOWN);
  }

  function update() {
    const text = field();
    if (!text || document.activeElement !== text || text.selectionStart !== text.selectionEnd) return hide();
    const at = mentionStart(text.value, text.selectionStart);
    if (at < 0) return hide();
    loadNames();
    const query = text.value.slice(at + 1, text.selectionStart);
    const found = query.startsWith(" ") ? [] : matches(query);
    if (!found.length) return hide();
    const shown = list();
    if (isOpen() && begin === at && shown.dataset.query === query) return;
    const wasOpen = isOpen();
    begin = at;
    active = 0;
    shown.dataset.query = query;
    shown.replaceChildren(...found.map((name, number) => {
      const option = document.createElement("li");
      option.id = `note-member-${number}`;
      option.setAttribute("role", "option");
      option.dir = "auto";
      option.textContent = name;
      return option;
    }));
    shown.hidden = false;
    mark();
    if (!wasOpen) window.Dispatch.say(T.plural("{count} colleague. Choose with the arrow keys and Enter.", "{count} colleagues. Choose with the arrow keys and Enter.", found.length));
  }

  function mark() {
    [...list().children].forEach((option, number) => option.setAttribute("aria-selected", String(number === active)));
    field().setAttribute("aria-activedescendant", `note-member-${active}`);
    list().children[active].scrollIntoView({ block: "nearest" });
  }

  function hide() {
    begin = -1;
    if (!list()) return;
    list().hidden = true;
    list().replaceChildren();
    field().removeAttribute("aria-activedescendant");
  }

  function choose(option) {
    const text = field();
    const rest = text.value.slice(text.selectionStart);
    text.setRangeText(`@${option.textContent}${/^\s/.test(rest) ? "" : " "}`, begin, text.selectionStart, "end");
    text.dispatchEvent(new Event("input", { bubbles: true }));
    text.focus();
    hide();
  }

  function pressed(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      hide();
      if (!event.repeat) document.getElementById("note-form").requestSubmit(document.getElementById("note-send"));
      return;
    }
    if (!isOpen() || event.ctrlKey || event.altKey || event.metaKey) return;
    const count = list().children.length;
    if (event.key === "ArrowDown") active = (active + 1) % count;
    else if (event.key === "ArrowUp") active = (active + count - 1) % count;
    else if ((event.key === "Enter" || event.key === "Tab") && !event.shiftKey) choose(list().children[active]);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
    if (isOpen()) mark();
  }

  document.addEventListener("keydown", (event) => { if (event.target.id === "note-text") pressed(event); }, true);
  document.addEventListener("input", (event) => { if (event.isTrusted && event.target.id === "note-text") update(); });
  document.addEventListener("click", (event) => { if (event.target.id === "note-text") update(); });
  document.addEventListener("focusin", (event) => { if (event.target.id === "note-text") loadNames(); });
  document.addEventListener("focusout", (event) => { if (event.target.id === "note-text") hide(); });
  /* Choosing with the pointer leaves the focus in the text. */
  document.addEventListener("mousedown", (event) => { if (event.target.closest?.("#note-members")) event.preventDefault(); });
  document.addEventListener("click", (event) => {
    const option = event.target.closest?.("#note-members [role=option]");
    if (option) choose(option);
  });

  /* Where the list was scrolled to before it changed. */
  let kept = null;
  const written = () => document.querySelector("#notes-list ol");
  document.addEventListener("DOMContentLoaded", () => { if (written()) written().scrollTop = written().scrollHeight; });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!["notes", "notes-list", "notes-more"].includes(event.detail.target?.id)) return;
    const { scrollTop: top, scrollHeight: height, clientHeight } = written();
    kept = { top, height, isAtEnd: top + clientHeight >= height - 8 };
  });

  /* Earlier notes were put above those that are being read. */
  function earlierShown() {
    written().scrollTop = kept.top + written().scrollHeight - kept.height;
    if (document.activeElement === document.body) written().focus({ preventScroll: true });
  }

  /* The list was replaced, or the whole section after a note was written. A reader of earlier notes stays there. */
  document.addEventListener("htmx:afterSettle", (event) => {
    const notes = document.getElementById("notes-list");
    const target = event.detail.target?.id;
    if (notes && target === "notes-more") return earlierShown();
    if (!notes || !["notes", "notes-list", "drawer-slot"].includes(target)) return;
    const isKept = target === "notes-list" && kept && !kept.isAtEnd;
    written().scrollTop = isKept ? kept.top : written().scrollHeight;
    const count = document.getElementById("notes-count");
    count.textContent = notes.dataset.count;
    count.hidden = notes.dataset.count === "0";
    if (!notes.hidden) notes.closest("details").open = true;
    if (event.detail.requestConfig?.verb === "post" && document.activeElement === document.body) field().focus();
  });
})();
