/* Charts of the reports, drawn by Chart.js from the data beside each canvas; saving one as PNG. */
(() => {
  "use strict";
  const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
  const SLICE = 28, SLICE_NARROW = 13, NARROW = 480;
  const drawn = [];

  /* A token's color in the current theme: the browser resolves light-dark(). */
  function color(name) {
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  function palette() {
    const tones = {};
    for (const name of ["calling", "late", "good", "attention", "off", "ink", "quiet", "line", "surface", "raised"]) tones[name] = color(name);
    return tones;
  }

  function seconds(value) {
    const whole = Math.max(0, Math.floor(value));
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min` + (whole % 60 ? ` ${whole % 60} s` : "");
    const minutes = Math.floor((whole % 3600) / 60);
    if (whole < 86400) return `${Math.floor(whole / 3600)} h` + (minutes ? ` ${minutes} min` : "");
    return `${Math.floor(whole / 86400)} d`;
  }

  function words(kind, value) {
    if (value === null || value === undefined) return "—";
    if (kind === "seconds") return seconds(value);
    if (kind === "share") return `${Math.round(100 * value)}%`;
    return value.toLocaleString("en-US", { maximumFractionDigits: kind === "count" ? 0 : 1 });
  }

  function highest(data) {
    return Math.max(0, ...data.series.flatMap((series) => series.values.map((value) => value || 0)));
  }

  function scale(data, tones) {
    const ticks = { color: tones.quiet, callback: (value) => words(data.kind, value), maxTicksLimit: 6 };
    if (data.kind === "count") ticks.precision = 0;
    if (data.kind === "seconds") ticks.stepSize = TIME_STEPS.find((step) => highest(data) / step <= 5) || 86400;
    const found = { beginAtZero: true, ticks, grid: { color: tones.line }, border: { display: false } };
    if (data.top !== null) found.max = data.top;
    return found;
  }

  /* A name in a line of at most this length, or on a narrow chart in two. What does not fit is cut. */
  function nameLines(name, width) {
    const most = width < NARROW ? SLICE_NARROW : SLICE;
    const cut = (part) => (part.length > most ? `${part.slice(0, most - 1)}…` : part);
    const end = name.lastIndexOf(" ", most);
    return name.length <= most || width >= NARROW || end < 1 ? cut(name) : [name.slice(0, end), cut(name.slice(end + 1))];
  }

  function nameScale(data, tones) {
    return {
      grid: { display: false },
      border: { color: tones.line },
      ticks: {
        color: data.sideways ? tones.ink : tones.quiet, maxRotation: 0, autoSkip: !data.sideways, autoSkipPadding: 12,
        callback(_value, index) { return nameLines(data.names[index], this.chart.canvas.parentElement.clientWidth); },
      },
    };
  }

  /* Lines differ by their dashes too: [line of this period, line of the previous period] for each of a chart. */
  const DASHES = [[[], [5, 4]], [[2, 3], [8, 3, 2, 3]]];

  function dashes(series, data) {
    const place = data.series.filter((other) => !other.bars && !other.dashed === !series.dashed).indexOf(series);
    return DASHES[place % DASHES.length][series.dashed ? 1 : 0];
  }

  function dataset(series, tones, data) {
    const tone = tones[series.tone];
    const found = { label: series.label, data: series.values, order: series.bars ? 2 : 1, names: series.names };
    if (series.bars) return { ...found, type: "bar", backgroundColor: tone, maxBarThickness: 28, borderRadius: 2 };
    const dots = data.names.length > 45 || series.dashed ? 0 : 2.5;
    return {
      ...found, type: "line", borderColor: tone, backgroundColor: tone, borderWidth: 2, pointRadius: dots,
      pointHoverRadius: 4, borderDash: dashes(series, data), spanGaps: false, tension: 0,
    };
  }

  function options(data, tones) {
    const value = scale(data, tones), name = nameScale(data, tones);
    return {
      animation: false, responsive: true, maintainAspectRatio: false, indexAxis: data.sideways ? "y" : "x",
      interaction: { mode: "index", intersect: false, axis: data.sideways ? "y" : "x" },
      scales: data.sideways ? { x: value, y: name } : { x: name, y: value },
      plugins: {
        legend: {
          position: "bottom", align: "start", display: data.series.length > 1,
          labels: { color: tones.ink, usePointStyle: true, pointStyleWidth: 22, boxHeight: 7, padding: 12, generateLabels },
        },
        tooltip: {
          backgroundColor: tones.raised, titleColor: tones.ink, bodyColor: tones.ink, borderColor: tones.line,
          borderWidth: 1, padding: 10, usePointStyle: true, boxPadding: 4,
          callbacks: {
            title: (items) => (items.length ? data.names[items[0].dataIndex] : ""),
            label: (item) => {
              const other = (item.dataset.names || [])[item.dataIndex];
              return `${item.dataset.label}${other ? ` (${other})` : ""}: ${words(data.kind, item.raw)}`;
            },
          },
        },
      },
    };
  }

  /* A bar is shown as a square, and a line as a line with its dashes. */
  function generateLabels(chart) {
    const labels = Chart.defaults.plugins.legend.labels.generateLabels(chart);
    for (const label of labels) {
      const of = chart.data.datasets[label.datasetIndex];
      label.pointStyle = of.type === "bar" ? "rect" : "line";
      label.lineDash = of.borderDash || [];
      label.strokeStyle = of.type === "bar" ? "transparent" : of.borderColor;
      label.lineWidth = of.type === "bar" ? 0 : 2;
    }
    return labels.sort((one, other) => one.datasetIndex - other.datasetIndex);
  }

  function draw(canvas) {
    const data = JSON.parse(canvas.closest("figure").querySelector("script[type='application/json']").textContent);
    const box = canvas.parentElement, tones = palette();
    if (data.sideways) box.style.height = `${72 + data.names.length * (14 + 12 * data.series.length)}px`;
    const chart = new Chart(canvas, {
      data: { labels: data.names, datasets: data.series.map((series) => dataset(series, tones, data)) },
      options: options(data, tones),
    });
    drawn.push({ chart, data });
  }

  function recolor() {
    const tones = palette();
    for (const { chart, data } of drawn) {
      chart.data.datasets = data.series.map((series) => dataset(series, tones, data));
      chart.options = options(data, tones);
      chart.update("none");
    }
  }

  /* The picture has the title and the period above the chart, on the color of the page. */
  function picture(canvas, title) {
    const ratio = canvas.width / canvas.clientWidth, pad = 16 * ratio, head = 60 * ratio;
    const out = document.createElement("canvas");
    out.width = canvas.width + 2 * pad;
    out.height = canvas.height + head + pad;
    const pen = out.getContext("2d"), tones = palette(), family = getComputedStyle(document.body).fontFamily;
    pen.fillStyle = tones.surface;
    pen.fillRect(0, 0, out.width, out.height);
    pen.fillStyle = tones.ink;
    pen.font = `600 ${16 * ratio}px ${family}`;
    pen.fillText(title, pad, 28 * ratio, out.width - 2 * pad);
    pen.fillStyle = tones.quiet;
    pen.font = `${12 * ratio}px ${family}`;
    pen.fillText(canvas.dataset.period, pad, 48 * ratio, out.width - 2 * pad);
    pen.drawImage(canvas, pad, head);
    return out;
  }

  function save(button) {
    const canvas = document.getElementById(button.dataset.png);
    const title = button.closest("figure").querySelector("h2").textContent;
    picture(canvas, title).toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `dispatch-${canvas.dataset.name}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }, "image/png");
  }

  document.addEventListener("DOMContentLoaded", () => {
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 12;
    document.querySelectorAll("canvas[data-chart]").forEach(draw);
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-png]");
      if (button) save(button);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
    new MutationObserver(recolor).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  });
})();
