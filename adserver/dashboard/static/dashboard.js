// Keeps a page up to date, and draws a job's curves from the table that is in the page anyway.
// Without this file every page is whole; it only has to be loaded again by hand.

const AWAKE_MS = 2000;
const HIDDEN_MS = 15000;
const SOON_MS = 250; // while a part of the page is being computed
const PATIENCE_MS = 2500;
const root = document.documentElement;
const byId = (id) => document.getElementById(id);

let tag = "";
let since = new Date();
let timer = 0;
let isAsking = false;

function showState(isWell) {
  byId("stale").hidden = isWell;
  byId("pulse").hidden = !isWell;
  root.classList.toggle("is-stale", !isWell);
  if (isWell) since = new Date();
  else byId("stale-since").textContent = `${since.toISOString().slice(11, 19)} UTC`;
}

// A narrow page shows a row's cells one below the other, each with its column's name; two columns fit.
function nameCells(where) {
  for (const table of where.querySelectorAll("table")) {
    const heads = [...(table.tHead?.rows[0].cells ?? [])];
    const names = heads.map((cell) => cell.textContent);
    if (heads.filter((cell) => !cell.classList.contains("wide")).length < 3) continue;
    table.classList.add("is-named");
    for (const row of table.tBodies[0].rows) {
      let at = 0;
      for (const cell of row.cells) {
        if (cell.colSpan === 1) cell.dataset.label = names[at];
        at += cell.colSpan;
      }
    }
  }
}

// What finds an element of a live part in the next version of the part: its id, or where it leads.
function nameOf(element) {
  const href = element.getAttribute("href");
  return element.id ? `#${CSS.escape(element.id)}` : href && `a[href="${CSS.escape(href)}"]`;
}

// Each live part is replaced only where it differs, so that focus and selection elsewhere stay.
function takeOver(fresh) {
  nameCells(fresh);
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (!other) continue;
    // Before they are compared: what a person has opened is no difference
    for (const one of part.querySelectorAll("details[open]")) fresh.getElementById(one.id)?.setAttribute("open", "");
    if (other.innerHTML === part.innerHTML) continue;
    const { activeElement } = document;
    const where = part.contains(activeElement) && nameOf(activeElement);
    part.replaceChildren(...other.childNodes);
    if (where) part.querySelector(where)?.focus({ preventScroll: true });
  }
  drawCurves();
}

async function look() {
  if (isAsking) return;
  isAsking = true;
  clearTimeout(timer);
  const asked = location.href;
  try {
    const answer = await fetch(asked, {
      headers: tag ? { "if-none-match": tag } : {},
      cache: "no-store",
      redirect: "error",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (answer.status === 401) return location.reload();
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (fresh.documentElement.dataset.assets !== root.dataset.assets) return location.reload();
      if (asked === location.href) {
        tag = answer.headers.get("etag") ?? "";
        takeOver(fresh);
      }
    }
    showState(true);
  } catch {
    showState(false);
  } finally {
    isAsking = false;
    timer = setTimeout(look, asked === location.href ? pause() : 0);
  }
}

function pause() {
  if (document.hidden) return HIDDEN_MS;
  return document.querySelector("[data-soon]") ? SOON_MS : AWAKE_MS;
}

// A form whose answer is a live part of the same page: its sliders show their numbers, and what changes is
// asked for at once, without losing the focus.
function followForm(form) {
  form.addEventListener("input", () => {
    for (const shown of form.querySelectorAll("output")) shown.value = byId(shown.htmlFor.value).value;
  });
  form.addEventListener("change", (event) => {
    if (!form.checkValidity()) return;
    // Of another task the fields have other defaults
    if (event.target.matches("select")) return form.submit();
    history.replaceState(null, "", `?${new URLSearchParams(new FormData(form))}`);
    tag = "";
    look();
  });
}

const charts = new Map();
const PANELS = { loss: ["loss", "calibrated_loss", "accuracy", "auc"], noise: ["noise_to_signal", "gradient_norm"] };
const STYLES = {
  loss: { ink: "--curve-1", scale: "y" },
  // Of two classes: by this loss weights are chosen, since the plain one may rise while the model learns.
  calibrated_loss: { ink: "--curve-4", scale: "y", dash: [6, 4] },
  accuracy: { ink: "--curve-2", scale: "right", dash: [6, 4] },
  auc: { ink: "--curve-3", scale: "right", dash: [2, 3] },
  noise_to_signal: { ink: "--curve-1", scale: "y" },
  gradient_norm: { ink: "--curve-2", scale: "right", dash: [6, 4] },
};
// In one language, as the page's own numbers are, whatever the browser's
const spell = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 6 }).format;
// Not every round is evaluated, so of others it is the number of the nearest earlier one that was, with its round.
function value(plot, _, line, at) {
  const place = plot.data[line].findLastIndex((number, before) => before <= (at ?? -1) && number !== null);
  if (place < 0) return "\u2013";
  return spell(plot.data[line][place]) + (place === at ? "" : ` (round ${spell(plot.data[0][place])})`);
}
const FONT = "12px system-ui, sans-serif";

