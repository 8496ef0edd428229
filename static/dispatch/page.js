/* Shared by all pages: updating relative times, theme, copying phone numbers, closing menus, the shortcuts setting. */
(() => {
  "use strict";
  const D = window.Dispatch;
  const FIRST_PAUSE_MS = 2000;
  const LONGEST_PAUSE_MS = 15000;

  /* Wait before a request that failed is sent again: longer after each failure in a row, but not once the page is to be
     refetched, because the server may be reached again. */
  D.pauseAfter = (failures) => new Promise((go) => {
    const pause = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures) * (0.5 + Math.random());
    const timer = setTimeout(end, pause);
    function end() {
      clearTimeout(timer);
      document.body.removeEventListener("dispatch:refetch", end);
      go();
    }
    document.body.addEventListener("dispatch:refetch", end);
  });

  const theme = D.stored("theme", "");
  if (theme) document.documentElement.dataset.theme = theme;

  function span(seconds) {
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 86400) {
      const minutes = Math.floor((seconds % 3600) / 60);
      return `${Math.floor(seconds / 3600)} h` + (minutes ? ` ${minutes} min` : "");
    }
    return `${Math.floor(seconds / 86400)} d`;
  }

  function tick() {
    if (document.hidden) return;
    const now = D.now();
    for (const time of document.querySelectorAll("time[data-time]")) {
      const ms = Number(time.dataset.ms);
      let words;
      if (time.dataset.time === "left") {
        const left = Math.max(0, Math.floor((ms - now) / 1000));
        words = left < 3600 ? `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}` : span(left);
      } else {
        words = span(Math.max(0, Math.floor((now - ms) / 1000)));
        if (time.dataset.time === "ago") words = T.get("{span} ago", { span: words });
      }
      if (time.firstChild && time.firstChild.nodeValue !== words) time.firstChild.nodeValue = words;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const part of document.querySelectorAll("[data-needs-script]")) part.hidden = false;
    const choice = document.getElementById("theme");
    if (choice) {
      choice.value = theme;
      choice.addEventListener("change", () => {
        D.store("theme", choice.value);
        if (choice.value) document.documentElement.dataset.theme = choice.value;
        else delete document.documentElement.dataset.theme;
      });
    }
    const keys = document.getElementById("shortcuts");
    if (keys) {
      keys.checked = D.stored("shortcuts", "1") === "1";
      keys.addEventListener("change", () => D.store("shortcuts", keys.checked ? "1" : "0"));
    }
    /* On a phone the tabs can be wider than the screen: show the current one. */
    for (const tab of document.querySelectorAll(".menu [aria-current], .tabs [aria-current]")) {
      const bar = tab.parentElement;
      if (bar.scrollWidth > bar.clientWidth) bar.scrollLeft = tab.offsetLeft - (bar.clientWidth - tab.offsetWidth) / 2;
    }
    setInterval(tick, 1000);
    tick();
  });

  document.addEventListener("htmx:afterSettle", tick);

  /* Copying a phone number copies its E.164 form. */
  document.addEventListener("copy", (event) => {
    const selected = document.getSelection();
    const phone = selected?.anchorNode?.parentElement?.closest?.("[data-copy]");
    if (phone && phone.contains(selected.focusNode) && selected.toString().trim() === phone.textContent.trim()) {
      event.clipboardData.setData("text/plain", phone.dataset.copy);
      event.preventDefault();
    }
  });

  document.addEventListener("click", (event) => {
    for (const open of document.querySelectorAll("details.menu-box[open]")) if (!open.contains(event.target)) open.open = false;
  });
  /* A menu that stayed open would cover the control to which the focus has moved. */
  document.addEventListener("focusout", ({ target, relatedTarget }) => {
    const menu = relatedTarget && target.closest("details.menu-box[open]");
    if (menu && !menu.contains(relatedTarget)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (document.querySelector(":popover-open")) return event.stopImmediatePropagation(); // the browser closes it
    const open = document.querySelector("details.menu-box[open]");
    if (open) {
      open.open = false;
      open.querySelector("summary").focus();
      event.stopImmediatePropagation();
    }
  }, true);

  /* A hand-over note that is being written stays when the person goes off duty elsewhere: it can still be sent. Until it
     is sent or emptied, the button that opens it says so. */
  let former = null; // what the button said before

  function isWriting() { return Boolean(document.getElementById("handover-text")?.value.trim()); }

  function keepNote(event) {
    const { target, xhr, requestConfig: { verb } } = event.detail;
    if (target.id !== "duty") return;
    const button = target.querySelector("[popovertarget]");
    if (verb === "get" && xhr.status === 204 && former) { // the duty shown is the present one again
      button.replaceChildren(...former.parts);
      button.title = former.title;
      former = null;
      return;
    }
    if (verb !== "get" || !isWriting()) {
      if (event.detail.shouldSwap) former = null;
      return;
    }
    event.detail.shouldSwap = false;
    if (xhr.status === 200 && !former) { // another duty than the one shown
      former = { parts: [...button.childNodes], title: button.title };
      button.replaceChildren(T.get("Off duty: send your note"));
      button.title = "";
    }
  }

  document.addEventListener("htmx:beforeSwap", keepNote);
  document.addEventListener("toggle", ({ target, newState }) => {
    if (target.id === "end-shift" && newState === "closed" && former && !isWriting()) window.htmx.trigger("#duty", "refresh");
  }, true);

  /* htmx fires the events of a request on its element, which may have left the page meanwhile. */
  const RELAYED = ["htmx:beforeOnLoad", "htmx:responseError", "htmx:sendError", "dispatch:note", "dispatch:selected", "claimed"];
  function relay({ target, currentTarget, type, detail }) {
    if (target === currentTarget && !currentTarget.isConnected) document.body.dispatchEvent(new CustomEvent(type, { detail, bubbles: true }));
  }
  document.addEventListener("htmx:beforeSend", ({ detail: { elt } }) => { for (const type of RELAYED) elt.addEventListener(type, relay); });

  /* A request with `data-reads` sends a form to read something about it, and changes nothing. */
  function isRead({ verb, elt }) { return verb === "get" || elt.hasAttribute("data-reads"); }

  /* A part that refreshes itself will do so again, and the page shows whether it is up to date. */
  function isBackground({ verb, elt, triggeringEvent }) {
    return isRead({ verb, elt }) && elt !== document.body && (!triggeringEvent || triggeringEvent instanceof CustomEvent);
  }

  function report({ elt }, text) {
    const job = !elt.isConnected && elt.closest("#drawer")?.dataset.job; // the panel shows something else by now
    D.note(job ? `#${job}: ${text}` : text, "attention");
  }

  document.addEventListener("dispatch:note", (event) => D.note(event.detail.text, event.detail.tone));
  document.addEventListener("htmx:responseError", ({ detail: { xhr: { status }, requestConfig: asked } }) => {
    if (status >= 500 && isBackground(asked)) return;
    if (status === 403) report(asked, T.get("You don't have access, or this page has expired. Reload it and try again."));
    else if (status >= 500 && !isRead(asked)) report(asked, T.get("The server failed (error {status}). Check whether your change was saved before trying again.", { status }));
    else report(asked, T.get("That didn't work (error {status}). Nothing was changed. Try again.", { status }));
  });
  document.addEventListener("htmx:sendError", ({ detail: { requestConfig: asked } }) => {
    if (!isRead(asked)) report(asked, T.get("The server could not be reached. Check whether your change was saved before trying again."));
    else if (D.state === "live" && !isBackground(asked)) report(asked, T.get("The server could not be reached. Nothing was changed."));
  });
})();
