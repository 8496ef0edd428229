/* The customer's status page looks for news by itself, and changes only when there are some. Without this script the
   page is loaded again by hand. */
(() => {
  "use strict";
  const shown = document.getElementById("request");
  const words = document.getElementById("looks");
  if (!shown || !words) return;
  const pause = Number(words.dataset.every) * 1000;
  words.textContent = `This page looks for news every ${words.dataset.every} seconds. Keep its address to come back.`;

  async function look() {
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      const there = new DOMParser().parseFromString(await answer.text(), "text/html");
      const news = answer.ok ? there.getElementById("request") : null;
      if (news && news.innerHTML.trim() !== shown.innerHTML.trim()) {
        shown.innerHTML = news.innerHTML;
        document.title = there.title;
      }
      if (news && !there.getElementById("looks")) {
        words.remove();
        return;
      }
    } catch { /* no connection: it looks again */ }
    setTimeout(look, pause);
  }
  setTimeout(look, pause);
})();
