/* Maintain the page's WebSocket and show whether the page is up to date.

   After connecting, the socket receives the events missed since the last one, then live updates (id, kind, subject).
   Each update triggers `dispatch:events` (detail: the new ones) and `changed:<subject>` on the body, and parts of the
   page refetch themselves; duplicates are dropped by id. After a gap, or when the tab becomes visible again,
   `dispatch:refetch` refetches everything. `Dispatch.on(type, listener)` subscribes to other message types.

   States: live, reconnecting, stale (disconnected for more than a moment: actions are disabled), closed (signed out,
   or no longer a member). */
(() => {
  "use strict";

  const FIRST_PAUSE_MS = 500;
  const MAX_PAUSE_MS = 15000;
  const PING_MS = 10000; // after this much silence, send a ping …
  const PATIENCE_MS = 6000; // … whose answer must arrive within this time
  const STALE_AFTER_MS = 5000;
  const MAX_SEEN = 2000;

  const root = document.documentElement;
  const listeners = new Map();
  const seen = new Set(); // ids of events received
  let socket = null;
  let state = "none";
  let pause = FIRST_PAUSE_MS;
  let retry = 0;
  let since = Number(root.dataset.since || 0); // the event id from which to catch up
  let lastNotification = 0;
  let lastHeard = Date.now();
  let pinged = 0;
  let connected = false; // at least once
  let offset = (parseFloat(root.dataset.now || "0") * 1000 || Date.now()) - Date.now(); // server's clock − ours

  const Dispatch = (window.Dispatch = {
    get state() { return state; },
    /* Current time in milliseconds on the server's clock. */
    now: () => Date.now() + offset,
    on(type, listener) {
      if (!listeners.has(type)) listeners.set(type, []);
      listeners.get(type).push(listener);
    },
    /* Announce a text to screen readers. While a dialog is open they know nothing outside it. */
    say(text) {
      const said = document.querySelector("dialog[open] [role=status]") || document.getElementById("said");
      if (said) said.textContent = text;
    },
    stored(name, fallback) {
      try { return localStorage.getItem("dispatch." + name) ?? fallback; } catch { return fallback; }
    },
    store(name, value) {
      try { localStorage.setItem("dispatch." + name, value); } catch { /* private window: kept for this page only */ }
    },
    cookie(name) {
      const cookie = document.cookie.split("; ").find((part) => part.startsWith(name + "="));
      return cookie ? decodeURIComponent(cookie.slice(name.length + 1)) : "";
    },
  });

  function notify(type, message) {
    for (const listener of listeners.get(type) || []) listener(message);
  }

  function emit(name, detail) {
    document.body.dispatchEvent(new CustomEvent(name, { detail }));
  }

  /* --- connection state on the page ------------------------------------------------------------------------------ */
  function show(next) {
    const before = state;
    const line = !document.getElementById("connection") && document.querySelector("#notices .state"); // admin page
    if (line) line.textContent = { reconnecting: T.get("Reconnecting. Alerts may be late."), stale: T.get("Reconnecting. Alerts may be late."),
      closed: T.get("Alerts stopped. You're signed out or no longer a member. Reload the page.") }[next] || "";
    state = next;
    root.dataset.live = next;
    const box = document.getElementById("connection");
    const box_words = { live: T.get("Live"), connecting: T.get("Connecting"), reconnecting: T.get("Reconnecting"), stale: T.get("Offline"),
      closed: T.get("Signed out or no longer a member. Reload the page.") };
    if (box) {
      box.dataset.state = next === "connecting" ? "reconnecting" : next;
      if (before !== next) {
        box.replaceChildren(Object.assign(document.createElement("span"), { textContent: box_words[next] }));
        if (next === "stale") {
          const ticking = document.createElement("span");
          ticking.className = "figure";
          ticking.setAttribute("aria-hidden", "true"); // screen readers announce the word once, never the seconds
          box.append(ticking);
        }
      }
      if (next === "stale") {
        const gone = Math.floor((Date.now() - lastHeard) / 1000);
        box.lastChild.textContent = String(Math.floor(gone / 60)).padStart(2, "0") + ":" + String(gone % 60).padStart(2, "0");
      }
    }
    if (before !== next) {
      markActs();
      notify("state", { before, state: next });
    }
  }

  function untrusted() { return state === "stale" || state === "closed"; }

  function markActs() {
    for (const control of document.querySelectorAll("[data-acts]")) {
      if (untrusted()) control.setAttribute("aria-disabled", "true");
      else if (control.dataset.acts !== "off") control.removeAttribute("aria-disabled");
    }
  }

  function refuse(event) {
    if (!untrusted()) return;
    const acts = event.target.closest?.("[data-acts], form[data-acts]") || event.submitter?.closest("[data-acts]");
    if (!acts) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const show = Dispatch.note || Dispatch.say;
    show(T.get("You're offline. Nothing was sent. Try again when the connection is back."), "late");
  }

  /* --- the connection ------------------------------------------------------------------------------------------ */
  function connect() {
    clearTimeout(retry);
    const here = new URL(location.href);
    const address = new URL("/ws/", here);
    address.protocol = here.protocol === "https:" ? "wss:" : "ws:";
    address.searchParams.set("organization", document.getElementById("notices").dataset.organization);
    address.searchParams.set("language", root.lang);
    if (lastNotification) address.searchParams.set("last_event_id", lastNotification);
    if (since) address.searchParams.set("since", since);
    const mine = new WebSocket(address);
    socket = mine;
    let opened = false;
    mine.addEventListener("open", () => { opened = true; lastHeard = Date.now(); });
    mine.addEventListener("message", (event) => { if (mine === socket) hear(JSON.parse(event.data)); });
    mine.addEventListener("close", (event) => { if (mine === socket) lost(event.code, opened); });
  }

  function lost(code, opened) {
    socket = null;
    if (code === 4401 || code === 4403) return close();
    if (state !== "stale") show("reconnecting");
    retry = setTimeout(connect, pause * (0.5 + Math.random()));
    pause = Math.min(pause * 2, MAX_PAUSE_MS);
    if (!opened && code === 1006) askWhetherSignedIn();
  }

  function close() {
    clearTimeout(retry);
    show("closed");
  }

  /* A refused socket looks the same as an unreachable server; a plain request tells them apart. */
  async function askWhetherSignedIn() {
    const health = document.getElementById("health");
    if (!health) return;
    try {
      const answer = await fetch(health.getAttribute("hx-get"), { headers: { "HX-Request": "true" } });
      if (answer.headers.has("HX-Redirect") || answer.status === 403) close();
    } catch { /* server unreachable */ }
  }

  function hear(message) {
    lastHeard = Date.now();
    pinged = 0;
    if (typeof message.now === "number") offset = message.now - Date.now();
    if (message.type === "welcome") {
      agree(message);
      pause = FIRST_PAUSE_MS;
      const again = connected;
      connected = true;
      show("live");
      notify("welcome", message);
      if (again) emit("dispatch:refetch", { why: "reconnected" });
      return;
    }
    if (typeof message.floor === "number") since = Math.max(since, message.floor);
    if (message.type === "events") return happened(message.items);
    if (message.type === "refetch") return emit("dispatch:refetch", { why: "missed" });
    if (message.type === "notification") {
      if (message.id <= lastNotification) return;
      lastNotification = message.id;
    }
    notify(message.type, message);
  }

  /* Continue from the server's ids. Lower ones than before are those of a restored database, and are used again. */
  function agree(welcome) {
    if (welcome.floor < since) seen.clear();
    since = welcome.floor;
    if (!lastNotification || welcome.last_event_id < lastNotification) lastNotification = welcome.last_event_id;
  }

  function happened(items) {
    const fresh = items.filter((item) => !seen.has(item.id));
    if (!fresh.length) return;
    for (const item of fresh) seen.add(item.id);
    while (seen.size > MAX_SEEN) seen.delete(seen.values().next().value);
    emit("dispatch:events", fresh);
    for (const subject of new Set(fresh.map((item) => item.subject))) emit("changed:" + subject, {});
  }

  function watch() {
    if (state === "closed") return;
    const silent = Date.now() - lastHeard;
    if (socket?.readyState === WebSocket.OPEN) {
      if (pinged && Date.now() - pinged > PATIENCE_MS) {
        const dead = socket;
        socket = null;
        dead.close();
        lost(1006, true);
      } else if (!pinged && silent > PING_MS) {
        pinged = Date.now();
        socket.send('{"type":"ping"}');
      }
    } else if (silent > STALE_AFTER_MS && (connected || silent > 2 * STALE_AFTER_MS)) {
      show("stale");
    }
    if (state === "stale") show("stale");
  }

  /* The tab is visible again: check the socket and refetch, even if it seems connected. */
  function lookedAt() {
    if (document.visibilityState !== "visible" || state === "closed") return;
    if (socket?.readyState === WebSocket.OPEN) {
      pinged = pinged || Date.now();
      socket.send('{"type":"ping"}');
    } else if (socket?.readyState !== WebSocket.CONNECTING) {
      pause = FIRST_PAUSE_MS;
      connect();
    }
    emit("dispatch:refetch", { why: "looked at" });
  }

  document.addEventListener("DOMContentLoaded", () => {
    if (!document.getElementById("notices")) return; // user without an organization
    if (!document.getElementById("connection")) {
      const line = Object.assign(document.createElement("div"), { className: "state" });
      line.setAttribute("role", "status");
      document.getElementById("notices").append(line);
    }
    show("connecting");
    connect();
    setInterval(watch, 1000);
    document.addEventListener("visibilitychange", lookedAt);
    window.addEventListener("online", lookedAt);
    window.addEventListener("pageshow", (event) => { if (event.persisted) lookedAt(); });
    for (const kind of ["click", "submit"]) document.addEventListener(kind, refuse, true);
    document.addEventListener("htmx:afterSettle", () => { if (untrusted()) markActs(); });
  });
})();
