// The page of one job: takes what the server tells as it happens, and draws. The server has made all HTML, escaped.
"use strict";
(() => {
  const by = (id) => document.getElementById(id);
  const KEPT = 300; // rows of the story that stay on the page
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let charts = JSON.parse(by("charts").textContent);
  let over = !by("link");
  const plots = new Map();

  // ------------------------------------------------------------------------------------------------------- charts

  const shortTime = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);
  const number = (value) => (value == null ? "–" : Number(value.toPrecision(4)).toLocaleString());

  // As the story has it; the day stands below where it begins, if there are several.
  function clock(_, found, __, ___, increment) {
    const days = found.map((at) => new Date(at * 1000).toLocaleDateString("sv"));
    return found.map((at, n) => {
      const time = new Date(at * 1000).toTimeString().slice(0, increment < 60 ? 8 : 5);
      return days[0] === days.at(-1) || days[n] === days[n - 1] ? time : `${time}\n${days[n]}`;
    });
  }

  const SECONDS = [1, 2, 5, 10, 15, 30], HOURS = [1, 2, 3, 6, 12], DAYS = [1, 2, 5, 10, 30, 100, 365];
  const INCREMENTS = [...SECONDS, ...SECONDS.map((n) => 60 * n), ...HOURS.map((n) => 3600 * n), ...DAYS.map((n) => 86400 * n)];

  function axes() {
    const common = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    return [{ ...common, space: 90, values: clock, incrs: INCREMENTS }, { ...common, size: 52, values: (_, found) => found.map((value) => number(value)) }];
  }

  // What the legend says while no pointer is on the chart.
  const newest = (plot, column) => plot.data?.[column]?.at(-1);

  function options(host, label, colour, extra) {
    return {
      width: host.clientWidth, height: 190, padding: [10, 26, 0, 0],
      scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * (extra.headroom || 1.1) : 1] } },
      legend: { live: true }, cursor: { y: false }, axes: axes(),
      series: [{ label: "at", value: (plot, at) => { const known = at ?? newest(plot, 0); return known == null ? "–" : shortTime(known); } },
        { label, stroke: css(colour), width: 2, points: { show: false }, spanGaps: false,
          value: (plot, value, column, row) => number(row == null ? newest(plot, column) : value), ...extra }],
    };
  }

  // A change of the ring: a line down, and what it cost above it.
  function marks(plot) {
    const { ctx, bbox } = plot;
    const ratio = window.devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui`;
    ctx.textAlign = "center";
    let taken = -Infinity, before = charts.size.size[0];
    for (const [at, size, pause] of charts.size.changes) {
      const x = plot.valToPos(at, "x", true), y = plot.valToPos(size, "y", true);
      const above = plot.valToPos(Math.max(size, before), "y", true); // of the line that goes up or down there
      before = size;
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.fillStyle = ctx.strokeStyle = css("--mark");
      ctx.beginPath();
      ctx.arc(x, y, 3.5 * ratio, 0, 2 * Math.PI);
      ctx.fill();
      if (pause == null || x - taken < 52 * ratio) continue;
      ctx.fillText(pause < 1000 ? `${Math.round(pause)} ms` : `${(pause / 1000).toFixed(1)} s`, x, above - 8 * ratio);
      taken = x;
    }
    ctx.restore();
  }

  function draw(host, columns, label, make) {
    if (columns[0].length < 2) return;
    const known = plots.get(host);
    if (known && known.series[1].label === label) { known.setData(columns); return; }
    if (known) known.destroy();
    host.replaceChildren();
    plots.set(host, new uPlot(make(), columns, host));
  }

  // By its name: the place of a figure among them changes when another one is reported.
  function figureHost(name) {
    let host = [...by("figures").querySelectorAll(".chart")].find((one) => one.dataset.name === name);
    if (!host) {
      const section = document.createElement("section"), title = document.createElement("h2");
      title.textContent = name;
      host = document.createElement("div");
      host.dataset.name = name;
      host.className = "chart";
      section.append(title, host);
      by("figures").append(section);
    }
    return host;
  }

  function drawAll() {
    const { size, series } = charts;
    const sizes = by("chart-size"), rates = by("chart-rate");
    draw(sizes, [size.at, size.size], "workers", () => ({
      ...options(sizes, "workers", "--accent", { paths: uPlot.paths.stepped({ align: 1 }), fill: css("--wash"), headroom: 1.3 }),
      hooks: { draw: [marks] },
    }));
    const samples = series.samples_s.some((value) => value), unit = samples ? "samples/s" : "steps/s";
    draw(rates, [series.at, samples ? series.samples_s : series.steps_s], unit, () => options(rates, unit, "--good", {}));
    for (const [name, values] of Object.entries(series.figures)) {
      const host = figureHost(name);
      draw(host, [series.at, values], name, () => ({ ...options(host, name, "--mark", { spanGaps: true }), scales: {} }));
    }
  }

  function drawAnew() {
    for (const plot of plots.values()) plot.destroy();
    plots.clear();
    drawAll();
  }

  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);
  new ResizeObserver(() => {
    for (const [host, plot] of plots) {
      const width = host.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: 190 });
    }
  }).observe(document.querySelector("main"));

  // ----------------------------------------------------------------------------------------------------- as it happens

  if (over || !window.EventSource) return;
  const story = by("story"), link = by("link");
  let last = Number((story.firstElementChild?.id || "e0").slice(1));
  let source, again;

  function live(yes) {
    link.textContent = yes ? "live" : "connecting";
    link.classList.toggle("off", !yes);
  }

  function happened(message) {
    const told = JSON.parse(message.data);
    if (told.number <= last) return;
    last = told.number;
    story.insertAdjacentHTML("afterbegin", told.html);
    story.firstElementChild.dataset.seen = String(Date.now());
    story.firstElementChild.classList.add("fresh");
    while (story.childElementCount > KEPT) story.lastElementChild.remove();
  }

  function looked(message) {
    const told = JSON.parse(message.data);
    for (const [id, html] of Object.entries(told.parts)) {
      const part = by(id);
      if (part.dataset.html !== html) { part.innerHTML = html; part.dataset.html = html; }
    }
    if (told.charts) { charts = told.charts; drawAll(); }
    if (told.over) { over = true; source.close(); link.remove(); }
  }

  function connect() {
    source = new EventSource(`events?after=${last}`);
    source.addEventListener("open", () => live(true));
    source.addEventListener("happened", happened);
    source.addEventListener("look", looked);
    source.addEventListener("error", () => {
      if (over) return;
      live(false);
      if (source.readyState === EventSource.CLOSED) { clearTimeout(again); again = setTimeout(connect, 1000); }
    });
  }
  connect();
})();
