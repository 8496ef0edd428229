/* The timeline: keep the chart current, and drag jobs. The panel is in timeline_panel.js.

   A job dropped on a technician opens the form that assigns it; a bar moved or resized opens the form that corrects the
   arrival window or the duration. Warnings are shown before the drop. Nothing changes until the form is confirmed. */
(() => {
  "use strict";

  const D = window.Dispatch;
  const PAUSE_MS = 400;
  const EVERY_MS = 60000;
  const STEP_MIN = 15;
  const FAR_PX = 5;
  const SECOND = 1000;
  const CLOSE = 0.1; // percent of a day
  const UNKNOWN = { warnings: {}, others: "", limits: {} }; // nothing is known about any technician
  let page = null;
  let timer = 0;
  let fetching = false; // a refresh is in progress
  let drag = null; // the drag in progress
  let hours = null; // formats times of day
  let isCanceled = false; // the drag was canceled, and the pointer is still pressed
  const checks = new Map(); // job id → promise of its warnings

  function showNow() {
    const now = page.querySelector(".now");
    const rows = page.querySelector(".rows");
    if (now) rows.scrollLeft = now.offsetLeft - rows.clientWidth / 3;
  }

  /* --- keeping current ------------------------------------------------------------------------------------------------ */
  function refreshSoon() {
    if (timer || document.hidden) return;
    timer = setTimeout(refresh, PAUSE_MS);
  }

  async function refresh() {
    timer = 0;
    if (drag || fetching) return refreshSoon();
    fetching = true;
    const asked = D.panel.address({ job: "" });
    let html;
    try {
      const answer = await fetch(asked, { headers: { "HX-Request": "true" } });
      if (answer.headers.has("HX-Redirect")) {
        location.href = answer.headers.get("HX-Redirect");
        return;
      }
      if (!answer.ok) return; // the next refresh tries again
      html = await answer.text();
      await new Promise(window.whenLetGo); // a chart replaced during a press would lose the click
    } catch {
      return;
    } finally {
      fetching = false;
    }
    if (drag || asked !== D.panel.address({ job: "" })) return refreshSoon();
    checks.clear();
    const rows = page.querySelector(".rows");
    const list = page.querySelector(".tray ol");
    const at = [rows?.scrollLeft, rows?.scrollTop, list?.scrollTop, list?.scrollLeft];
    const had = document.activeElement?.closest?.("#chart a[data-open]")?.dataset.open;
    document.getElementById("chart").outerHTML = html;
    window.htmx.process(document.getElementById("chart"));
    const now = page.querySelector(".rows");
    if (now) [now.scrollLeft, now.scrollTop] = at;
    const tray = page.querySelector(".tray ol");
    if (tray) [tray.scrollTop, tray.scrollLeft] = at.slice(2);
    if (had) page.querySelector(`a[data-open="${had}"]`)?.focus({ preventScroll: true });
    D.panel.markOpen();
  }

  /* --- dragging ------------------------------------------------------------------------------------------------------- */
  function check(job) {
    if (!checks.has(job)) {
      checks.set(job, fetch(page.dataset.check.replace("/0/", `/${job}/`), { headers: { "HX-Request": "true" } })
        .then((answer) => (answer.ok ? answer.json() : UNKNOWN))
        .catch(() => UNKNOWN));
    }
    return checks.get(job);
  }

  function began(event) {
    const part = event.target.closest("[data-drag]");
    if (!part || event.button || event.pointerType === "touch" || D.state === "stale") return;
    const own = {
      part, job: part.dataset.drag, minutes: Number(part.dataset.minutes), x: event.clientX, y: event.clientY,
      resizes: Boolean(event.target.closest(".grip")), row: part.closest(".technician"), moved: false, found: null,
    };
    drag = own;
    check(own.job).then((found) => {
      own.found = found;
      own.shown = "";
      if (drag === own && own.last) follow();
    });
  }

  /* Follow the pointer once per frame: it may move more often than the screen is drawn. */
  function follow() {
    if (!drag.frame) drag.frame = requestAnimationFrame(catchUp);
  }

  function catchUp() {
    if (!drag?.frame) return;
    cancelAnimationFrame(drag.frame);
    drag.frame = 0;
    const { clientX, clientY, target: under } = drag.last;
    const target = drag.resizes ? drag.row : under.closest?.(".technician") || null;
    place(target, clientX);
    if (target !== drag.target) {
      drag.target?.classList.remove("is-target");
      target?.classList.add("is-target");
      drag.target = target;
    }
    drag.label.style.transform = `translate(${Math.min(clientX + 14, innerWidth - 310)}px, ${clientY + 14}px)`;
  }

  function moved(event) {
    if (!drag) return;
    if (!event.buttons) { // released outside of the window
      cancelDrag();
      isCanceled = false;
      return;
    }
    if (!drag.moved) {
      if (Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < FAR_PX) return;
      start();
    }
    event.preventDefault();
    drag.last = event;
    follow();
  }

  function start() {
    drag.moved = true;
    drag.part.classList.add("is-dragging");
    drag.label = document.createElement("div");
    drag.label.className = "dragged";
    drag.ghost = document.createElement("span");
    drag.ghost.className = "drop-at";
    document.body.append(drag.label);
    document.body.style.userSelect = "none";
  }

  /* Find the time under the pointer, show it, and say what speaks against the drop. Within the same step of time and
     the same row, nothing has to be said again. */
  function place(target, x) {
    drag.time = null;
    const words = [drag.part.dataset.words];
    let warning = "";
    let track = null;
    let span = null;
    if (target) {
      track = target.querySelector(".track");
      const box = track.getBoundingClientRect();
      const rows = target.closest(".rows");
      const [begin, end] = [Number(rows.dataset.begin), Number(rows.dataset.end)];
      const perPx = (end - begin) / box.width;
      const own = drag.part.dataset.start ? Number(drag.part.dataset.start) : null;
      const snap = (time) => Math.round(time / (STEP_MIN * 60)) * STEP_MIN * 60;
      if (drag.resizes) {
        drag.length = Math.max(STEP_MIN, Math.round((begin + (x - box.left) * perPx - own) / 60 / STEP_MIN) * STEP_MIN);
        drag.time = own;
      } else {
        drag.length = drag.minutes;
        drag.time = snap(own === null ? begin + (x - box.left) * perPx : own + (x - drag.x) * perPx);
      }
      span = [begin, end];
    }
    const shown = target ? `${target.dataset.technician} ${drag.time} ${drag.length}` : "none";
    if (shown === drag.shown) return;
    drag.shown = shown;
    if (!target) drag.ghost.remove();
    else {
      const [begin, end] = span;
      drag.ghost.style.setProperty("--l", `${((drag.time - begin) / (end - begin)) * 100}%`);
      drag.ghost.style.setProperty("--w", `${((drag.length * 60) / (end - begin)) * 100}%`);
      if (drag.ghost.parentElement !== track) track.append(drag.ghost);
      words.push(`\u2068${target.dataset.name}\u2069, ${clock(drag.time)}–${clock(drag.time + drag.length * 60)}`);
      warning = against(target, drag.time, drag.time + drag.length * 60);
    }
    drag.label.replaceChildren(...words.map((text, nth) => line(text, nth ? "" : "quiet")));
    if (target) drag.label.append(warning ? line(warning, "bad") : verdict(target));
  }

  function line(text, kind) {
    const one = document.createElement("span");
    one.className = kind;
    one.textContent = text;
    return one;
  }

  /* Say what is known if nothing speaks against the drop. Without the job's position, nobody was checked. */
  function verdict(target) {
    if (target !== drag.row && !drag.found) return line(T.get("Checking…"), "fine");
    const isChecked = target === drag.row || target.dataset.technician in drag.found.warnings;
    return isChecked ? line(T.get("Available"), "fine") : line(T.get("Not checked"), "quiet");
  }

  function against(target, begin, end) {
    const id = target.dataset.technician;
    const isOwn = target === drag.row;
    const said = [];
    if (!isOwn && "left" in target.dataset) said.push(T.get("deactivated"));
    else if (!isOwn && drag.found) {
      const known = drag.found.warnings[id];
      if (known) said.push(known);
      else if (known === undefined && drag.found.others) said.push(drag.found.others);
      const full = known ? "" : limitWords(drag.found.limits[id], begin, end);
      if (full) said.push(full);
    }
    for (const bar of target.querySelectorAll(".bar-job:not(.off)")) {
      if (bar === drag.part) continue;
      const from = Number(bar.dataset.start);
      if (from < end && from + Number(bar.dataset.minutes) * 60 > begin) said.push(T.get("overlaps {job}", { job: bar.dataset.words }));
    }
    const shifts = [...target.querySelectorAll(".shift")].map(percents);
    const [left, width] = percents(drag.ghost);
    if (shifts.length && !shifts.some(([from, length]) => from <= left + CLOSE && from + length >= left + width - CLOSE)) said.push(T.get("outside the shift"));
    const text = said.join(", ");
    return text && text[0].toUpperCase() + text.slice(1);
  }

  /* Say that the technician is at their limit at the time of the drop. Jobs without an arrival window always count. */
  function limitWords(workload, begin, end) {
    if (!workload) return "";
    const last = end + windowMinutes(drag) * 60 + workload.drive_s;
    const later = workload.planned.filter(([from, until]) => from > last || until < begin - workload.drive_s).length;
    const count = workload.open - later;
    return count >= workload.max ? T.plural("{open} of {count} open job at that time", "{open} of {count} open jobs at that time", workload.max, { open: count }) : "";
  }

  /* Where an element begins on its track, and how long it is. Reading it from the layout would compute that first. */
  function percents(element) { return ["--l", "--w"].map((name) => parseFloat(element.style.getPropertyValue(name))); }

  function clock(time) {
    hours ||= new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: page.dataset.zone });
    return hours.format(new Date(time * SECOND));
  }

  function day(time) {
    return new Date(time * SECOND).toLocaleDateString("en-CA", { year: "numeric", month: "2-digit", day: "2-digit", timeZone: page.dataset.zone });
  }

  function dropped() {
    catchUp();
    const done = drag;
    drag = null;
    if (isCanceled) swallowClick();
    isCanceled = false;
    if (!done?.moved) return;
    swallowClick();
    tidy(done);
    if (!done.target || done.time === null) return;
    if (done.resizes) D.panel.open(done.job, { act: "correct", query: `?expected_minutes=${done.length}` });
    else if (done.target !== done.row) {
      const window = isMoved(done) && !hasEnded(done) ? windowAt(done) : {};
      D.panel.open(done.job, { act: "assign", query: `?${new URLSearchParams({ technician: done.target.dataset.technician, ...window })}` });
    } else if (isMoved(done)) {
      D.panel.open(done.job, { act: "correct", query: `?${new URLSearchParams(windowAt(done))}` });
    }
  }

  /* A job from the tray has no time yet. */
  function isMoved(done) { return !done.part.dataset.start || Math.abs(done.time - Number(done.part.dataset.start)) >= STEP_MIN * 60; }

  function windowMinutes(done) { return Number(done.part.dataset.windowMinutes) || 60; }

  function hasEnded(done) { return (done.time + windowMinutes(done) * 60) * SECOND <= D.now(); }

  /* The arrival window that begins where the job was dropped. */
  function windowAt(done) {
    return { window_day: day(done.time), window_from: clock(done.time), window_until: clock(done.time + windowMinutes(done) * 60) };
  }

  /* Ignore the click that follows the release of a drag. */
  function swallowClick() {
    const swallow = (event) => { event.preventDefault(); event.stopPropagation(); };
    document.addEventListener("click", swallow, true);
    setTimeout(() => document.removeEventListener("click", swallow, true), 0);
  }

  function tidy(done) {
    done.part.classList.remove("is-dragging");
    done.target?.classList.remove("is-target");
    done.label?.remove();
    done.ghost?.remove();
    document.body.style.userSelect = "";
  }

  function cancelDrag() {
    if (!drag) return;
    cancelAnimationFrame(drag.frame);
    if (drag.moved) tidy(drag);
    isCanceled = drag.moved;
    drag = null;
  }

  /* --- events --------------------------------------------------------------------------------------------------------- */
  document.addEventListener("DOMContentLoaded", () => {
    page = document.getElementById("timeline");
    showNow();
    document.addEventListener("pointerdown", () => { isCanceled = false; }, true);
    page.addEventListener("pointerdown", began);
    document.addEventListener("pointermove", moved);
    document.addEventListener("pointerup", dropped);
    document.addEventListener("pointercancel", cancelDrag);
    document.addEventListener("keydown", (event) => {
      if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
      if (event.key === "Escape" && drag) return cancelDrag();
      if (event.key === "Escape") D.panel.goBack();
      if (event.key === "?" && D.stored("shortcuts", "1") === "1" && !event.target.closest("input, textarea, select")) document.getElementById("keys").showModal();
    });
    document.body.addEventListener("dispatch:events", (event) => {
      if (event.detail.some((one) => one.job || one.subject === "technician")) refreshSoon();
    });
    document.body.addEventListener("dispatch:refetch", refreshSoon);
    setInterval(() => { if (!document.hidden) refreshSoon(); }, EVERY_MS);
  });
})();
