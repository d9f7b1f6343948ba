// Shows what the parties hold, as the demo's server tells it; draws the noisy sums.
const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let shown = "";
let drawn = null;
let leaving = []; // when the reports of this tab's clicks have left the browser, at the latest

function rows(list, entries) {
  list.replaceChildren(
    ...entries.flatMap(([name, value, kind]) => {
      const term = document.createElement("dt"), told = document.createElement("dd");
      term.textContent = name;
      told.textContent = value;
      if (kind) told.className = kind;
      return [term, told];
    }),
  );
  const card = list.parentElement;
  card.classList.remove("fresh");
  void card.offsetWidth;
  card.classList.add("fresh");
}

function show(last) {
  if (!last || last.report_id === shown) return;
  shown = last.report_id;
  at("waiting").textContent = last.is_fake
    ? "A fake report: all of its pairs add to 0. Neither helper, nor the ad server, can tell: features and campaign come from the newspaper's public table."
    : `A real report of an ad for ${last.campaign}: its pair of money spent adds to ${last.spent}.`;
  at("waiting").textContent += " Whichever tab or browser sent the last report, it is shown here.";
  rows(at("adserver"), [
    ["report id", last.report_id],
    ["hour (since 1970)", last.time_bucket],
    ...last.ciphertexts.map((text, role) => [`for helper ${role}\n${text.length / 2} bytes`, text, "cipher"]),
  ]);
  for (const role of [0, 1]) {
    rows(at(`helper${role}`), [
      ["features", last.features.join(" ")],
      ["campaign", last.campaign],
      ...last.helpers[role].masks.map(([label, share]) => [label ? "bought?" : "did not buy?", share, "share"]),
      ["money spent", last.helpers[role].value, "share"],
    ]);
  }
}

const count = ({ simulated, browsers }) =>
  `${simulated + browsers} reports (${simulated} from simulated people, ${browsers} from browsers)`;

function draw(result) {
  drawn = result;
  at("earlier").hidden = true;
  const svg = at("chart").querySelector("svg");
  at("chart").hidden = at("table").hidden = false;
  const most = Math.max(...result.cells.map((cell) => Math.max(cell.high, cell.truth)), 1);
  const wide = svg.clientWidth;
  const x = (value) => 80 + (Math.max(value, 0) / most) * (wide - 150);
  const put = (name, attributes, text) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  svg.setAttribute("viewBox", `0 0 ${wide} 190`);
  svg.replaceChildren(
    ...result.cells.flatMap((cell, row) => {
      const y = 12 + row * 60;
      return [
        put("text", { x: 0, y: y + 25 }, cell.campaign),
        put("rect", { class: "noisy", x: x(0), y: y + 8, width: Math.max(x(cell.value) - x(0), 0), height: 26, rx: 3 }),
        put("line", { class: "halo", x1: x(cell.low) - 2, x2: x(cell.high) + 2, y1: y + 21, y2: y + 21 }),
        put("line", { class: "interval", x1: x(cell.low), x2: x(cell.high), y1: y + 21, y2: y + 21 }),
        put("line", { class: "truth", x1: x(cell.truth), x2: x(cell.truth), y1: y + 2, y2: y + 40 }),
        put("text", { x: x(cell.high) + 10, y: y + 25 }, Math.round(cell.value)),
      ];
    }),
  );
  const { reports, spent, budget, delta } = result;
  at("caption").textContent =
    `Money spent by campaign, from ${count(reports)}: the bar is the sum of both helpers' noisy answers, its line the 99 % interval, the upright line the truth. ` +
    `Of this dataset's budget, epsilon ${spent.ad_server.toFixed(2)} of ${budget.ad_server} is spent against the ad server alone, ` +
    `and ${spent.colluding.toFixed(2)} of ${budget.colluding} against the ad server with one helper, each at delta ${delta}.`;
  at("table").tBodies[0].replaceChildren(
    ...result.cells.map((cell) => {
      const row = document.createElement("tr");
      for (const text of [cell.campaign, Math.round(cell.value), `${Math.round(cell.low)} to ${Math.round(cell.high)}`, cell.truth]) {
        row.append(Object.assign(document.createElement("td"), { textContent: text }));
      }
      return row;
    }),
  );
}

async function poll() {
  try {
    const state = await (await fetch("/api/state", { cache: "no-store" })).json();
    const isFilling = state.waiting.simulated < state.crowd;
    at("crowd").textContent =
      `For the next measurement, ${count(state.waiting)} wait${isFilling ? "; more simulated people are on their way" : ""}.`;
    at("people").textContent = state.crowd;
    show(state.last);
    tellLeaving();
    if (state.result && state.result.number > (drawn?.number ?? 0)) draw(state.result); // of another tab, or before a reload
  } catch {
    at("waiting").textContent = "The demo's server is gone.";
  }
}

function tellLeaving() {
  const now = performance.now();
  leaving = leaving.filter((moment) => moment > now);
  at("coming").hidden = leaving.length === 0;
  const seconds = Math.max(1, Math.round((leaving[0] - now) / 1000 - delayS / 2));
  const waits = leaving.length === 1 ? "1 report waits and leaves" : `${leaving.length} reports wait; the next leaves`;
  at("coming").textContent = `In this browser ${waits} in about ${seconds} s.`;
}

at("measure").onclick = async () => {
  at("measure").disabled = true;
  at("earlier").hidden = drawn === null;
  at("status").textContent = "the helpers add their shares, draw noise and answer …";
  try {
    draw(await measure());
    at("status").textContent = "";
  } catch (error) {
    at("status").textContent = `No sums: ${error.message}`;
  } finally {
    at("measure").disabled = false;
  }
};

async function measure() {
  let answer;
  try {
    answer = await fetch("/api/measure", { method: "POST" });
  } catch {
    throw new Error("the demo's server is gone: start `make demo-browser` again, and open the address that it prints");
  }
  if (answer.ok) return answer.json();
  const { message } = await answer.json().catch(() => ({ message: `the demo failed (${answer.status}): its terminal says why` }));
  throw new Error(message);
}

const { publisher, shop, lifetimeS, delayS } = await (await fetch("/api/sites")).json();
at("lifetime").textContent = lifetimeS;
at("publisher").src = publisher;
at("shop").src = shop;
addEventListener("message", (event) => {
  if (event.origin === new URL(publisher).origin && event.data?.product !== undefined) {
    at("shop").src = `${shop}?product=${Number(event.data.product)}`;
    leaving.push(performance.now() + (lifetimeS + delayS) * 1000);
    tellLeaving();
  }
});
addEventListener("resize", () => drawn && draw(drawn));
await poll();
setInterval(poll, 1000);
