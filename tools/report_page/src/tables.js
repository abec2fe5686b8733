// The sections under the picture: devices, candidates, cuts, operations, and how all of it was made.
import { bytes, count, el, number, percent, shortened, svg, time, times } from "./dom.js";

const COPIES = "copies";

const cell = (text, kind = "figure") => el("td", { class: kind }, text);
const head = (...names) => el("thead", {}, el("tr", {}, names.map((name, at) => el("th", { scope: "col", class: at ? "figure" : null }, name))));
export const swatch = (device) => el("span", { class: `swatch swatch-${(device) % 8}`, "aria-hidden": "true" });

// The whole model as one stripe in the order in which it runs, wide as the time that its parts take.
export function stripe(model, onNode) {
  const nodes = [...Array(model.size).keys()].filter((node) => model.computes(node));
  const runs = [];
  const total = nodes.reduce((sum, node) => sum + model.nodes.us[node], 0);
  for (const node of nodes) {
    const device = model.nodes.device[node];
    const share = total ? model.nodes.us[node] / total : 1 / nodes.length;
    const last = runs[runs.length - 1];
    if (last && last.device === device) {
      last.share += share;
      last.nodes.push(node);
    } else runs.push({ device, share, nodes: [node] });
  }
  const order = runs.slice(0, 12).map((run) => `${percent(run.share)} on ${model.devices[run.device]}`).join(", then ");
  const found = el("div", { class: "stripe", role: "img", "aria-label": `order of the model: ${order}` });
  for (const run of joined(runs)) {
    const [first, last] = [run.nodes[0], run.nodes[run.nodes.length - 1]];
    const jump = ({ currentTarget, clientX }) => {
      const box = currentTarget.getBoundingClientRect();
      const place = Math.floor(((clientX - box.left) / box.width) * run.nodes.length);
      onNode(run.nodes[Math.min(Math.max(place, 0), run.nodes.length - 1)]);
    };
    const told = `${model.devices[run.device]}: ${count(run.nodes.length, "operation")}, ${percent(run.share)} of the time, ${shortened(model.name(first), 80)} … ${shortened(model.name(last), 80)}`;
    found.append(el("span", { class: `swatch swatch-${run.device % 8}`, title: told, onclick: jump, css: { width: `${run.share * 100}%` } }));
  }
  return found;
}

// Runs that nobody could see are with those before them.
function joined(runs) {
  const found = [];
  for (const run of runs) {
    const last = found[found.length - 1];
    if (last && (last.device === run.device || run.share < 0.0008)) {
      last.share += run.share;
      last.nodes.push(...run.nodes);
    } else found.push({ ...run, nodes: [...run.nodes] });
  }
  return found;
}

export function devicesTable(model) {
  const { summary, memory, devices } = model;
  const busiest = Math.max(...devices.map((name) => summary.devices[name].busy_us)) || 1;
  const most = Math.max(...memory.map((one) => Math.max(one.total, Math.min(one.limit ?? 0, one.total * 4)))) || 1;
  const states = memory.some((one) => one.states);
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "bars" },
      head("Device", "Operations", "Busy for each request", "", "Memory", "", "Limit"),
      el(
        "tbody",
        {},
        devices.map((name, device) => {
          const one = summary.devices[name];
          const own = memory[device];
          const parts = [
            ["weights", own.weights],
            ["states", own.states],
            ["tensors", own.tensors],
          ].filter(([, size]) => size);
          const over = own.limit !== null && own.total > own.limit;
          const inside = own.limit !== null && own.limit <= most;
          return el(
            "tr",
            {},
            el("th", { scope: "row" }, swatch(device), " ", name),
            cell(number(one.operations)),
            cell(time(one.busy_us)),
            el("td", { class: "wide" }, el("span", { class: "bar" }, el("span", { class: `swatch swatch-${(device) % 8}`, css: { width: `${(one.busy_us / busiest) * 100}%` } }))),
            cell([bytes(own.total), el("br"), el("small", {}, parts.map(([part, size]) => `${part} ${bytes(size)}`).join(", "))]),
            el(
              "td",
              { class: "wide" },
              el(
                "span",
                { class: "bar memory" },
                parts.map(([part, size]) => el("span", { class: `part ${part}`, title: `${part}: ${bytes(size)}`, css: { width: `${(size / most) * 100}%` } })),
                inside ? el("span", { class: "limit", css: { left: `${(own.limit / most) * 100}%` }, title: `limit: ${bytes(own.limit)}` }) : null,
              ),
            ),
            cell(own.limit === null ? "none" : [bytes(own.limit), el("br"), el("small", { class: over ? "over" : null }, over ? "exceeded" : `${percent(own.total / own.limit)} used`)]),
          );
        }),
      ),
    ),
    el("p", { class: "quiet legend" }, ["weights", ...(states ? ["states"] : []), "tensors"].map((part) => el("span", { class: "chip" }, el("span", { class: `part ${part}`, "aria-hidden": "true" }), part === "tensors" ? "tensors while it runs" : part))),
  );
}

