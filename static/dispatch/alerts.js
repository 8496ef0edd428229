/* What must be known now. Three levels: quiet (the page changes, no more), toast (shown for a moment), critical: stays until
   somebody has acknowledged it or its cause is gone, with sound, a desktop notification and a count in the title.

   The server's rows are the truth. Of a person's tabs in one browser only one makes a sound: the one that holds the
   lock. A browser allows sound only after a press: "Go on duty", "Test the sound", or any other one while on duty. */
(() => {
  "use strict";

  const REPEAT_MS = 60000;
  const TOAST_MS = 10000;
  const narrow = window.matchMedia("(width < 720px)");
  const LOCK = "dispatch-sound";
  const D = window.Dispatch;
  const title = document.title;
  const alerts = new Map(); // open critical ones, by id
  const elements = new Map();
  const sounded = new Map(); // id → when last
  let box = null;
  let unread = 0;
  let more = null;

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function shape(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "icon");
    svg.setAttribute("aria-hidden", "true");
    if (document.getElementById("i-" + name)) {
      const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
      use.setAttribute("href", "#i-" + name);
      svg.append(use);
    } else {
      svg.setAttribute("viewBox", "0 0 16 16");
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", name === "triangle" ? "M8 1 15.500 14.500H.5z" : "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2z");
      svg.append(path);
    }
    return svg;
  }

  async function post(path) {
    const answer = await fetch("/api/v1/notifications/" + path, {
      method: "POST",
      headers: {
        "X-CSRFToken": D.cookie("csrftoken"), "Content-Type": "application/json",
        "X-Organization": box.dataset.organization,
      },
      body: "{}",
    });
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    return answer.json();
  }

  /* --- the count in the title ---------------------------------------------------------------------------------- */
  async function count() {
    try {
      const answer = await fetch("/api/v1/notifications/summary/", { headers: { "X-Organization": box.dataset.organization } });
      if (!answer.ok) return;
      unread = (await answer.json()).unread;
    } catch { return; /* the connection's state says that it is gone */ }
    document.title = unread ? `(${unread}) ${title}` : title;
    const badge = document.getElementById("unread");
    if (badge) {
      badge.hidden = !unread;
      badge.textContent = String(unread);
    }
  }
  let counting = 0;
  function countSoon() {
    clearTimeout(counting);
    counting = setTimeout(count, 50);
  }

  /* --- what is shown -------------------------------------------------------------------------------------------- */
  function isOpen(row) {
    return row.level === "critical" ? !row.acknowledged_at && !row.settled_at : !row.read_at;
  }

  function remove(id) {
    const gone = elements.get(id);
    if (gone?.contains(document.activeElement)) (document.querySelector("#notices button") || document.getElementById("main"))?.focus();
    gone?.remove();
    elements.delete(id);
  }

  /* "Service · name · place": each in its own direction of writing. */
  function inParts(body) {
    const line = element("p");
    body.split(" · ").forEach((part, at) => line.append(at ? " · " : "", element("bdi", part)));
    return line;
  }

  function made(row) {
    const critical = row.level === "critical";
    const toast = element("article", "", "toast " + (critical ? "critical" : "calling"));
    toast.dataset.id = row.id;
    if (critical) toast.setAttribute("role", "alert");
    toast.append(shape(critical ? "triangle" : "dot"), element("strong", row.title));
    if (row.body) toast.append(inParts(row.body));
    const line = element("div", "", "row");
    const button = element("button", critical ? "Acknowledge" : "Mark as read", critical ? "button primary" : "button");
    button.type = "button";
    button.addEventListener("click", () => settle(row, button));
    line.append(button);
    if (row.page) {
      const link = element("a", row.subject_type === "job" ? "Open the job" : "Open it", "button plain");
      link.href = row.page;
      line.append(link);
    }
    toast.append(line);
    return toast;
  }

  async function settle(row, button) {
    button.disabled = true;
    try {
      changed(await post(`${row.id}/${row.level === "critical" ? "acknowledge" : "read"}/`));
    } catch (error) {
      button.disabled = false;
      button.textContent = `Not saved (${error.message}). Try again`;
    }
  }

  function arrange() { window.whenLetGo(place); }

  function place() {
    const open = [...alerts.values()].sort((a, b) => b.id - a.id);
    for (const [id] of elements) if (elements.get(id).classList.contains("critical") && !alerts.has(id)) remove(id);
    const most = open.length <= 2 && !narrow.matches ? 2 : 1;
    const hidden = open.slice(most);
    for (const row of hidden) remove(row.id);
    for (const row of open.slice(0, most).reverse()) {
      if (elements.has(row.id)) continue;
      const toast = made(row);
      elements.set(row.id, toast);
      box.prepend(toast);
    }
    more?.remove();
    more = null;
    if (hidden.length) {
      more = element("article", "", "toast critical");
      more.append(shape("triangle"), element("strong", `${hidden.length} more ${hidden.length === 1 ? "alert waits" : "alerts wait"} for somebody`));
      const line = element("div", "", "row");
      const all = element("button", `Acknowledge all ${open.length}`, "button");
      all.type = "button";
      all.addEventListener("click", async () => {
        all.disabled = true;
        for (const row of open) await settle(row, all);
      });
      line.append(all);
      more.append(line);
      box.append(more);
    }
  }

  function toast(row) {
    const shown = made(row);
    elements.set(row.id, shown);
    box.append(shown);
    let left = 0;
    const start = () => { left = setTimeout(() => window.whenLetGo(() => remove(row.id)), TOAST_MS); };
    for (const kind of ["pointerenter", "focusin"]) shown.addEventListener(kind, () => clearTimeout(left));
    for (const kind of ["pointerleave", "focusout"]) shown.addEventListener(kind, start);
    start();
  }

  /* A note of the page itself, such as "Job 12 was paused". */
  D.note = (text, tone = "good") => {
    const shown = element("article", "", "toast " + tone);
    const close = element("button", "", "button plain icon-only");
    close.type = "button";
    close.setAttribute("aria-label", "Close");
    close.append(shape("close"));
    close.addEventListener("click", () => shown.remove());
    shown.append(shape({ good: "check", late: "bar", attention: "triangle" }[tone] || "dot"), element("strong", text), close);
    window.whenLetGo(() => box.append(shown));
    setTimeout(() => window.whenLetGo(() => { if (!shown.matches(":hover, :focus-within")) shown.remove(); }), TOAST_MS);
    D.say(text);
  };

  /* The newest open alert is taken note of (the key x). */
  D.acknowledgeNewest = () => {
    const buttons = [...alerts.keys()].sort((a, b) => b - a).map((id) => elements.get(id)?.querySelector("button"));
    const button = buttons.find((one) => one && !one.disabled);
    button?.click();
    return Boolean(button);
  };

  function heard(row) {
    if (row.level === "critical") {
      if (isOpen(row)) {
        const known = alerts.has(row.id);
        alerts.set(row.id, row);
        if (!known) ring(row);
      } else alerts.delete(row.id);
      arrange();
    } else if (row.level === "toast" && isOpen(row) && !elements.has(row.id)) window.whenLetGo(() => toast(row));
    countSoon();
  }

  function changed(row) {
    if (row.level === "critical") {
      const taken = alerts.get(row.id);
      if (isOpen(row)) alerts.set(row.id, row);
      else alerts.delete(row.id);
      if (taken && !alerts.has(row.id)) D.say(row.settled_how || `${row.acknowledged_by || "Somebody"} acknowledged: ${row.title}`);
      arrange();
    } else if (!isOpen(row)) remove(row.id);
    countSoon();
  }

  D.on("welcome", (message) => {
    const now = new Set(message.alerts.map((row) => row.id));
    for (const id of [...alerts.keys()]) if (!now.has(id)) alerts.delete(id);
    for (const row of message.alerts) {
      const known = alerts.has(row.id);
      alerts.set(row.id, row);
      if (!known) ring(row);
    }
    arrange();
    countSoon();
  });
  D.on("notification", heard);
  D.on("changed", changed);
  D.on("repeat", (row) => { if (alerts.has(row.id)) ring(alerts.get(row.id), true); });

  /* --- sound: two notes, made here ------------------------------------------------------------------------------ */
  let audio = null;
  let holding = false;

  function unlock() {
    const Context = window.AudioContext || window.webkitAudioContext;
    if (!Context) return;
    audio = audio || new Context();
    if (audio.state === "suspended") audio.resume().then(sayState, () => {});
    takeTheLock();
    sayState();
  }

  function takeTheLock() {
    if (holding || D.waitsForLock) return;
    D.waitsForLock = true;
    if (navigator.locks) {
      navigator.locks.request(LOCK, () => new Promise(() => { holding = true; sayState(); }));
    } else leaseTheLock();
  }

  /* Without Web Locks (a page that is not on https): a lease in the storage that all tabs share. */
  function leaseTheLock() {
    const me = Math.random().toString(36).slice(2);
    const turn = () => {
      const [owner, until] = String(D.stored("sounding", "")).split("|");
      holding = owner === me || !(Number(until) > Date.now());
      if (holding) D.store("sounding", `${me}|${Date.now() + 5000}`);
      sayState();
    };
    turn();
    setInterval(turn, 2000);
    window.addEventListener("pagehide", () => { if (holding) D.store("sounding", ""); });
  }

  function muted() { return D.stored("mute", "") === "1"; }
  function volume() { return Math.min(100, Math.max(5, Number(D.stored("volume", "60")) || 60)) / 100; }
  function canSound() { return audio?.state === "running"; }

  function play() {
    if (!canSound()) return false;
    const start = audio.currentTime + 0.02;
    for (const [at, pitch] of [[0, 880], [0.18, 660], [0.5, 880], [0.68, 660]]) {
      const tone = audio.createOscillator();
      const loud = audio.createGain();
      tone.type = "triangle";
      tone.frequency.value = pitch;
      loud.gain.setValueAtTime(0.0001, start + at);
      loud.gain.exponentialRampToValueAtTime(volume(), start + at + 0.02);
      loud.gain.exponentialRampToValueAtTime(0.0001, start + at + 0.16);
      tone.connect(loud).connect(audio.destination);
      tone.start(start + at);
      tone.stop(start + at + 0.17);
    }
    return true;
  }

  function ring(row, again = false) {
    const last = sounded.get(row.id) || 0;
    if (Date.now() - last < REPEAT_MS / 3) return;
    sounded.set(row.id, Date.now());
    if (holding && !muted() && play()) document.documentElement.dataset.sounded = String(Number(document.documentElement.dataset.sounded || 0) + 1);
    if (!again && (document.hidden || !document.hasFocus())) desktop(row);
  }

  function desktop(row) {
    if (!("Notification" in window) || Notification.permission !== "granted") return;
    try {
      const shown = new Notification(row.title, { body: row.body, tag: "dispatch-" + row.event_id, requireInteraction: true });
      shown.onclick = () => {
        window.focus();
        shown.close();
        if (row.page) location.href = row.page;
      };
    } catch { /* a phone's browser wants a service worker for this */ }
  }

  function sayState() {
    const line = document.getElementById("sound-state");
    if (!line) return;
    line.textContent = !audio ? "The sound is locked until you press Go on duty or Test the sound."
      : !canSound() ? "The browser keeps the sound locked. Press Test the sound."
      : muted() ? "The sound is muted in this browser."
      : holding ? "Alerts sound in this tab." : "Another tab of yours makes the sound.";
    document.documentElement.dataset.sound = !canSound() ? "locked" : holding ? "here" : "elsewhere";
  }

  function askForDesktop() {
    if ("Notification" in window && Notification.permission === "default") Notification.requestPermission().then(sayDesktop, () => {});
  }

  function sayDesktop() {
    const button = document.getElementById("ask-desktop");
    if (!button) return;
    const permission = "Notification" in window ? Notification.permission : "denied";
    button.disabled = permission !== "default";
    button.textContent = { granted: "Desktop notifications are on", denied: "Desktop notifications are blocked" }[permission] || "Desktop notifications…";
  }

  document.addEventListener("DOMContentLoaded", () => {
    box = document.getElementById("notices");
    if (!box) return;
    new ResizeObserver(() => document.documentElement.style.setProperty("--alerts", `${box.offsetHeight}px`)).observe(box);
    const mute = document.getElementById("mute");
    const loudness = document.getElementById("volume");
    if (mute) {
      mute.checked = muted();
      mute.addEventListener("change", () => { D.store("mute", mute.checked ? "1" : ""); sayState(); });
    }
    if (loudness) {
      loudness.value = String(volume() * 100);
      loudness.addEventListener("change", () => D.store("volume", loudness.value));
    }
    document.getElementById("test-sound")?.addEventListener("click", () => {
      unlock();
      (audio?.state === "suspended" ? audio.resume() : Promise.resolve()).then(play, () => {});
    });
    document.getElementById("ask-desktop")?.addEventListener("click", askForDesktop);
    document.addEventListener("click", (event) => {
      const duty = event.target.closest("[data-duty]")?.dataset.duty;
      if (duty === "on") {
        unlock();
        askForDesktop();
      } else if (document.querySelector('[data-duty="off"]')) unlock(); // on duty already: any press will do
    }, true);
    sayState();
    sayDesktop();
    setInterval(() => { for (const row of alerts.values()) if (Date.now() - (sounded.get(row.id) || 0) >= REPEAT_MS) ring(row, true); }, 1000);
  });
})();
