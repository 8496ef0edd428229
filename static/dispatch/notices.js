/* Shows a signed-in member's alerts on every page of the admin, as they come, and the unread count in the title.
   The server's rows are the truth: each message carries an id, and what was missed is sent again after a lost
   connection. */
(() => {
  "use strict";

  const FIRST_PAUSE_MS = 1000;
  const LONGEST_PAUSE_MS = 30000;
  const title = document.title;
  const shown = new Map(); // id of the notification → its element
  let lastId = 0;
  let pause = FIRST_PAUSE_MS;
  let box = null;
  let state = null;

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function cookie(name) {
    const found = document.cookie.split("; ").find((part) => part.startsWith(name + "="));
    return found ? decodeURIComponent(found.slice(name.length + 1)) : "";
  }

  async function post(path) {
    const answer = await fetch("/api/v1/notifications/" + path, {
      method: "POST",
      headers: { "X-CSRFToken": cookie("csrftoken"), "Content-Type": "application/json" },
      body: "{}",
    });
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    return answer.json();
  }

  async function count() {
    try {
      const answer = await fetch("/api/v1/notifications/summary/");
      if (!answer.ok) return;
      const summary = await answer.json();
      document.title = summary.unread ? `(${summary.unread}) ${title}` : title;
    } catch {
      /* the socket's state says that the connection is gone */
    }
  }

  function remove(id) {
    shown.get(id)?.remove();
    shown.delete(id);
  }

  function isOpen(row) {
    return row.level === "critical" ? !row.acknowledged_at && !row.settled_at : !row.read_at;
  }

  function show(row) {
    remove(row.id);
    if (!isOpen(row) || row.level === "quiet") return;
    const notice = element("article", "", "notice " + row.level);
    if (row.level === "critical") notice.setAttribute("role", "alert");
    notice.append(element("strong", row.title), element("p", row.body));
    if (row.subject_type === "job" && box.dataset.jobs) {
      const link = element("a", "Open the job");
      link.href = `${box.dataset.jobs}${row.subject_id}/change/`;
      notice.append(link);
    }
    const action = row.level === "critical" ? "acknowledge" : "read";
    const button = element("button", row.level === "critical" ? "Acknowledge" : "Mark as read");
    button.type = "button";
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        changed(await post(`${row.id}/${action}/`));
      } catch (error) {
        button.disabled = false;
        button.textContent = `Not saved (${error.message}). Try again`;
      }
    });
    notice.append(button);
    box.prepend(notice);
    shown.set(row.id, notice);
  }

  function changed(row) {
    if (shown.has(row.id)) show(row);
    count();
  }

  function heard(message) {
    if (message.type === "welcome") {
      pause = FIRST_PAUSE_MS;
      state.textContent = "";
      for (const id of [...shown.keys()]) remove(id);
      message.alerts.slice().reverse().forEach(show);
      if (!lastId) lastId = message.last_event_id; // after a reconnection, what was missed follows
      count();
    } else if (message.type === "notification" && message.id > lastId) {
      lastId = message.id;
      show(message);
      count();
    } else if (message.type === "changed") {
      changed(message);
    }
  }

  function connect() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const since = lastId ? `?last_event_id=${lastId}` : "";
    const socket = new WebSocket(`${scheme}://${location.host}/ws/${since}`);
    let opened = false;
    socket.addEventListener("open", () => { opened = true; });
    socket.addEventListener("message", (event) => heard(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => {
      if (event.code === 4401 || event.code === 4403) {
        state.textContent = "Alerts stopped: you are signed out, or no longer a member.";
        return;
      }
      if (opened || shown.size) state.textContent = "Reconnecting. Alerts may be late.";
      setTimeout(connect, pause * (0.5 + Math.random()));
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    box = document.getElementById("notices"); // only on pages of somebody who works in an organization
    if (!box) return;
    state = element("div", "", "state");
    state.setAttribute("role", "status");
    box.append(state);
    connect();
  });
})();
