/* The filters of the board. A request that failed is sent again until one succeeds, more and more rarely: otherwise a
   search would stand above the lists of all jobs. */
(() => {
  "use strict";

  const D = window.Dispatch;
  const RETRY_MS = 2000;
  const LONGEST_RETRY_MS = 15000;
  let failures = 0;
  let retry = 0;

  function sendAgain() {
    clearTimeout(retry);
    retry = 0;
    if (failures) window.htmx.trigger("#filters", "submit");
  }

  function failed({ detail: { requestConfig: { elt }, xhr } }) {
    if (elt.id !== "filters" || (xhr.status && xhr.status < 500)) return;
    if (!failures && D.state !== "live") D.note(T.get("No connection. The filters apply when it is back."), "late");
    retry ||= setTimeout(sendAgain, Math.min(LONGEST_RETRY_MS, RETRY_MS * 2 ** failures) * (0.5 + Math.random()));
    failures += 1;
  }

  document.addEventListener("htmx:sendError", failed);
  document.addEventListener("htmx:responseError", failed);
  document.addEventListener("htmx:afterRequest", ({ detail: { requestConfig: { elt }, successful } }) => {
    if (elt.id === "filters" && successful) failures = 0;
  });
  document.addEventListener("DOMContentLoaded", () => document.body.addEventListener("dispatch:refetch", sendAgain));
})();
