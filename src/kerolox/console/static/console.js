"use strict";
// Charts of the history, and the bound of a page that follows a topic. Pages work without it.
(function () {
  const REFRESH_MS = 30000;
  const charts = new Map();

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // As tiles and tables have it: thousands apart, and a fraction of small rates alone.
  function number(value, unit) {
    if (value == null) return "–";
    const text = unit === "/s" && value < 100 ? value.toFixed(1) : String(Math.round(value));
    return text.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f") + unit;
  }

  function options(figure, labels, width, found) {
    const isLong = found.end - found.begin > 2 * 86400;
    const when = new Intl.DateTimeFormat(undefined, isLong ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hour12: false });
    const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "short", hour12: false });
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    const unit = figure.dataset.unit;
    const shown = (_plot, value) => number(value, unit);
    // Ticks of a chart of small figures lie between whole numbers.
    const tick = (each) => (Number.isInteger(each) ? number(each, "") : String(each));
    return {
      width: width,
      height: 200,
      legend: { live: true },
      axes: [Object.assign({ values: (_plot, ticks) => ticks.map((each) => when.format(each * 1000)) }, axis), Object.assign({ size: 80, values: (_plot, ticks) => ticks.map(tick) }, axis)],
      scales: { x: { range: () => [found.begin, found.end] }, y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      series: [{ value: (_plot, at) => (at == null ? "–" : moment.format(at * 1000)) }].concat(labels.map((label, index) => ({
        label: label, stroke: colour("--series-" + (index % 6 + 1)), width: 2, value: shown, spanGaps: true,
        points: { show: found.times.length < 3 },
      }))),
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
      note.textContent = "The figures can't be had now.";
      return;
    }
    const labels = figure.dataset.labels.split("\n").slice(0, found.values.length);
    note.textContent = found.times.length
      ? "Last: " + labels.map((label, index) => label + " " + number(found.values[index].at(-1), figure.dataset.unit)).join(", ")
      : "No figures yet.";
    const old = charts.get(figure);
    if (old) old.destroy();
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
    document.body.addEventListener("htmx:oobAfterSwap", function () {
      const list = document.getElementById("tail");
      while (list && list.children.length > Number(list.dataset.keep)) list.lastElementChild.remove();
    });
  });
})();
