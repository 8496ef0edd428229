/* Show notifications of three levels: quiet (only the page changes), toast (shown for a moment) and critical (stays until
   someone acknowledges it or its cause is resolved, with sound, a desktop notification and a count in the title).

   The server's rows are authoritative. Of a user's tabs in one browser, only the one that holds the lock plays sound.
   Browsers allow sound only after a click: "Go on duty", "Test sound", or any click while on duty. */
(() => {
  "use strict";

  const REPEAT_MS = 60000;
  const TOAST_MS = 10000;
  const MOST_TOASTS = 3;
  const TOGETHER_MS = 500; // what arrives within this time is announced once
  const LOCK = "dispatch-sound";
  /* In English as the server writes exact times: "Mon, Dec 7, 2026, 09:00:00 MST". */
  const EXACT = { weekday: "short", year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short" };
  const D = window.Dispatch;
  const title = document.title;
  const alerts = new Map(); // open critical ones, by id
  const elements = new Map(); // toasts, by the ids of their notifications
  const sounded = new Map(); // id → when last
  const asked = new Set(); // those this page has acknowledged or marked as read
  let box = null;
  let bar = null; // the alert bar, and whether it lists all alerts
  let listed = false;
  let arranging = 0; // timers
  let announcing = 0;
  const fresh = new Set(); // toasts that are to be announced
  let unread = 0;

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
        "Accept-Language": document.documentElement.lang,
        "X-Organization": box.dataset.organization,
      },
      body: "{}",
    });
    if (!answer.ok) throw Object.assign(new Error("HTTP " + answer.status), { status: answer.status });
    return answer.json();
  }

  /* --- the count in the title ---------------------------------------------------------------------------------- */
  async function count() {
    try {
      const answer = await fetch("/api/v1/notifications/summary/", { headers: { "X-Organization": box.dataset.organization } });
      if (!answer.ok) return;
      unread = (await answer.json()).unread;
    } catch { return; /* the connection state shows the outage */ }
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

  /* --- toasts and the alert bar -------------------------------------------------------------------------------------------- */
  function isOpen(row) {
    return row.level === "critical" ? !row.acknowledged_at && !row.settled_at : !row.read_at;
  }

  /* Take a notification off its toast, and the toast away with the last one. */
  function remove(id) {
    const shown = elements.get(id);
    elements.delete(id);
    if (!shown) return;
    shown.rows.delete(id);
    if (shown.rows.size) fill(shown);
    else close(shown);
  }

  function close(shown) {
    for (const id of shown.rows.keys()) elements.delete(id);
    const focused = shown.contains(document.activeElement);
    shown.remove();
    if (focused) (document.querySelector("#alert-bar button, #notices button") || document.getElementById("main"))?.focus();
  }

  /* "Service · name · place": isolate the writing direction of each part. */
  function inParts(body) {
    const line = element("p");
    body.split(" · ").forEach((part, at) => line.append(at ? " · " : "", element("bdi", part)));
    return line;
  }

  function made(row) {
    const toast = element("article", "", "toast calling");
    toast.rows = new Map([[row.id, row]]);
    const button = element("button", "", "button");
    button.type = "button";
    button.addEventListener("click", () => once(button, async () => { for (const one of [...toast.rows.values()]) await settle(one, button); }));
    const line = element("div", "", "row");
    line.append(button, element("a", "", "button plain"));
    toast.append(shape("dot"), element("strong"), element("p"), line);
    fill(toast);
    return toast;
  }

  /* Several notifications of one kind share a toast: what happened, how often, and the latest. */
  function fill(toast) {
    const rows = [...toast.rows.values()];
    const row = rows.at(-1);
    const count = rows.length;
    const one = count === 1;
    toast.dataset.kind = row.kind;
    toast.querySelector("strong").textContent = one ? row.title : T.get("{kind}: {count} times", { kind: row.kind_label, count });
    const details = one ? inParts(row.body) : element("p", T.get("Latest: {title}", { title: row.title }));
    details.hidden = !details.textContent;
    toast.querySelector("p").replaceWith(details);
    const button = toast.querySelector("button");
    button.textContent = one ? T.get("Mark as read") : T.get("Mark {count} as read", { count });
    button.setAttribute("aria-label", `${button.textContent}: ${one ? row.title : row.kind_label}`);
    const link = toast.querySelector("a");
    link.textContent = !one ? T.get("Show all") : row.subject_type === "job" ? T.get("Open job") : T.get("Open");
    link.href = one ? row.page : box.dataset.all;
    link.hidden = !link.getAttribute("href");
  }

  /* Do nothing while the button's former press is under way. The button keeps the focus; a disabled one would lose it. */
  async function once(button, act) {
    if (button.hasAttribute("aria-disabled")) return;
    button.setAttribute("aria-disabled", "true");
    await act();
    button.removeAttribute("aria-disabled");
  }

  async function settle(row, button) {
    asked.add(row.id);
    try {
      changed(await post(`${row.id}/${row.level === "critical" ? "acknowledge" : "read"}/`));
    } catch (error) {
      asked.delete(row.id);
      /* The browser's words for a lost connection differ, and are not in the page's language. */
      const words = error.status ? T.get("Not saved ({error}). Try again", { error: error.message }) : T.get("Not saved: the server could not be reached. Try again");
      button.textContent = words;
      button.removeAttribute("aria-label");
      D.say(words);
    }
  }

  function arrange() {
    clearTimeout(arranging);
    arranging = 0;
    window.whenLetGo(place);
  }

  /* The alerts of a burst change the bar, and are announced, together. */
  function arrangeSoon() { arranging = arranging || setTimeout(arrange, TOGETHER_MS); }

  /* One bar in the page flow for any number of alerts, so that it covers nothing. */
  function place() {
    const open = inOrder();
    const ids = open.map((row) => row.id).join();
    if (bar.dataset.ids === ids) return;
    const had = bar.contains(document.activeElement) ? document.activeElement.dataset.of || "oldest" : "";
    bar.dataset.ids = ids;
    bar.hidden = !open.length;
    const rest = open.filter((row) => !isOutage(row));
    const groups = new Map(open.filter(isOutage).map((row) => [`outage-${row.id}`, [row]]));
    if (rest.length) groups.set("rest", rest);
    const parts = new Map();
    for (const part of [...bar.children]) {
      if (groups.has(part.dataset.part)) parts.set(part.dataset.part, part);
      else part.remove();
    }
    let next = bar.firstElementChild;
    for (const [name, rows] of groups) {
      const part = parts.get(name) || emptyPart(name);
      fillPart(part, rows);
      if (part === next) next = part.nextElementSibling;
      else bar.insertBefore(part, next);
    }
    if (listed) bar.append(list(rest));
    if (had) (bar.querySelector(`[data-of="${had}"]`) || bar.querySelector("button") || document.getElementById("main"))?.focus();
    sayAges();
  }

  /* When the customer sent the request; for other alerts, when the event was recorded. */
  function since(row) { return row.asked_at || row.created_at; }

  /* Why nobody can be called: the cause of other alerts, so it is shown separately, above them. */
  function isOutage(row) { return row.kind === "account.outage_began"; }

  /* What the bar says of an outage, or of all other alerts. Its `role="alert"` stays, because a screen reader announces
     each new one, and holds no age, because that changes every minute. */
  function emptyPart(name) {
    const part = element("div", "", "alert-part");
    part.dataset.part = name;
    const words = element("div", "", "alert-words");
    words.setAttribute("role", "alert");
    words.append(shape("triangle"), element("strong"));
    const line = element("div", "", "alert-line");
    line.append(words, element("span", "", "alert-age small quiet"));
    part.append(line, element("div", "", "row"));
    part.rows = new Set();
    return part;
  }

  function fillPart(part, open) {
    const [oldest] = open;
    const one = open.length === 1;
    const jobs = open.every((row) => row.subject_type === "job");
    const title = one ? oldest.title : jobs ? T.get("{count} jobs need a dispatcher", { count: open.length }) : T.get("{count} alerts need attention", { count: open.length });
    const said = one ? `${title}\n${oldest.body}` : title;
    if (part.said !== said) sayPart(part, said, title, one ? oldest.body : "", open.some((row) => !part.rows.has(row.id)));
    part.rows = new Set(open.map((row) => row.id));
    part.querySelector(".alert-age").replaceChildren(one ? "" : T.get("oldest") + " ", ageOf(oldest));
    const acts = [acknowledging(oldest, one ? T.get("Acknowledge") : T.get("Acknowledge oldest"), "button", isOutage(oldest) ? `ack-${oldest.id}` : "oldest")];
    if (oldest.page) acts.push(opening(oldest, one ? (jobs ? T.get("Open job") : T.get("Open")) : T.get("Open oldest")));
    if (!one) {
      const all = element("button", listed ? T.get("Hide list") : T.get("Show all {count}", { count: open.length }), "button plain");
      all.type = "button";
      all.dataset.of = "all";
      all.setAttribute("aria-expanded", String(listed));
      all.addEventListener("click", () => { listed = !listed; bar.dataset.ids = ""; place(); });
      acts.push(all);
    }
    part.querySelector(".row").replaceChildren(...acts);
  }

  /* Screen readers announce what is new, not that an alert has ended: another announcement says who acknowledged it. */
  function sayPart(part, said, title, body, isNew) {
    const words = part.querySelector(".alert-words");
    words.setAttribute("aria-live", isNew ? "assertive" : "off");
    words.querySelector("strong").textContent = title;
    words.querySelector("p")?.remove();
    if (body) words.append(inParts(body));
    part.said = said;
    if (isNew && (bar.inert || document.querySelector("dialog[open]"))) D.say(title); // a sheet or a dialog covers the bar
  }

  function list(open) {
    const rows = element("ol", "", "alert-list");
    for (const row of open) {
      const item = element("li");
      const words = element("div", "", "words");
      words.append(element("strong", row.title));
      if (row.body) words.append(inParts(row.body));
      item.append(words, ageOf(row), acknowledging(row, T.get("Acknowledge"), "button", `ack-${row.id}`));
      if (row.page) item.append(opening(row, T.get("Open")));
      rows.append(item);
    }
    const last = element("li", "", "all");
    const all = element("button", T.get("Acknowledge all {count}", { count: open.length }), "button");
    all.type = "button";
    all.dataset.of = "ack-all";
    all.addEventListener("click", () => {
      if (!all.dataset.sure) {
        all.dataset.sure = "1";
        all.textContent = T.get("Press again to acknowledge {count} alerts", { count: open.length });
        return;
      }
      once(all, async () => { for (const row of open) await settle(row, all); });
    });
    last.append(all);
    rows.append(last);
    return rows;
  }

  function acknowledging(row, words, className, of) {
    const button = element("button", words, className);
    button.type = "button";
    button.dataset.of = of;
    button.addEventListener("click", () => once(button, () => settle(row, button)));
    return button;
  }

  function opening(row, words) {
    const link = element("a", words, "button plain");
    link.href = row.page;
    link.setAttribute("aria-label", `${words}: ${row.title}`);
    return link;
  }

  function ageOf(row) {
    const time = element("time", "", "small");
    time.dateTime = since(row);
    time.title = exact(new Date(since(row)));
    return time;
  }

  /* The server may know a zone that the browser does not. */
  function exact(moment) {
    try {
      return moment.toLocaleString(document.documentElement.lang, { ...EXACT, timeZone: box.dataset.zone });
    } catch {
      return moment.toISOString();
    }
  }

  function sayAges() {
    for (const time of bar.querySelectorAll("time")) {
      const minutes = Math.max(0, Math.floor((D.now() - Date.parse(time.dateTime)) / 60000));
      const words = minutes < 1 ? T.get("just now") : minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
      if (time.textContent !== words) time.textContent = words;
    }
  }

  /* Show a toast for a while; a hovered or focused one stays until hover and focus end. */
  function show(shown, gone) {
    const rest = [...box.querySelectorAll(".toast")];
    for (const old of rest.slice(0, Math.max(0, rest.length - MOST_TOASTS + 1))) old.dispatchEvent(new Event("expire"));
    let left = 0;
    const end = () => window.whenLetGo(() => { if (shown.matches(":hover, :focus-within")) start(); else gone(); });
    const start = () => { clearTimeout(left); left = setTimeout(end, TOAST_MS); };
    for (const kind of ["pointerenter", "focusin"]) shown.addEventListener(kind, () => clearTimeout(left));
    for (const kind of ["pointerleave", "focusout"]) shown.addEventListener(kind, start);
    shown.addEventListener("renewed", start);
    shown.addEventListener("expire", gone);
    box.append(shown);
    start();
  }

  function toast(row) {
    const old = elements.get(row.id) || [...box.querySelectorAll(".toast")].find((shown) => shown.dataset.kind === row.kind);
    const shown = old || made(row);
    elements.set(row.id, shown);
    if (old) {
      shown.rows.delete(row.id); // the latest is last
      shown.rows.set(row.id, row);
      fill(shown);
      shown.dispatchEvent(new Event("renewed"));
    } else show(shown, () => close(shown));
    return shown;
  }

  /* Say what has arrived as toasts: they are gone before a screen reader could find them. */
  function announce(shown) {
    fresh.add(shown);
    announcing = announcing || setTimeout(() => {
      announcing = 0;
      D.say([...fresh].filter((one) => one.isConnected).map((one) => one.querySelector("strong").textContent).join(". "));
      fresh.clear();
    }, TOGETHER_MS);
  }

  /* Show a toast from the page itself, such as "Job 12 was paused". */
  D.note = (text, tone = "good") => {
    const shown = element("article", "", "toast " + tone);
    const close = element("button", "", "button plain icon-only");
    close.type = "button";
    close.setAttribute("aria-label", T.get("Close"));
    close.append(shape("close"));
    close.addEventListener("click", () => shown.remove());
    shown.append(shape({ good: "check", late: "bar", attention: "triangle" }[tone] || "dot"), element("strong", text), close);
    window.whenLetGo(() => show(shown, () => shown.remove()));
    D.say(text);
  };

  function inOrder() {
    return [...alerts.values()].sort((a, b) => Date.parse(since(a)) - Date.parse(since(b)) || a.id - b.id);
  }

  /* Acknowledge the oldest open alert (key x); pressed again, the next one. */
  D.acknowledgeOldest = () => {
    const row = inOrder().find((one) => !asked.has(one.id));
    if (row) settle(row, bar.querySelector(`[data-of="ack-${row.id}"]`) || bar.querySelector('[data-of="oldest"]'));
    return Boolean(row);
  };

  function heard(row) {
    if (row.level === "critical") {
      if (isOpen(row)) {
        const known = alerts.has(row.id);
        alerts.set(row.id, row);
        if (!known) ring(row);
        arrangeSoon();
      } else {
        alerts.delete(row.id);
        arrange();
      }
    } else if (row.level === "toast" && isOpen(row) && !elements.has(row.id)) window.whenLetGo(() => announce(toast(row)));
    countSoon();
  }

  function changed(row) {
    if (row.level === "critical") {
      const taken = alerts.get(row.id);
      if (isOpen(row)) {
        alerts.set(row.id, row);
        if (!taken) asked.delete(row.id); // it has opened again
      } else alerts.delete(row.id);
      if (taken && !alerts.has(row.id)) D.say(row.settled_how || T.get("{person} acknowledged: {title}", { person: row.acknowledged_by || T.get("Someone"), title: row.title }));
      arrange();
    } else if (!isOpen(row)) remove(row.id);
    else if (row.level === "toast" && !row.settled_at) window.whenLetGo(() => toast(row));
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
  D.on("repeat", (row) => {
    if (!alerts.has(row.id)) changed(row); // it has opened again, and that message was lost
    if (alerts.has(row.id)) ring(alerts.get(row.id), true);
  });

  /* --- sound: two synthesized tones ------------------------------------------------------------------------------ */
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

  /* Without Web Locks (page not on https): a lease in localStorage, which all tabs share. */
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
    if (!("Notification" in window) || Notification.permission !== "granted" || D.stored("push", "") === "1") return;
    try {
      const shown = new Notification(row.title, { body: row.body, tag: "dispatch-" + row.event_id, requireInteraction: true });
      shown.onclick = () => {
        window.focus();
        shown.close();
        if (row.page) location.href = row.page;
      };
    } catch { /* mobile browsers require a service worker */ }
  }

  function sayState() {
    const line = document.getElementById("sound-state");
    if (!line) return;
    line.textContent = !audio ? T.get("Sound is off until you click anywhere while on duty, or click Test sound.")
      : !canSound() ? T.get("Your browser is blocking sound. Click Test sound.")
      : muted() ? T.get("Sound is muted in this browser.")
      : holding ? T.get("Alerts play sound in this tab.") : T.get("Alerts play sound in another tab.");
    document.documentElement.dataset.sound = !canSound() ? "locked" : holding ? "here" : "elsewhere";
  }

  function askForDesktop() {
    if ("Notification" in window && Notification.permission === "default") Notification.requestPermission().then(sayDesktop, () => {});
  }

  /* Show a desktop notification as an alert would. Mobile browsers let only a service worker show one. */
  async function testDesktop() {
    const options = { body: T.get("Alerts look like this while Dispatch is in the background."), tag: "dispatch-test" };
    try {
      new Notification(T.get("Test notification"), options);
    } catch {
      const worker = await navigator.serviceWorker?.getRegistration();
      if (worker) worker.showNotification(T.get("Test notification"), options);
      else D.note(T.get("This browser shows notifications only after push is turned on in Notification settings."), "late");
    }
  }

  function sayDesktop() {
    const button = document.getElementById("ask-desktop");
    if (!button) return;
    const permission = "Notification" in window ? Notification.permission : "denied";
    button.disabled = permission === "denied";
    button.textContent = { granted: T.get("Test desktop notification"), denied: T.get("Desktop notifications are blocked by your browser") }[permission] || T.get("Turn on desktop notifications…");
  }

  document.addEventListener("DOMContentLoaded", () => {
    box = document.getElementById("notices");
    if (!box) return;
    bar = document.getElementById("alert-bar") || box.appendChild(element("section", "", "alert-bar"));
    setInterval(sayAges, 15000);
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
    document.getElementById("ask-desktop")?.addEventListener("click", () => {
      if ("Notification" in window && Notification.permission === "granted") testDesktop();
      else askForDesktop();
    });
    document.addEventListener("click", (event) => {
      const duty = event.target.closest("[data-duty]")?.dataset.duty;
      if (duty === "on") {
        unlock();
        askForDesktop();
      } else if (document.querySelector('[data-duty="off"]')) unlock(); // on duty already: any click unlocks sound
    }, true);
    sayState();
    sayDesktop();
    setInterval(() => { for (const row of alerts.values()) if (Date.now() - (sounded.get(row.id) || 0) >= REPEAT_MS) ring(row, true); }, 1000);
  });
})();
