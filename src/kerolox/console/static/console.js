"use strict";
// Charts of the history, and the bound of a page that follows a topic. Pages work without it.
(function () {
  const REFRESH_MS = 30000;
  const GOES_ON_MS = 400;
  const HEIGHT = 190;
  const COLOURS = 6;
  const FILLED_MAX = 2;
  const charts = new Map();
  const zone = () => document.body.dataset.zone;

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // As tiles and tables have it: thousands apart, and a fraction of small rates alone.
  function number(value, unit) {
    if (value == null) return "–";
    const text = unit === "/s" && value < 100 ? value.toFixed(1) : String(Math.round(value));
    return text.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f") + unit;
  }

  function tick(value) {
    // Ticks of a chart of small metrics lie between whole numbers.
    if (!Number.isInteger(value)) return String(value);
    if (value >= 1e9) return value / 1e9 + "G";
    if (value >= 1e6) return value / 1e6 + "M";
    return number(value, "");
  }

  // The line above a chart: its key, and the values at one place of it.
  function say(note, when, labels, found, index, unit) {
    note.replaceChildren(when + " ");
    labels.forEach(function (label, at) {
      const key = document.createElement("span");
      key.className = "key key-" + (at % COLOURS + 1);
      key.textContent = label + " " + number(found.values[at].at(index), unit);
      note.append(key, at < labels.length - 1 ? ", " : "");
    });
  }

  function options(figure, labels, width, found) {
    const isLong = found.end - found.begin > 2 * 86400;
    const when = new Intl.DateTimeFormat(undefined, isLong ? { month: "short", day: "numeric", timeZone: zone() } : { hour: "2-digit", minute: "2-digit", hour12: false, timeZone: zone() });
    const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "short", hour12: false, timeZone: zone() });
    const note = figure.querySelector(".chart-note");
    const unit = figure.dataset.unit;
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const atCursor = function (plot) {
      const index = plot.cursor.idx;
      if (index == null) say(note, "Last:", labels, found, -1, unit);
      else say(note, moment.format(found.times[index] * 1000) + ":", labels, found, index, unit);
    };
    return {
      width: width,
      height: HEIGHT,
      legend: { show: false },
      padding: [10, 12, 0, 0],
      cursor: { y: false, points: { size: 7 } },
      hooks: { setCursor: [atCursor] },
      axes: [Object.assign({}, axis, { size: 28, grid: { show: false }, values: (_plot, ticks) => ticks.map((each) => when.format(each * 1000)) }), Object.assign({ size: 52, values: (_plot, ticks) => ticks.map(tick) }, axis)],
      scales: { x: { range: () => [found.begin, found.end] }, y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.15 : 1] } },
      series: [{}].concat(labels.map(function (label, index) {
        const stroke = colour("--series-" + (index % COLOURS + 1));
        return { label: label, stroke: stroke, fill: labels.length <= FILLED_MAX ? stroke + "1c" : undefined, width: 2.25, spanGaps: true, points: { show: found.times.length < 3 } };
      })),
    };
  }

  async function draw(figure) {
    const place = figure.querySelector(".plot");
    const note = figure.querySelector(".chart-note");
    let found;
    try {
      const answer = await fetch(figure.dataset.url, { headers: { accept: "application/json" } });
      if (!answer.ok) throw new Error(String(answer.status));
      found = await answer.json();
    } catch (error) {
      note.textContent = "The metrics do not come now.";
      return;
    }
    const old = charts.get(figure);
    if (old && old.cursor.idx != null) return; // somebody reads it
    const labels = figure.dataset.labels.split("\n").slice(0, found.values.length);
    if (found.times.length) say(note, "Last:", labels, found, -1, figure.dataset.unit);
    else note.textContent = "No metrics yet. The first come within a minute.";
    if (old) old.destroy();
    charts.delete(figure);
    if (found.times.length) {
      charts.set(figure, new uPlot(options(figure, labels, place.clientWidth, found), [found.times].concat(found.values), place));
    }
  }

  function drawAll() {
    for (const figure of charts.keys()) if (!figure.isConnected) charts.delete(figure);
    if (!document.hidden) document.querySelectorAll("[data-chart]").forEach(draw);
  }

  document.addEventListener("DOMContentLoaded", function () {
    drawAll();
    setInterval(drawAll, REFRESH_MS);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
    let waiting;
    addEventListener("resize", function () { clearTimeout(waiting); waiting = setTimeout(drawAll, 200); });
    // Browsers give the clipboard to pages that came over TLS, or from this machine.
    for (const button of navigator.clipboard ? document.querySelectorAll("[data-copy]") : []) {
      const label = button.lastChild;
      const text = label.data;
      button.hidden = false;
      button.addEventListener("click", async function () {
        await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
        label.data = "Copied";
        setTimeout(function () { label.data = text; }, 2000);
      });
    }
    addEventListener("change", function (event) {
      const all = event.target.closest("[data-all]");
      for (const each of all ? all.form.elements : []) if (each.name === all.dataset.all) each.checked = all.checked;
    });
    // Somebody has begun what takes more than one request.
    const unfinished = document.querySelector("form[data-goes-on]");
    if (unfinished) setTimeout(function () { unfinished.requestSubmit(); }, GOES_ON_MS);
    addEventListener("keydown", function (event) {
      const isTyping = event.target.closest("input, select, textarea, [contenteditable]");
      const field = document.querySelector("[data-find]");
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping || !field) return;
      event.preventDefault();
      field.focus();
      field.select();
    });
    // A list that is frozen asks for nothing, and goes on where it was.
    const freeze = document.querySelector("[data-tail-freeze]");
    if (freeze) {
      const isFrozen = () => freeze.getAttribute("aria-pressed") === "true";
      document.body.addEventListener("htmx:beforeRequest", function (event) { if (isFrozen()) event.preventDefault(); });
      freeze.addEventListener("click", function () {
        freeze.setAttribute("aria-pressed", String(!isFrozen()));
        if (isFrozen()) return;
        const poll = document.getElementById("poll");
        const again = poll.cloneNode(true);
        poll.replaceWith(again);
        htmx.process(again);
      });
    }
    document.body.addEventListener("htmx:oobAfterSwap", function () {
      const list = document.getElementById("tail");
      while (list && list.children.length > Number(list.dataset.keep)) list.lastElementChild.remove();
    });
  });
})();
