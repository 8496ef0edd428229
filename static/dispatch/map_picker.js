"use strict";
/* Map picker for latitude and longitude in the admin. The fields hold the position; the map shows and moves it. */
(() => {
  const METERS_PER_DEGREE = 111195, MIN_REACH = 2000, MAX_REACH = 2500000, WIDTH = 960, HEIGHT = 420;
  const STEP = 8, BIG_STEP = 60; /* per arrow key press, in drawing units */

  function begin(picker) {
    const lat = document.getElementById("id_lat"), lng = document.getElementById("id_lng");
    if (!lat || !lng || lat.readOnly) { picker.hidden = true; return; }
    picker.innerHTML = '<div class="map" role="application" tabindex="0" aria-describedby="picker-help"></div>'
      + '<div class="row"><button type="button" data-zoom="0.5"></button><button type="button" data-zoom="2"></button>'
      + '<button type="button" data-center></button><span role="status"></span></div>'
      + '<p id="picker-help"></p>';
    for (const [part, words] of [
      ["[data-zoom='0.5']", T.get("Zoom in")], ["[data-zoom='2']", T.get("Zoom out")], ["[data-center]", T.get("Center on the pin")],
      ["#picker-help", T.get("Click to set the position. Keyboard: arrow keys move the pin (Shift: larger steps), + and − zoom.")],
    ]) picker.querySelector(part).textContent = words;
    picker.querySelector(".map").setAttribute("aria-label", T.get("Map of the position"));
    const map = picker.querySelector(".map"), status = picker.querySelector("[role=status]");
    let sheet = null, requests = 0, later = 0;

    const typed = () => {
      const at = [lat, lng].map((field) => (field.value.trim() === "" ? NaN : Number(field.value)));
      return Number.isFinite(at[0]) && Number.isFinite(at[1]) && Math.abs(at[0]) <= 90 && Math.abs(at[1]) <= 180 ? at : null;
    };
    const unitsPerMeter = () => METERS_PER_DEGREE * sheet.units;
    const toUnits = ([a, b]) => [WIDTH / 2 + (b - sheet.lng) * sheet.stretch * unitsPerMeter(), HEIGHT / 2 - (a - sheet.lat) * unitsPerMeter()];
    const toDegrees = (x, y) => [sheet.lat - (y - HEIGHT / 2) / unitsPerMeter(), sheet.lng + (x - WIDTH / 2) / unitsPerMeter() / sheet.stretch];

    async function draw(center, reach) {
      const mine = ++requests, query = new URLSearchParams();
      if (center) { query.set("lat", center[0]); query.set("lng", center[1]); }
      if (reach) query.set("reach", reach);
      let text;
      try {
        const answer = await fetch(`${picker.dataset.map}?${query}`, { headers: { "X-Requested-With": "fetch" } });
        if (!answer.ok) throw new Error(answer.statusText);
        text = await answer.text();
      } catch {
        if (mine === requests) status.textContent = T.get("The map could not be loaded. The fields work without it.");
        return;
      }
      if (mine !== requests) return; /* superseded by a later request */
      map.innerHTML = text;
      const data = map.querySelector("svg").dataset;
      sheet = { lat: Number(data.lat), lng: Number(data.lng), stretch: Number(data.stretch), units: Number(data.units), reach: Number(data.reach) };
      pin();
    }

    function pin() {
      const at = typed(), mark = map.querySelector(".pin");
      if (!mark || !sheet) return;
      mark.toggleAttribute("hidden", !at);
      if (!at) { status.textContent = T.get("No position yet."); return; }
      const [x, y] = toUnits(at);
      mark.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
      const seen = x >= 0 && x <= WIDTH && y >= 0 && y <= HEIGHT;
      const values = { lat: at[0].toFixed(5), lng: at[1].toFixed(5) };
      status.textContent = seen ? T.get("Latitude {lat}, longitude {lng}", values) : T.get("Latitude {lat}, longitude {lng}, outside the map", values);
      return seen;
    }

    function set(x, y) {
      const [a, b] = toDegrees(x, y);
      lat.value = Math.max(-90, Math.min(90, a)).toFixed(6);
      lng.value = (((b + 540) % 360 + 360) % 360 - 180).toFixed(6);
      for (const field of [lat, lng]) field.dispatchEvent(new Event("change", { bubbles: true }));
      if (!pin()) draw(typed(), sheet.reach);
    }

    function zoom(factor) {
      if (sheet) draw(typed() || [sheet.lat, sheet.lng], Math.max(MIN_REACH, Math.min(MAX_REACH, sheet.reach * factor)));
    }

    map.addEventListener("click", (event) => {
      const svg = map.querySelector("svg");
      if (!sheet || !svg) return;
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      set(point.x, point.y);
    });
    map.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !sheet) return;
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (way) {
        const far = event.shiftKey ? BIG_STEP : STEP, [x, y] = toUnits(typed() || [sheet.lat, sheet.lng]);
        set(x + way[0] * far, y + way[1] * far);
      } else if (event.key === "+" || event.key === "=") zoom(0.5);
      else if (event.key === "-") zoom(2);
      else return;
      event.preventDefault();
    });
    picker.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button?.dataset.zoom) zoom(Number(button.dataset.zoom));
      else if (button && sheet) draw(typed() || [sheet.lat, sheet.lng], sheet.reach);
    });
    for (const field of [lat, lng]) field.addEventListener("input", () => {
      const seen = pin();
      clearTimeout(later);
      if (typed() && !seen) later = setTimeout(() => draw(typed(), sheet?.reach), 300);
    });
    draw(typed());
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".picker").forEach(begin));
})();