// The table's columns as numbers, the first round first; a dash is no number.
function columns() {
  const heads = [...document.querySelectorAll("#curves thead th")];
  const rows = [...document.querySelectorAll("#curves tbody tr")].filter((row) => row.cells.length > 1).reverse();
  return new Map(
    heads.map((head, at) => {
      const numbers = rows.map((row) => {
        const number = Number.parseFloat(row.cells[at].textContent.replaceAll(",", ""));
        return Number.isNaN(number) ? null : number;
      });
      return [head.dataset.figure, { name: head.dataset.figure, label: head.textContent, numbers }];
    }),
  );
}

function ink(name) {
  return getComputedStyle(root).getPropertyValue(name).trim();
}

function options(panel, lines, width) {
  const axis = (scale, side) => ({
    scale,
    side,
    stroke: ink("--dim"),
    grid: { stroke: ink("--line"), width: 1, show: side !== 1 },
    ticks: { show: false },
    font: FONT,
    size: side === 2 ? 30 : 46,
    label: side === 2 ? "Round" : lines.filter((line) => line.scale === scale).map((line) => line.label).join(", "),
    labelFont: FONT,
    labelSize: 18,
    values: (_, ticks) => ticks.map(spell),
  });
  const dashOf = ({ dash }) => (!dash ? "solid" : dash[0] > 3 ? "dashed" : "dotted");
  const areTwo = lines.some((line) => line.scale === "right");
  return {
    width,
    height: 240,
    legend: { live: true, markers: { fill: () => null, dash: (_, at) => dashOf(lines[at - 1]) } },
    hooks: { setCursor: [showLast] },
    cursor: { points: { size: 6 }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: {}, right: panel === "loss" ? { range: [0, 1] } : {} },
    axes: [axis("x", 2), axis("y", 3), ...(areTwo ? [axis("right", 1)] : [])],
    series: [
      { label: "Round", value },
      ...lines.map((line) => ({
        label: areTwo ? `${line.label} (${line.scale === "right" ? "right" : "left"})` : line.label,
        value,
        scale: line.scale,
        stroke: ink(line.ink),
        width: 2,
        dash: line.dash,
        spanGaps: true,
        points: { show: false },
      })),
    ],
  };
}

// While no round is pointed at, the legend has the last one with a number: not every round is evaluated.
function showLast(plot) {
  if (plot.cursor.idx !== null) return;
  const [, ...lines] = plot.data;
  const last = Math.max(...lines.map((numbers) => numbers.findLastIndex((number) => number !== null)));
  plot.setLegend({ idxs: plot.data.map(() => last) }, false);
}

function drawCurves(isAnew = false) {
  const place = byId("charts");
  if (!place || typeof uPlot === "undefined") return;
  const found = columns();
  const rounds = found.get("rounds_done")?.numbers ?? [];
  place.hidden = rounds.length < 2;
  if (place.hidden) return;
  for (const host of place.querySelectorAll("[data-chart]")) {
    const panel = host.dataset.chart;
    const drawn = PANELS[panel].map((name) => found.get(name)).filter((one) => one?.numbers.some((number) => number !== null));
    const lines = drawn.map((one) => ({ ...STYLES[one.name], label: one.label }));
    // One of its own is read off the left axis
    if (lines.length === 1) lines[0].scale = "y";
    host.parentElement.hidden = lines.length === 0;
    if (lines.length === 0) continue;
    const shown = [rounds, ...drawn.map((one) => one.numbers)];
    const known = charts.get(panel);
    if (known && !isAnew && known.lines === lines.length) {
      known.plot.setData(shown);
      showLast(known.plot);
      continue;
    }
    known?.plot.destroy();
    const plot = new uPlot(options(panel, lines, host.clientWidth), shown, host);
    showLast(plot);
    charts.set(panel, { plot, lines: lines.length });
  }
}

function fitCurves() {
  for (const { plot } of charts.values()) {
    plot.setSize({ width: plot.root.parentElement.clientWidth, height: 240 });
  }
}

nameCells(document);
for (const form of document.querySelectorAll("form[data-follow]")) followForm(form);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCurves(true));
addEventListener("resize", fitCurves);
addEventListener("load", () => drawCurves());
if (document.querySelector("[data-live]")) {
  showState(true);
  timer = setTimeout(look, pause());
}
