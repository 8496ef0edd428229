/* The service worker: shows push notifications, and a page that says so if there is no connection. It caches that page
   and its files only. */
"use strict";
const OFFLINE = {{ offline|safe }};
const KEPT = {{ kept|safe }};
const CACHE = {{ cache|safe }};
const ICON = {{ icon|safe }};
const RENEWAL = {{ renewal|safe }};
const STATE = "push-subscription";
const CLOSED_AFTER_MS = 8000;
const RETRIES_MS = [0, 5000, 30000];

self.addEventListener("install", (event) => {
  event.waitUntil(
    caches.open(CACHE).then((cache) => cache.addAll(KEPT.map((path) => new Request(path, { cache: "reload" }))))
      .then(() => self.skipWaiting()),
  );
});

self.addEventListener("activate", (event) => {
  event.waitUntil(forgetOthers().then(() => self.clients.claim()));
});

/* Delete what an earlier version kept, but not the subscription. */
async function forgetOthers() {
  for (const name of await caches.keys()) if (name !== CACHE && name !== STATE) await caches.delete(name);
}

/* --- Without a connection ------------------------------------------------------------------------------------------ */
self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET") return;
  if (request.mode === "navigate") {
    event.respondWith(fetch(request).catch(() => caches.match(OFFLINE, { cacheName: CACHE, ignoreVary: true }).then((page) => page || Response.error())));
    return;
  }
  const path = new URL(request.url);
  if (path.origin === self.location.origin && KEPT.includes(path.pathname) && path.pathname !== OFFLINE) {
    event.respondWith(fetch(request).catch(() => caches.match(request, { cacheName: CACHE, ignoreVary: true }).then((file) => file || Response.error())));
  }
});

/* --- Notifications ------------------------------------------------------------------------------------------------- */
self.addEventListener("push", (event) => {
  let message;
  try {
    message = event.data.json();
  } catch {
    return;
  }
  event.waitUntil(message.type === "close" ? close(message) : show(message));
});

function show(message) {
  const actions = message.actions || [];
  return self.registration.showNotification(message.title, {
    body: message.body,
    tag: message.tag,
    renotify: true,
    icon: ICON,
    badge: ICON,
    lang: message.lang,
    timestamp: message.at || Date.now(),
    requireInteraction: Boolean(message.stays),
    actions: actions.map(({ action, title }) => ({ action, title })),
    data: { url: message.url, urls: Object.fromEntries(actions.map(({ action, url }) => [action, url])) },
  });
}

/* Close the notification of an alert that has ended, or of what is gone. Browsers demand that a push shows something unless one of our pages
   is visible: then it becomes a silent note for a few seconds. */
async function close(message) {
  const shown = await self.registration.getNotifications({ tag: message.tag });
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  if (!pages.some((page) => page.visibilityState === "visible")) {
    await self.registration.showNotification(message.title, {
      body: message.body, tag: message.tag, silent: true, icon: ICON, badge: ICON, lang: message.lang,
      data: { url: message.url, urls: {} },
    });
    setTimeout(() => closeAll({ tag: message.tag }), CLOSED_AFTER_MS);
    return;
  }
  for (const one of shown) one.close();
}

async function closeAll(which) {
  for (const one of await self.registration.getNotifications(which)) one.close();
}

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const { url, urls } = event.notification.data || {};
  event.waitUntil(open((urls || {})[event.action] || url || "/"));
});

/* Open the page in a tab that is open already, else in a new one. */
async function open(path) {
  const url = new URL(path, self.location.origin);
  if (url.origin !== self.location.origin) return;
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const same = pages.find((page) => page.url === url.href);
  const technician = url.pathname.startsWith("/t/") || url.pathname.startsWith("/o/");
  const other = pages.find((page) => new URL(page.url).pathname.startsWith("/t/") === technician);
  try {
    if (same) {
      await same.focus();
      return;
    }
    if (other) {
      const focused = await other.focus();
      await (focused || other).navigate(url.href);
      return;
    }
  } catch { /* a page that this worker does not control: open a new one */ }
  await self.clients.openWindow(url.href);
}

/* --- The subscription ---------------------------------------------------------------------------------------------- */
/* The browser has another subscription, or none. Its push service knows the earlier one no longer. */
self.addEventListener("pushsubscriptionchange", (event) => {
  event.waitUntil(renew(event.oldSubscription && event.oldSubscription.toJSON(), event.newSubscription));
});

/* Keep what the server knows, since many browsers do not say which subscription has ended. */
async function remember(subscription) {
  await (await caches.open(STATE)).put(RENEWAL, new Response(JSON.stringify(subscription)));
}

async function remembered() {
  const kept = await caches.match(RENEWAL, { cacheName: STATE });
  return kept ? kept.json() : null;
}

/* Replace the earlier subscription on the server. It proves by its secret that it is this browser. */
async function renew(before, given) {
  const old = before || (await remembered());
  if (!old) return;
  for (const wait of RETRIES_MS) {
    await new Promise((done) => setTimeout(done, wait));
    try {
      const { key } = await (await fetch(RENEWAL, { credentials: "omit", cache: "no-store" })).json();
      const fresh = await subscribe(given || (await self.registration.pushManager.getSubscription()), key);
      const body = JSON.stringify({ before: old, subscription: fresh.toJSON() });
      const headers = { "Content-Type": "application/json" };
      const answer = await fetch(RENEWAL, { method: "POST", credentials: "omit", headers, body });
      if (answer.status === 404) return void (await caches.delete(STATE)); // the server has removed this browser
      if (!answer.ok) continue;
      await remember(fresh);
      const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
      for (const page of pages) page.postMessage({ type: "renewed" });
      return;
    } catch { /* no connection: again, and at the latest when a page is opened */ }
  }
}

async function subscribe(current, key) {
  const bytes = Uint8Array.from(atob(key.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
  const under = current?.options?.applicationServerKey;
  if (current && (!under || new Uint8Array(under).every((byte, at) => byte === bytes[at]))) return current;
  await current?.unsubscribe();
  return self.registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: bytes });
}

/* A page asks whether the subscription is still the one that the server knows. */
async function check() {
  const [old, current] = [await remembered(), await self.registration.pushManager.getSubscription()];
  if (old && old.endpoint !== current?.endpoint) await renew(old, current);
}

/* A page says what its user does. After a sign-out, nothing of theirs stays here. */
self.addEventListener("message", (event) => {
  const { type, subscription } = event.data || {};
  if (type === "signed-out") event.waitUntil(Promise.all([closeAll(), forgetOthers(), caches.delete(STATE)]));
  if (type === "turned-off") event.waitUntil(caches.delete(STATE));
  if (type === "turned-on") event.waitUntil(remember(subscription));
  if (type === "check") event.waitUntil(check());
});
