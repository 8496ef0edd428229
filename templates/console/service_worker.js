/* The service worker: shows push notifications, and a page that says so if there is no connection. It caches that page
   and its files only. */
"use strict";
const OFFLINE = {{ offline|safe }};
const KEPT = {{ kept|safe }};
const CACHE = {{ cache|safe }};
const ICON = {{ icon|safe }};
const CLOSED_AFTER_MS = 8000;

self.addEventListener("install", (event) => {
  event.waitUntil(
    caches.open(CACHE).then((cache) => cache.addAll(KEPT.map((path) => new Request(path, { cache: "reload" }))))
      .then(() => self.skipWaiting()),
  );
});

self.addEventListener("activate", (event) => {
  event.waitUntil(forgetOthers().then(() => self.clients.claim()));
});

/* Delete what an earlier version kept. */
async function forgetOthers() {
  for (const name of await caches.keys()) if (name !== CACHE) await caches.delete(name);
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

/* Close the notification of an alert that has ended. Browsers demand that a push shows something unless one of our pages
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

/* A page says that its user signs out: nothing of theirs stays here. */
self.addEventListener("message", (event) => {
  if (event.data?.type === "signed-out") event.waitUntil(Promise.all([closeAll(), forgetOthers()]));
});
