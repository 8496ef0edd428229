/* The board's map with tiles: Leaflet, loaded when the map is first shown.

   Jobs and technicians that are near each other form a group. A job dragged onto a technician opens the form that
   assigns it. If the tiles can't be loaded, the board draws its outline instead. */
(() => {
  "use strict";

  const D = window.Dispatch;
  const REACH_PX = 30; // how near to a technician a job must be dropped
  const GROUP_PX = 44;
  const FIRST_TILE_MS = 20000;
  const MAX_FIRST_ZOOM = 14;
  const ENDED_DASH = "2 6";
  const HAS_MOUSE = matchMedia("(pointer: fine)");
  let board = null;
  let loading = null; // promise of Leaflet
  let failed = false; // no tile could be loaded
  let chart = null; // { map, jobs, technicians, lines, caption }
  let shown = new Map(); // "job-1" → its marker
  let fitted = ""; // what the view was fitted to
  let drags = null; // the marker that is dragged
  let asked = 0; // number of requests for the points so far
  let drawn = 0; // the latest of them that was drawn

  function add(tag, properties) {
    return new Promise((resolve, reject) => {
      const part = Object.assign(document.createElement(tag), properties, { onload: resolve, onerror: reject });
      document.head.append(part);
    });
  }

  function loadLeaflet() {
    const { leaflet, clusters, leafletStyle } = board.dataset;
    loading ||= Promise.all([add("link", { rel: "stylesheet", href: leafletStyle }), add("script", { src: leaflet })])
      .then(() => add("script", { src: clusters }));
    return loading;
  }

  /* --- markers ---------------------------------------------------------------------------------------------------- */
  function iconOf(kind, one) {
    const box = document.createElement("span");
    box.className = `${kind} ${one.tone}${one.is_old ? " old" : ""}`;
    const words = document.createElement("span");
    words.textContent = kind === "job-pin" ? one.id : one.rank || initials(one.name);
    box.append(words);
    return window.L.divIcon({ className: "map-marker", html: box, iconSize: [34, 34], iconAnchor: [17, kind === "job-pin" ? 34 : 17] });
  }

  function initials(name) {
    return name.split(/\s+/).slice(0, 2).map((part) => [...part][0] || "").join("").toLocaleUpperCase();
  }

  function groupIcon(kind, words) {
    return (group) => {
      const box = document.createElement("span");
      box.className = `group ${kind}`;
      const count = document.createElement("b");
      count.textContent = group.getChildCount();
      const unseen = document.createElement("span");
      unseen.className = "unseen";
      unseen.textContent = words;
      box.append(count, unseen);
      return window.L.divIcon({ className: "map-marker", html: box, iconSize: [38, 38] });
    };
  }

  /* Leaflet would read a text as HTML. */
  function setTip(marker, words) {
    const tip = document.createElement("span");
    tip.textContent = words;
    if (marker.getTooltip()) marker.setTooltipContent(tip);
    else marker.bindTooltip(tip, { direction: "top", offset: [0, -18] });
  }

  function describe(marker, words) {
    marker.words = words;
    setTip(marker, words);
    marker.getElement()?.setAttribute("aria-label", words);
  }

  function makeMarker(kind, one) {
    const canDrag = Boolean(one.can_assign) && HAS_MOUSE.matches;
    const marker = window.L.marker(one.at, { icon: iconOf(kind, one), draggable: canDrag, riseOnHover: true });
    marker.on("add", () => marker.getElement().setAttribute("aria-label", marker.words));
    if (kind === "job-pin") {
      marker.on("click", () => D.board.open(String(one.id)));
      marker.on("keydown", (event) => onPress(event, () => D.board.open(String(one.id))));
      marker.on("dragstart", () => { drags = marker; });
      marker.on("drag", () => aim(marker));
      marker.on("dragend", () => drop(marker));
    }
    return marker;
  }

  function onPress({ originalEvent }, act) {
    if (originalEvent.key !== "Enter" && originalEvent.key !== " ") return;
    originalEvent.preventDefault();
    act();
  }

  /* Show each point at its place; keep the markers that stay, so that focus and open groups stay too. */
  function place(kind, layer, points, prefix) {
    const seen = new Set();
    for (const one of points) {
      const key = `${prefix}-${one.id}`;
      seen.add(key);
      const look = JSON.stringify([one.tone, one.is_old, one.rank, one.can_assign]);
      let marker = shown.get(key);
      if (marker && (marker.look !== look || !marker.getLatLng().equals(one.at))) {
        if (marker.look === look) {
          layer.removeLayer(marker);
          marker.setLatLng(one.at);
          layer.addLayer(marker);
        } else {
          layer.removeLayer(marker);
          marker = null;
        }
      }
      if (!marker) {
        marker = makeMarker(kind, one);
        layer.addLayer(marker);
        shown.set(key, marker);
      }
      Object.assign(marker, { look, one });
      describe(marker, one.is_old ? T.get("{state}, position more than an hour old", { state: one.words }) : one.words);
    }
    for (const [key, marker] of shown) {
      if (key.startsWith(`${prefix}-`) && !seen.has(key)) {
        layer.removeLayer(marker);
        shown.delete(key);
      }
    }
  }

  /* --- assigning by dragging ---------------------------------------------------------------------------------------- */
  function nearest(marker) {
    const at = chart.map.latLngToContainerPoint(marker.getLatLng()).subtract([0, 17]);
    let best = null;
    let far = REACH_PX;
    for (const [key, other] of shown) {
      if (!key.startsWith("technician-") || !other.getElement()) continue; // inside a group
      const away = chart.map.latLngToContainerPoint(other.getLatLng()).distanceTo(at);
      if (away < far) [best, far] = [other, away];
    }
    return best;
  }

  function mark(target) {
    for (const one of chart.box.querySelectorAll(".is-target")) one.classList.remove("is-target");
    target?.getElement()?.classList.add("is-target");
  }

  function aim(marker) {
    const target = nearest(marker);
    mark(target);
    setTip(marker, target ? T.get("Assign #{job} to {name}", { job: marker.one.id, name: `\u2068${target.one.name}\u2069` }) : T.get("Drop it on a technician"));
    marker.openTooltip();
  }

  function drop(marker) {
    const target = nearest(marker);
    mark(null);
    drags = null;
    marker.setLatLng(marker.one.at);
    describe(marker, marker.words);
    if (target) D.board.open(String(marker.one.id), { act: "assign", query: `?technician=${target.one.id}` });
  }

  /* --- drawing ------------------------------------------------------------------------------------------------------ */
  function caption(told) {
    const parts = [told.job
      ? T.get("Job #{job} with its candidates by rank.", { job: told.job })
      : `${T.plural("{count} open job", "{count} open jobs", told.jobs.length)}, ${T.plural("{count} technician", "{count} technicians", told.technicians.length)}.`];
    if (told.missing) parts.push(T.plural("Without a position: {count} job.", "Without a position: {count} jobs.", told.missing));
    if (told.hidden) parts.push(T.plural("Not shown: {count} technician.", "Not shown: {count} technicians.", told.hidden));
    if (HAS_MOUSE.matches && told.jobs.some((one) => one.can_assign)) parts.push(T.get("Drag a job onto a technician to assign it."));
    chart.caption.textContent = parts.join(" ");
  }

  function drawCalls(told) {
    const { L } = window;
    chart.lines.clearLayers();
    if (told.radius) L.circle(told.radius.at, { radius: told.radius.meters, className: "map-radius", interactive: false }).addTo(chart.lines);
    const at = (kind, id) => shown.get(`${kind}-${id}`)?.one.at;
    for (const call of told.calls) {
      const ends = [at("job", call.job), at("technician", call.technician)];
      if (!ends[0] || !ends[1]) continue;
      const line = L.polyline(ends, { className: `map-call ${call.tone}${call.is_live ? " live" : ""}`, dashArray: call.is_live ? "8 8" : ENDED_DASH, interactive: false });
      line.addTo(chart.lines);
      const words = document.createElement("span");
      words.textContent = call.words;
      if (told.job) line.bindTooltip(words, { permanent: true, direction: "center", className: `map-words ${call.tone}` });
    }
  }

  function fit(told) {
    const key = String(told.job || "");
    if (fitted === key && chart.isFitted) return;
    const points = (told.radius ? [told.radius.at] : []).concat(told.jobs.map((one) => one.at), told.technicians.map((one) => one.at));
    if (!points.length) return;
    fitted = key;
    chart.isFitted = true;
    chart.map.fitBounds(window.L.latLngBounds(usual(points)), { padding: [36, 36], maxZoom: MAX_FIRST_ZOOM, animate: false });
  }

  /* Leave out points that are far from most others: a wrong position must not shrink the rest. */
  function usual(points) {
    const middle = [0, 1].map((n) => points.map((point) => point[n]).sort((a, b) => a - b)[points.length >> 1]);
    const away = ([a, b]) => Math.max(Math.abs(a - middle[0]), Math.abs(b - middle[1]));
    const limit = Math.max(0.5, 4 * points.map(away).sort((a, b) => a - b)[Math.floor(0.8 * (points.length - 1))]);
    return points.filter((point) => away(point) <= limit);
  }

  function build(slot) {
    const { L } = window;
    const figure = document.createElement("figure");
    figure.className = "map tiles card";
    const box = document.createElement("div");
    box.className = "ground";
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", T.get("Map of jobs and technicians"));
    const words = document.createElement("figcaption");
    words.className = "small";
    figure.append(box, words);
    slot.replaceChildren(figure);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const map = L.map(box, { zoomAnimation: !still, fadeAnimation: !still, markerZoomAnimation: !still, worldCopyJump: true, maxZoom: Number(board.dataset.tilesZoom) });
    map.attributionControl.setPrefix(false);
    map.setView([39.5, -98.35], 4);
    const group = (kind, label) => {
      const layer = L.markerClusterGroup({ maxClusterRadius: GROUP_PX, showCoverageOnHover: false, animate: !still, iconCreateFunction: groupIcon(kind, label) });
      layer.on("clusterkeydown", (event) => onPress(event, () => layer.fire("clusterclick", event)));
      return layer;
    };
    chart = { slot, box, map, caption: words, lines: L.layerGroup().addTo(map), technicians: group("technicians", T.get("technicians")).addTo(map), jobs: group("jobs", T.get("jobs")).addTo(map) };
    shown = new Map();
    addTiles();
    new ResizeObserver(() => { if (chart?.map === map) map.invalidateSize(); }).observe(box);
  }

  function addTiles() {
    const { tiles, tilesZoom, credit, creditLink } = board.dataset;
    const words = document.createElement(creditLink ? "a" : "span");
    words.textContent = credit;
    if (creditLink) Object.assign(words, { href: creditLink, target: "_blank", rel: "noopener" });
    const layer = window.L.tileLayer(tiles, { maxZoom: Number(tilesZoom), attribution: words.outerHTML, referrerPolicy: "strict-origin-when-cross-origin" });
    let isLoaded = false;
    const giveUp = () => setTimeout(() => { if (!isLoaded && chart?.map.hasLayer(layer)) fallBack(); }); // Leaflet is still busy
    layer.on("tileload", () => { isLoaded = true; });
    layer.on("load", giveUp); // every tile has been answered
    setTimeout(giveUp, FIRST_TILE_MS);
    layer.addTo(chart.map);
  }

  function fallBack() {
    failed = true;
    chart.map.eachLayer((layer) => layer.remove());
    chart.map.remove();
    chart = null;
    D.board.drawMap();
  }

  /* Draw the map for the query. Return false if the board must draw its outline. */
  async function draw(query) {
    const slot = document.getElementById("map");
    if (!board.dataset.tiles || failed) return false;
    try {
      await loadLeaflet();
    } catch {
      failed = true;
      return false;
    }
    asked += 1;
    const own = asked;
    let told;
    try {
      const answer = await fetch(`${board.dataset.points}?${query}`, { headers: { "HX-Request": "true" } });
      if (answer.headers.has("HX-Redirect")) {
        location.href = answer.headers.get("HX-Redirect");
        return true;
      }
      if (!answer.ok) return true; // the next change or the next refresh tries again
      told = await answer.json();
    } catch {
      return true;
    }
    if (failed) return false;
    if (own < drawn) return true; // the answer to a later request is shown
    drawn = own;
    if (drags || slot.hidden) return true;
    if (chart && !slot.contains(chart.box)) { // the outline replaced it
      chart.map.remove();
      chart = null;
    }
    if (!chart) build(slot);
    place("technician", chart.technicians, told.technicians, "technician");
    place("job-pin", chart.jobs, told.jobs, "job");
    drawCalls(told);
    caption(told);
    chart.map.invalidateSize();
    fit(told);
    return true;
  }

  document.addEventListener("DOMContentLoaded", () => { board = document.getElementById("board"); });
  D.map = { draw };
})();
