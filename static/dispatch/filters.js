/* The filters of the board. A request that failed is sent again until one succeeds: otherwise a search would stand above
   the lists of all jobs. */
(() => {
  "use strict";

  const D = window.Dispatch;
  const RETRY_MS = 2000;
  let hasFailed = false;
  let retry = 0;

  function sendAgain() {
    clearTimeout(retry);
    retry = 0;
    if (hasFailed) window.htmx.trigger("#filters", "submit");
  }

  function failed({ detail: { requestConfig: { elt }, xhr } }) {
    if (elt.id !== "filters" || (xhr.status && xhr.status < 500)) return;
    if (!hasFailed && D.state !== "live") D.note(T.get("No connection. The filters apply when it is back."), "late");
    hasFailed = true;
    retry ||= setTimeout(sendAgain, RETRY_MS * (0.5 + Math.random()));
  }

  document.addEventListener("htmx:sendError", failed);
  document.addEventListener("htmx:responseError", failed);
  document.addEventListener("htmx:afterRequest", ({ detail: { requestConfig: { elt }, successful } }) => {
    if (elt.id === "filters" && successful) hasFailed = false;
  });
  document.addEventListener("DOMContentLoaded", () => document.body.addEventListener("dispatch:refetch", sendAgain));
})();