const figure = (model, one) => (model.summary.objective === "throughput" ? one?.throughput_ips : one?.latency_us) ?? null;
const told = (model, value) => (value === null ? "–" : model.summary.objective === "throughput" ? `${number(Number(value.toPrecision(4)))}/s` : time(value));

export function predictedAndMeasured(model) {
  const { record, summary } = model;
  const now = summary.objective === "throughput" ? 1e6 / (summary.period_us || 1) : summary.latency_us;
  const stored = figure(model, record.predicted);
  const measured = figure(model, record.measured?.[record.chosen]);
  const best = stored ?? now;
  const lines = [["predicted", best, "predicted"]];
  if (measured !== null) lines.push(["measured", measured, "measured"]);
  const most = Math.max(...lines.map((line) => line[1])) || 1;
  const off = measured === null ? null : measured / best - 1;
  return el(
    "div",
    {},
    el(
      "table",
      { class: "bars" },
      el("tbody", {}, lines.map(([name, value, kind]) => el("tr", {}, el("th", { scope: "row" }, name), cell(told(model, value)), el("td", { class: "wide" }, el("span", { class: "bar" }, el("span", { class: `plainbar ${kind}`, css: { width: `${(value / most) * 100}%` } })))))),
    ),
    el(
      "p",
      { class: "quiet" },
      off === null
        ? "Nothing of it was measured when it was placed: the devices were not there, or --no-measure was given."
        : `Measured ${Math.abs(off * 100).toFixed(1)}% ${off > 0 ? "above" : "below"} the prediction.`,
      stored !== null && Math.abs(now / stored - 1) > 0.02
        ? ` With the costs of this report, which may be others than when it was placed, the prediction is ${told(model, now)}.`
        : "",
    ),
  );
}

export function rivals(model) {
  const { record } = model;
  const names = [...new Set([record.chosen, ...Object.keys(record.baselines), ...Object.keys(record.measured ?? {}), ...Object.keys(record.notes ?? {})])];
  const rows = names.map((name) => {
    const chosen = name === record.chosen;
    const real = record.measured?.[name] ?? {};
    const predicted = (chosen ? record.predicted : record.baselines[name]) ?? {};
    const [guess, gain] = record.gains[name] ?? [null, null];
    const interval = real.times_best_single_ci ?? null;
    return { name, chosen, real, predicted, guess, gain, interval, note: real.failed || record.notes?.[name] || "" };
  });
  const values = rows.flatMap(({ guess, gain, interval }) => [guess, gain, ...(interval ?? [])]).filter((one) => one !== null && one > 0 && one < 50);
  const [low, high] = [Math.min(0.9, ...values) * 0.97, Math.max(1.1, ...values) * 1.03];
  const x = (value) => 8 + ((Math.min(Math.max(value, low), high) - low) / (high - low)) * 204;
  const plot = ({ guess, gain, interval, name }) =>
    svg(
      "svg",
      { class: "forest", viewBox: "0 0 220 22", width: 220, height: 22, role: "img", "aria-label": `${name}: ${gain !== null ? `measured ${times(gain)}` : guess !== null ? `predicted ${times(guess)}` : "no figure"}` },
      svg("line", { class: "unit", x1: x(1), y1: 0, x2: x(1), y2: 22 }),
      guess !== null && svg("circle", { class: "guess", cx: x(guess), cy: 11, r: 4.5 }),
      interval && svg("line", { class: "interval", x1: x(interval[0]), y1: 11, x2: x(interval[1]), y2: 11 }),
      interval && interval.map((end) => svg("line", { class: "interval", x1: x(end), y1: 6, x2: x(end), y2: 16 })),
      gain !== null && svg("rect", { class: "gain", x: x(gain) - 4.5, y: 6.5, width: 9, height: 9 }),
    );
  const measured = rows.some((row) => row.gain !== null);
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "rivals" },
      head("Candidate", "Submodels", "Predicted", "Measured", "× best single device", measured ? "95% interval" : "", ""),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            { class: row.chosen ? "here" : null },
            el("th", { scope: "row" }, row.chosen ? "▸ " : "", row.name, row.chosen ? " (chosen)" : ""),
            cell(row.name === COPIES ? "–" : number(row.real.submodels ?? row.predicted.submodels ?? NaN).replace("NaN", "–")),
            cell(told(model, figure(model, row.predicted))),
            cell(row.real.failed ? "failed" : told(model, figure(model, row.real))),
            cell(row.gain !== null ? times(row.gain) : row.guess !== null ? `${times(row.guess)} predicted` : "–"),
            cell(row.interval ? `${row.interval[0].toFixed(2)} to ${row.interval[1].toFixed(2)}` : ""),
            el("td", {}, plot(row), row.note ? el("small", { class: "quiet" }, ` ${shortened(row.note, 120)}`) : null),
          ),
        ),
      ),
    ),
    el("p", { class: "quiet" }, "○ predicted  ■ measured, with its 95% confidence interval; the line is the best single device."),
  );
}

