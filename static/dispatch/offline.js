/* The page without a connection: ask whether the server answers again, and then load the page that was wanted. */
"use strict";
(() => {
  const line = document.getElementById("retry");
  const EVERY_MS = 5000;
  let trying = false;

  async function retry() {
    if (trying) return;
    trying = true;
    line.textContent = line.dataset.trying;
    try {
      // Not a navigation, so that the service worker does not answer it. Any answer will do.
      await fetch("/service-worker.js", { method: "HEAD", cache: "no-store" });
      location.reload();
    } catch {
      line.textContent = line.dataset.waiting;
    } finally {
      trying = false;
    }
  }

  document.getElementById("try-again").addEventListener("click", retry);
  window.addEventListener("online", retry);
  setInterval(() => { if (!document.hidden) retry(); }, EVERY_MS);
})();
