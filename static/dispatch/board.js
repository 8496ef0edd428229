/* Keep the board up to date. Live updates say which jobs changed; one request fetches their cards, the attention list
   and the counts, and this script puts them in place.

   A list never reorders under the pointer or the focus: new cards are announced ("3 new") and inserted on request, or
   when pointer and focus leave the list. Open panels stay open, and the focused element keeps its focus. */
(() => {
  "use strict";

  const D = window.Dispatch;
  const TOGETHER_MS = 25;
  const RETRY_MS = 2000;
  const MOST_IDS = 100;
  const MAP_EVERY_MS = 5000;
  const hovers = window.matchMedia("(hover: hover)");
  const narrow = window.matchMedia("(width < 720px)");
  const MOVING = /(<time[^>]*>)[^<]*/g;
  const FILTERS = ["text", "service", "priority", "area", "technician"];
  const JOBS = new Set(["account", "job", "offer", "call", "call_error", "submission"]);

  let board = null;
  let lists = new Map(); // name → { section, cards, count, held, below: known rows that are below the cards, by id }
  let ids = new Set();
  let wanted = false;
  let everything = false;
  let fetching = false;
  let last = 0; // id of the latest event
  let timer = 0;
  let mapAt = 0;
  let mapTimer = 0;
  let asking = 0; // drawer requests in flight
  let isOutdated = false; // whether the drawer is to be refreshed after them
  let shown = ""; // the filters of the lists, as in the address
  let opening = null; // the job that was requested last and has not arrived, as { id }
  let opener = null; // the control that opened the panel
  let coming = ""; // the job that a step back or forward requests
  let news = 0; // number of events received so far
  let newsOfAll = 0; // its value at the last full refetch
  const newsOf = new Map(); // job id → its value at the job's latest event

  /* --- address ------------------------------------------------------------------------------------------- */
  function params() { return new URLSearchParams(location.search); }

  function filters(query = location.search) {
    const kept = new URLSearchParams(query);
    for (const name of ["job", "map"]) kept.delete(name);
    return kept;
  }

  function isFiltered() { return [...filters().keys()].some((name) => !["layout", "columns", "view", "show"].includes(name)); }

  function address(changed) {
    const query = params();
    for (const [name, value] of Object.entries(changed)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const text = query.toString();
    return board.dataset.board + (text ? "?" + text : "");
  }

  function openJob() { return document.getElementById("drawer")?.dataset.job || ""; }

  /* --- fetching changes ----------------------------------------------------------------------------------- */
  function soon(pause = TOGETHER_MS) {
    if (document.hidden || timer) return;
    timer = setTimeout(() => { timer = 0; fetchChanges(); }, pause);
  }

  async function fetchChanges() {
    if (fetching || !(wanted || everything)) return;
    fetching = true;
    const asked = everything || ids.size > MOST_IDS ? null : [...ids];
    const query = new URLSearchParams(shown);
    const filter = shown;
    ids = new Set();
    wanted = everything = false;
    if (asked) query.set("ids", asked.join(","));
    else {
      query.set("all", "1");
      for (const [name, list] of lists) if (name !== "attention") query.set(name, rowsOf(list).length);
    }
    if (asked && last) query.set("event", last);
    try {
      const answer = await fetch(`${board.dataset.changes}?${query}`, { headers: { "HX-Request": "true" } });
      if (answer.headers.has("HX-Redirect")) {
        location.href = answer.headers.get("HX-Redirect");
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      const told = await answer.json();
      await new Promise(window.whenLetGo);
      if (shown === filter) apply(told);
      else everything = wanted = true;
    } catch {
      if (asked) for (const id of asked) ids.add(id);
      else everything = true;
      wanted = true;
      setTimeout(soon, RETRY_MS * (0.5 + Math.random()));
      return;
    } finally {
      fetching = false;
    }
    if (wanted || everything) soon();
  }

  /* --- updating the lists ----------------------------------------------------------------------------------- */
  function bind() {
    lists = new Map();
    for (const section of document.querySelectorAll("[data-list]")) {
      const list = { section, cards: section.querySelector("[data-cards]"), count: null, held: new Map(), below: new Map() };
      lists.set(section.dataset.list, list);
      const leave = () => setTimeout(() => window.whenLetGo(() => { if (!looking(list)) letIn(list); }), 0);
      list.cards.addEventListener("pointerleave", leave);
      section.addEventListener("focusout", leave);
      section.querySelector(".news").addEventListener("click", ({ currentTarget }) => {
        const isFocused = currentTarget.matches(":focus-visible");
        letIn(list);
        if (isFocused) list.cards.querySelector("a.open, button")?.focus();
      });
    }
    for (const tab of document.querySelectorAll("[data-tab]")) tab.addEventListener("click", () => showTab(tab.dataset.tab));
    document.getElementById("lists").classList.add("with-tabs");
    showTab(sessionTab());
    markOpen();
  }

  function sessionTab() {
    const tabs = [...document.querySelectorAll("[data-tab]:not([hidden])")].map((tab) => tab.dataset.tab);
    const stored = D.stored("tab", "calling");
    return tabs.includes(stored) ? stored : tabs[0];
  }

  function showTab(name) {
    for (const tab of document.querySelectorAll("[data-tab]")) tab.setAttribute("aria-pressed", String(tab.dataset.tab === name));
    for (const [one, list] of lists) list.section.classList.toggle("is-shown", one === name);
    D.store("tab", name);
  }

  function looking(list) {
    return (hovers.matches && list.cards.matches(":hover")) || hasFocus(list);
  }

  /* "3 new" belongs to the list: on the way to it, the cards stay as they are. */
  function hasFocus(list) {
    const at = document.activeElement;
    return list.cards.contains(at) || (at.matches(".news:focus-visible") && list.section.contains(at));
  }

  function rowsOf(list) { return [...list.cards.children].filter((row) => !row.classList.contains("more")); }

  function moreOf(list) { return list.cards.querySelector(":scope > .more"); }

  function rowOf(list, id) { return list.cards.querySelector(`:scope > li[data-id="${CSS.escape(String(id))}"]`); }

  function fill(row, html) {
    const kept = html.replace(MOVING, "$1"); // page.js updates the times
    const before = row.kept;
    row.kept = kept;
    if (before === kept || (before === undefined && row.firstElementChild && says(row) === says(rowFrom(html)))) return;
    const had = row.contains(document.activeElement) ? document.activeElement : null;
    const path = had?.name ? `[name="${had.name}"][value="${had.value}"]` : had ? "a.open" : "";
    row.innerHTML = html;
    window.htmx.process(row);
    markMine(row);
    if (!had) return;
    const claim = had.closest(".claim") && row.querySelector(".claim button:not([hidden])");
    const same = row.querySelector(path);
    if (claim && !same) D.say(row.querySelector("[data-who]")?.textContent || "");
    (same || claim || row.querySelector("a.open") || row.querySelector("button"))?.focus({ preventScroll: true });
  }

  function rowFrom(html) {
    const row = document.createElement("li");
    row.innerHTML = html;
    return row;
  }

  /* The content of a row rendered with the page, without what scripts added to it. */
  function says(row) {
    const copy = row.cloneNode(true);
    markMine(copy);
    for (const token of copy.querySelectorAll("[name=csrfmiddlewaretoken]")) token.remove();
    for (const form of copy.querySelectorAll(".claim")) form.classList.remove("htmx-request");
    for (const button of copy.querySelectorAll("[data-waits]")) button.removeAttribute("data-waits");
    for (const one of copy.querySelectorAll("a.open, [data-acts]")) for (const name of ["href", "aria-current", "aria-disabled"]) one.removeAttribute(name);
    copy.firstElementChild.classList.remove("unread");
    return copy.innerHTML.replace(MOVING, "$1");
  }

  function put(name, id, sort, html) {
    const list = lists.get(name);
    if (!list) return;
    for (const [other, elsewhere] of lists) if (other !== name && (other === "attention") === (name === "attention")) drop(elsewhere, id, list);
    const row = rowOf(list, id);
    if (row) {
      row.classList.remove("is-gone");
      list.held.delete(id);
      fill(row, html);
      if (row.dataset.sort !== sort) {
        row.dataset.sort = sort;
        if (looking(list)) list.held.set(id, { sort, html, moves: true });
        else insert(list, row);
      }
    } else if (looking(list)) list.held.set(id, { sort, html });
    else make(list, id, sort, html);
    announce(list);
  }

  function make(list, id, sort, html) {
    const row = document.createElement("li");
    row.dataset.id = id;
    row.dataset.sort = sort;
    fill(row, html);
    insert(list, row);
  }

  /* A row that belongs below the cards shown is left out, unless all that are below are known (`countMore`). */
  function insert(list, row) {
    const rows = [...list.cards.children].filter((one) => one !== row);
    const before = rows.find((one) => one.classList.contains("more") || one.dataset.sort > row.dataset.sort);
    list.below.delete(row.dataset.id);
    if (before?.classList.contains("more") && !before.hidden && rows.length > 1) {
      row.remove();
      list.below.set(row.dataset.id, row);
    } else list.cards.insertBefore(row, before || null);
  }

  /* `isBelow`: the row is still in the list, but below the cards shown. */
  function drop(list, id, to, isBelow = false) {
    list.held.delete(id);
    list.below.delete(id);
    const row = rowOf(list, id);
    if (!row) return;
    if (!looking(list)) {
      row.remove();
      announce(list);
      return;
    }
    const title = to && to !== list ? to.section.querySelector("h2").textContent : "";
    row.classList.toggle("is-gone", !isBelow);
    if (row.firstElementChild) row.firstElementChild.dataset.gone = title ? T.get("now in {list}", { list: title }) : T.get("no longer on this list");
    list.held.set(id, null);
    announce(list);
  }

  function letIn(list) {
    const held = [...list.held];
    const isEmpty = held.length > 0 && !rowsOf(list).length;
    const more = moreOf(list);
    if (more && isEmpty) {
      more.hidden = true; // until all held cards are in place; fetched again, because one may belong below others
      everything = wanted = true;
      soon();
    }
    list.held = new Map();
    for (const [id, what] of held) {
      const row = rowOf(list, id);
      if (what === null) row?.remove();
      else if (row) insert(list, row);
      else make(list, id, what.sort, what.html);
    }
    countMore(list);
    markOpen();
  }

  function announce(list) {
    const fresh = [...list.held.values()].filter((what) => what && !what.moves).length;
    const news = list.section.querySelector(".news");
    const words = T.get("{count} new", { count: fresh });
    if (news.hidden !== !fresh || news.textContent !== words) {
      news.textContent = words;
      news.hidden = !fresh;
      if (fresh && hasFocus(list)) D.say(`${list.section.querySelector("h2").textContent}: ${words}`);
    }
    list.section.querySelector("[data-empty]").hidden = [...list.cards.children].some((one) => !one.hidden);
  }

  /* Offer the jobs of the list that are below its cards. Held cards count as if they were let in. If all that are below
     are known, they are shown: the count may have been ahead of the cards. If none is left above or held, all are fetched. */
  function countMore(list) {
    const more = moreOf(list);
    if (more && list.count !== null) {
      const held = [...list.held.values()].filter((what) => !what?.moves);
      const count = list.count - rowsOf(list).length - held.reduce((sum, what) => sum + (what ? 1 : -1), 0);
      more.hidden = count <= list.below.size;
      if (more.hidden) for (const row of list.below.values()) insert(list, row);
      else if (!rowsOf(list).length && !list.held.size) {
        everything = wanted = true;
        soon();
      }
      const words = more.querySelector("span").firstChild;
      words.nodeValue = words.nodeValue.replace(/[0-9]+/, Math.max(0, count));
    }
    announce(list);
  }

  /* "Show more" continues after the last card whose place is certain. */
  function lastPlace(list) {
    return rowsOf(list).filter((row) => !list.held.has(row.dataset.id)).at(-1)?.dataset.sort || "";
  }

  /* A card that was loaded by "Show more" replaces what the list had or held of its job. */
  function loaded(row) {
    const list = [...lists.values()].find((one) => one.cards === row.parentElement);
    list.held.delete(row.dataset.id);
    list.below.delete(row.dataset.id);
    const same = rowsOf(list).filter((one) => one !== row && one.dataset.id === row.dataset.id);
    for (const one of same) one.remove();
    countMore(list);
  }

  function apply(told) {
    const present = new Set();
    for (const name of told.all ? Object.keys(told.counts) : []) {
      lists.get(name).below.clear();
      const more = moreOf(lists.get(name)); // a list of an earlier release may have none
      if (more) more.hidden = true; // until all cards are in place
    }
    for (const card of told.cards) {
      const id = String(card.id);
      if (card.column) {
        put(card.column, id, card.sort, card.html);
        present.add(`${card.column} ${id}`);
      } else for (const [name, list] of lists) if (name !== "attention") drop(list, id, null);
    }
    if (told.all) {
      for (const [name, count] of Object.entries(told.counts)) {
        const cards = told.cards.filter((card) => card.column === name);
        const isBelow = (row) => cards.length < count && row.dataset.sort > cards.at(-1)?.sort;
        for (const row of rowsOf(lists.get(name))) if (!present.has(`${name} ${row.dataset.id}`)) drop(lists.get(name), row.dataset.id, null, isBelow(row));
      }
    }
    const attention = lists.get("attention");
    const now = new Set(told.attention.map((one) => one.id));
    for (const one of told.attention) put("attention", one.id, one.sort, one.html);
    for (const row of [...attention.cards.children]) if (!now.has(row.dataset.id)) drop(attention, row.dataset.id, null);
    for (const [name, count] of Object.entries(told.counts)) {
      for (const badge of document.querySelectorAll(`[data-count-of="${name}"]`)) badge.textContent = String(count);
      lists.get(name).count = count;
      countMore(lists.get(name));
    }
    const badge = attention.section.querySelector("[data-count]");
    badge.textContent = String(told.attention_count);
    badge.classList.toggle("attention", told.attention_count > 0);
    for (const [name, count] of [["more", told.attention_more], ["hidden", told.attention_hidden]]) {
      const line = attention.section.querySelector(`[data-${name}]`);
      line.hidden = !count;
      line.querySelector("b").textContent = String(count);
    }
    const unread = new Set(told.unread_jobs.map((id) => `job-${id}`));
    for (const row of attention.cards.children) row.firstElementChild?.classList.toggle("unread", unread.has(row.dataset.id));
    document.getElementById("unread-words").textContent = told.unread ? T.get("{count} unread", { count: told.unread }) : "";
    for (const button of document.querySelectorAll('#lists [data-waits="list"]')) delete button.dataset.waits;
    markOpen();
    document.documentElement.dataset.applied = String(Number(document.documentElement.dataset.applied || 0) + 1);
  }

  /* What changed while lists or more cards were loaded is fetched after them, because they may be older. */
  function cardsAsked(event) {
    const { target, xhr } = event.detail;
    if (target.id !== "lists" && !target.classList.contains("more")) return;
    const asOf = news;
    xhr.addEventListener("loadend", () => {
      if (news === asOf) return;
      for (const [id, at] of newsOf) if (at > asOf) ids.add(id);
      wanted = true;
      everything ||= newsOfAll > asOf;
      soon();
    });
  }

  function markMine(within) {
    for (const form of within.querySelectorAll("[data-claimed-by]")) {
      const mine = form.dataset.claimedBy === board.dataset.me;
      const who = form.querySelector("[data-who]");
      who.textContent = mine ? T.get("Claimed by you") : T.get("Claimed by {person}", { person: who.dataset.who });
      form.querySelector("[data-mine]").hidden = !mine;
      form.querySelector("[data-theirs]").hidden = mine;
    }
  }

  function markOpen() {
    const open = openJob();
    for (const row of document.querySelectorAll("#lists li[data-id]")) {
      const link = row.querySelector("a.open");
      const is = Boolean(open) && link?.dataset.open === open;
      row.classList.toggle("is-open", is);
      row.classList.toggle("is-opening", Boolean(opening) && link?.dataset.open === opening.id);
      if (is) link.setAttribute("aria-current", "true");
      else link?.removeAttribute("aria-current");
      if (link) link.setAttribute("href", address({ job: link.dataset.open }));
    }
    board.classList.toggle("with-drawer", document.getElementById("drawer-slot").childElementCount > 0);
    D.panel.cover();
  }

  /* --- the drawer ------------------------------------------------------------------------------------------------ */
  /* Open a job. Return whether it is shown: it may not be reachable, or something else was opened meanwhile. Without
     `push`, the address names the job already, and it is requested until it can be reached. */
  async function open(id, { push = true, act = "", query = "" } = {}) {
    const path = board.dataset.job.replace("/0/", `/${id}/`) + (act ? `act/${act}/` : "") + query;
    const tell = () => D.note(T.get("Job #{job} can't be loaded yet. It opens when the server answers again.", { job: id }), "late");
    const mine = opening = { id: String(id) };
    markOpen();
    const isLoaded = await D.panel.load(path, push ? null : tell);
    if (opening === mine) opening = null;
    markOpen();
    if (!isLoaded || openJob() !== String(id)) return false;
    if (push && params().get("job") !== String(id)) history.pushState({ board: true }, "", address({ job: id }));
    if (!document.getElementById("map").hidden) drawMap();
    return true;
  }

  function close({ push = true } = {}) {
    const id = openJob() || params().get("job");
    D.panel.giveUp();
    document.getElementById("drawer-slot").replaceChildren();
    if (push && params().has("job")) history.pushState({ board: true }, "", address({ job: "" }));
    markOpen();
    if (!document.getElementById("map").hidden) drawMap();
    const link = id && document.querySelector(`#lists a.open[data-open="${id}"]`);
    const back = [link, opener].find((one) => one?.checkVisibility()) || document.getElementById("main");
    back.focus({ preventScroll: true });
  }

  function settled(slot) {
    markOpen();
    const refused = slot.querySelector("#refused");
    const asked = slot.querySelector("#ask");
    const first = refused || asked?.querySelector("input:checked, #who, textarea, input:not([type=hidden]), [data-do]") || slot.querySelector("#drawer-title");
    first?.focus({ preventScroll: !narrow.matches });
    slot.scrollTop = 0;
    for (const script of document.querySelectorAll(".no-script")) script.hidden = true;
    /* A form without a required field: Enter submits it. */
    if (first?.tagName === "TEXTAREA" && asked && !asked.querySelector(":required")) asked.querySelector("[data-do]").focus();
  }

  /* Updates during a drawer request are fetched after it, because its response may be older. */
  function refreshDrawer() {
    const body = document.getElementById("drawer-body");
    isOutdated = Boolean(body && asking);
    if (!body || asking) return;
    refreshThread();
    if (document.getElementById("ask-state")) window.htmx.trigger("#ask-state", "refresh");
    window.htmx.trigger("#notes-list", "refresh");
    window.htmx.trigger(body, "refresh");
  }

  /* Refresh the texts. What is being written stays, unless there is nobody to write to yet. */
  function refreshThread() {
    const thread = document.getElementById("thread");
    if (!thread) return;
    if (document.getElementById("thread-body")) window.htmx.trigger("#thread-list", "refresh");
    else window.htmx.trigger(thread, "renew");
  }

  function isDrawer(part) { return part?.id === "drawer-slot" || part?.id === "drawer-body"; }

  function drawerAsked(event) {
    const { target, xhr, elt, requestConfig } = event.detail;
    if (!isDrawer(target) || event.defaultPrevented) return;
    if (!target.contains(elt)) opener = elt === document.body ? null : requestConfig.triggeringEvent?.submitter || elt;
    const asOf = news;
    let isAborted = false;
    asking += 1;
    xhr.addEventListener("abort", () => { isAborted = true; });
    xhr.addEventListener("loadend", () => {
      asking -= 1;
      if (isAborted) return;
      if (isOutdated || Math.max(newsOf.get(openJob()) || 0, newsOfAll) > asOf) refreshDrawer();
    });
  }

  /* --- the map --------------------------------------------------------------------------------------------------- */
  async function drawMap() {
    mapAt = Date.now();
    const query = filters();
    if (openJob()) query.set("job", openJob());
    if (D.map && await D.map.draw(query)) return;
    await window.htmx.ajax("GET", `${board.dataset.map}?${query}`, { source: "#map", target: "#map", swap: "innerHTML" });
  }

  /* At most every few seconds (trailing edge: the last change is always drawn). */
  function drawMapSoon() {
    if (document.getElementById("map").hidden || mapTimer) return;
    mapTimer = setTimeout(() => {
      mapTimer = 0;
      if (!document.getElementById("map").hidden) drawMap();
    }, Math.max(0, mapAt + MAP_EVERY_MS - Date.now()));
  }

  function showMap(isShown) {
    const map = document.getElementById("map");
    map.hidden = !isShown;
    document.getElementById("map-button").setAttribute("aria-expanded", String(isShown));
    window.htmx.trigger("#views", "refresh"); // its links keep the map
    if (isShown) drawMap();
  }

  function toggleMap() {
    const isShown = document.getElementById("map").hidden;
    history.replaceState({ board: true }, "", address({ map: isShown ? "1" : "" }));
    markOpen();
    showMap(isShown);
  }

  /* Show what the address names after a step back or forward. The job that an earlier step requests is given up. */
  function followAddress() {
    D.filters.follow(filters().toString() === shown);
    const id = params().get("job") || "";
    if (coming && coming !== id) D.panel.giveUp();
    coming = "";
    if (id && id !== openJob()) {
      coming = id;
      open(id, { push: false }).then(() => { if (coming === id) coming = ""; });
    } else if (!id && openJob()) close({ push: false });
    if (Boolean(params().get("map")) === document.getElementById("map").hidden) showMap(Boolean(params().get("map")));
  }

  /* Show the jobs without filters. What else the address names stays open: the job and its form, and the map. */
  function clearFilters() {
    history.pushState({ board: true }, "", address({ ...Object.fromEntries(FILTERS.map((name) => [name, ""])), view: "all" }));
    document.getElementById("main").focus({ preventScroll: true }); // the link is about to leave the page
    D.filters.follow();
  }

  /* --- events ------------------------------------------------------------------------------------------------ */
  D.board = { open, close, openJob, toggleMap, drawMap };
  D.panel.refresh = refreshDrawer;

  document.addEventListener("DOMContentLoaded", () => {
    board = document.getElementById("board");
    shown = filters(board.dataset.query).toString();
    bind();
    markMine(document);
    for (const one of document.querySelectorAll(".no-script")) one.hidden = true;
    if (D.map && !document.getElementById("map").hidden) drawMap();

    document.body.addEventListener("dispatch:events", (event) => {
      for (const one of event.detail) {
        last = one.id;
        news += 1;
        if (one.job) newsOf.set(String(one.job), news);
        if (one.job) ids.add(String(one.job));
        if (one.job || JOBS.has(one.subject)) wanted = true;
      }
      if (wanted) soon();
      if (event.detail.some((one) => String(one.job) === openJob())) refreshDrawer();
      if (event.detail.some((one) => one.subject === "technician" || one.subject === "job")) drawMapSoon();
    });
    document.body.addEventListener("dispatch:refetch", () => {
      everything = wanted = true;
      newsOfAll = news += 1;
      newsOf.clear();
      soon();
      refreshDrawer();
      drawMapSoon();
    });
    /* The button waits until the list shows the new owner. */
    document.body.addEventListener("claimed", ({ target }) => {
      for (const button of target.querySelectorAll("#lists .claim [data-waits]")) button.dataset.waits = "list";
      wanted = true;
      last = 0;
      soon();
    });
    /* Lateness and position age depend on time, not on events. */
    setInterval(() => {
      if (D.state !== "live") return;
      wanted = true;
      soon();
      if (!document.hidden) drawMapSoon();
    }, 20000);

    D.panel.onClick({
      "a[data-open]": (link) => open(link.dataset.open),
      "#drawer-close, [data-close-drawer]": () => close(),
      "#map-button": () => toggleMap(),
      "a[data-clear-filters]": () => clearFilters(),
    });
    document.addEventListener("click", (event) => {
      const all = event.target.closest("#show-all");
      if (all) all.setAttribute("href", address({ show: "all" })); // the job and the map may have changed
    });
    document.addEventListener("htmx:configRequest", (event) => {
      const { elt, parameters: given } = event.detail;
      const list = [...lists.values()].find((one) => moreOf(one)?.contains(elt));
      if (list) given.after = lastPlace(list);
      if (elt.id !== "filters") return;
      for (const name of Object.keys(given)) if (!given[name]) delete given[name];
    });
    /* The address keeps the page's state, which may have changed during the request: a job or the map that was opened or
       closed, or, for the job that was created, the filters and the layout. */
    document.addEventListener("htmx:beforeHistoryUpdate", (event) => {
      const at = new URL(event.detail.history.path, location);
      if (event.detail.target.id === "drawer-slot") event.detail.history.path = address({ job: at.searchParams.get("job") });
      if (event.detail.target.id !== "lists") return;
      if (coming || openJob()) at.searchParams.set("job", coming || openJob());
      if (!document.getElementById("map").hidden) at.searchParams.set("map", "1");
      event.detail.history.path = at.pathname + at.search;
    });
    document.addEventListener("htmx:beforeSend", drawerAsked);
    document.addEventListener("htmx:beforeSend", cardsAsked);
    document.addEventListener("htmx:afterSwap", (event) => { if (event.target.matches?.("[data-cards] > li[data-id]")) loaded(event.target); });
    document.addEventListener("htmx:afterSettle", (event) => {
      if (event.target.id === "drawer-slot" || event.detail.target?.id === "drawer-slot") settled(document.getElementById("drawer-slot"));
      else if (event.detail.target?.id === "views-menu") {
        const isAnswer = event.detail.requestConfig.verb !== "get";
        if (isAnswer && document.activeElement === document.body) document.querySelector("#views > summary").focus(); // the button is gone
      } else if (event.target.id === "lists") {
        bind();
        shown = filters().toString();
        document.getElementById("clear").hidden = !isFiltered();
        window.htmx.trigger("#views", "refresh"); // its links and its form are about the filters in the address
        drawMapSoon();
      } else if (event.target.closest?.("#lists")) markOpen();
    });
    window.onpopstate = followAddress; // instead of htmx's, which would reload the page
    if (location.search.slice(1) !== board.dataset.query) followAddress(); // a step while the page was loading
  });
})();