export function cutsTable(model, go) {
  const { cuts, devices } = model;
  const order = cuts.us.map((_, cut) => cut).sort((a, b) => cuts.us[b] - cuts.us[a]);
  if (!order.length) return el("p", {}, "Nothing crosses between devices.");
  const few = order.slice(0, 12);
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      {},
      head("Tensor", "From", "To", "Size", "Time"),
      el(
        "tbody",
        {},
        few.map((cut) =>
          el(
            "tr",
            {},
            el("td", {}, cuts.node[cut] < 0 ? "a constant" : el("button", { type: "button", class: "link", onclick: () => go(cuts.node[cut]) }, `${model.type(cuts.node[cut])} `, shortened(model.name(cuts.node[cut]), 70))),
            cell([swatch(cuts.from[cut]), " ", devices[cuts.from[cut]]]),
            cell([swatch(cuts.to[cut]), " ", devices[cuts.to[cut]]]),
            cell(bytes(cuts.bytes[cut])),
            cell(time(cuts.us[cut])),
          ),
        ),
      ),
    ),
    order.length > few.length ? el("p", { class: "quiet" }, `and ${count(order.length - few.length, "shorter transfer")}`) : null,
  );
}

export function operationsTable(model, go) {
  const { nodes, devices } = model;
  const longest = [...Array(model.size).keys()].filter((node) => model.computes(node)).sort((a, b) => nodes.us[b] - nodes.us[a]).slice(0, 15);
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      {},
      head("Operation", "Device", "Time", "Share", ...devices.map((name) => `on ${name}`)),
      el(
        "tbody",
        {},
        longest.map((node) =>
          el(
            "tr",
            {},
            el("td", {}, el("button", { type: "button", class: "link", onclick: () => go(node) }, el("b", {}, model.type(node)), ` ${shortened(model.name(node), 60)}`)),
            cell([swatch(nodes.device[node]), " ", devices[nodes.device[node]]]),
            cell(time(nodes.us[node])),
            cell(percent(nodes.us[node] / model.total)),
            devices.map((_, device) => cell(nodes.us_on[device][node] === null ? "cannot" : time(nodes.us_on[device][node]))),
          ),
        ),
      ),
    ),
  );
}

export function done(model) {
  const { done: made, record, summary } = model;
  const rows = [
    ["command", made.command && el("code", {}, made.command)],
    ["date", made.date],
    ["objective", summary.objective === "throughput" ? "throughput of many requests in flight" : "latency of one request"],
    ["chosen", `${record.chosen}${record.why ? `: ${record.why}` : ""}`],
    ["policy", record.policy],
    ["versions", Object.entries(made.versions).map((pair) => pair.join(" ")).join(", ")],
    ["profiles", Object.entries(made.profiles).map(([name, profile]) => `${name}: ${profile || "of a file"}`).join(", ")],
    ["costs", made.measured_costs.length ? `of operations: measured on ${made.measured_costs.join(", ")}${made.measured_costs.length < model.devices.length ? ", of profiles on the others" : ""}` : "of operations: not measured, of the profiles"],
    ["placement", record.measured ? "measured beside its rivals on the devices" : "chosen by prediction, not measured"],
    ["seconds", Object.keys(record.seconds ?? {}).length ? Object.entries(record.seconds).map(([phase, one]) => `${phase} ${one.toFixed(1)}`).join(", ") : null],
  ];
  return el("table", { class: "facts done" }, el("tbody", {}, rows.filter(([, value]) => value).map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)))));
}
