// The report: header, picture, details, and the sections below.
import { bytes, count, debounced, el, number, percent, shortened, time, times } from "./dom.js";
import { details } from "./details.js";
import { Graph } from "./graph.js";
import { Model } from "./model.js";
import { patterns } from "./patterns.js";
import { cutsTable, devicesTable, done, operationsTable, predictedAndMeasured, rivals, stripe, swatch } from "./tables.js";
import { timeline } from "./timeline.js";

const FORMAT = 1;
const HITS = 40;

function verdict(model) {
  const { summary, record, devices, cuts } = model;
  const used = devices.filter((name) => summary.devices[name].operations);
  const moved = cuts.bytes.reduce((sum, one) => sum + one, 0);
  const throughput = summary.objective === "throughput";
  const measured = record.measured?.[record.chosen];
  const gain = record.gains[record.chosen] ?? [null, null];
  const value = throughput ? measured?.throughput_ips : measured?.latency_us;
  const known = value !== undefined && value !== null;
  const predicted = throughput ? 1e6 / (summary.period_us || 1) : summary.latency_us;
  const tell = (one) => (throughput ? `${number(Number(one.toPrecision(3)))} results/s` : time(one));
  const single = Object.entries(summary.gains).filter(([name, one]) => one && name !== "copies");
  const least = single.length ? Math.min(...single.map(([, one]) => one)) : null;
  const better = known ? gain[1] : gain[0] ?? least;
  return [
    el("div", { class: "tile" }, el("b", {}, used.length > 1 ? `${used.length} devices` : used[0] ?? "no device"), el("span", {}, used.length > 1 ? used.join(" and ") : "runs everything")),
    el("div", { class: "tile" }, el("b", {}, tell(known ? value : predicted)), el("span", {}, `${throughput ? "many requests in flight" : "one request"}, ${known ? "measured" : "predicted"}`)),
    better ? el("div", { class: "tile" }, el("b", {}, times(better)), el("span", {}, `the best single device, ${known ? "measured" : "predicted"}`)) : null,
    el("div", { class: "tile" }, el("b", {}, count(model.order.length, "submodel")), el("span", {}, cuts.node.length ? `${count(cuts.node.length, "tensor")} between devices, ${bytes(moved)}` : "nothing crosses between devices")),
  ];
}

function inFlight({ starts, summary }) {
  const period = starts.several[1][0] - starts.several[0][0];
  const told = `Each device works at one request at a time, and a request waits for its turn. There is a result every ${time(period)}`;
  // On more than two devices, transfers between different pairs may not fit into the work of the busiest one.
  return period > 1.005 * summary.period_us ? `${told} here; the work of the busiest device is ${time(summary.period_us)}.` : `${told}, the work of the busiest device.`;
}

function theme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const name = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");
  const button = el("button", {
    type: "button",
    id: "theme",
    onclick: () => {
      root.dataset.theme = name() === "dark" ? "light" : "dark";
      tell();
    },
  });
  const tell = () => {
    button.textContent = name() === "dark" ? "☀ Light" : "☾ Dark";
    button.setAttribute("aria-label", `Switch to ${name() === "dark" ? "light" : "dark"} colours`);
  };
  dark.addEventListener("change", tell);
  tell();
  return button;
}

function searchBox(model, graph, go) {
  const results = el("ul", { id: "results", class: "results", role: "listbox", "aria-label": "operations found", hidden: true });
  const told = el("span", { class: "quiet", role: "status", id: "found" });
  let nodes = [];
  const run = () => {
    nodes = model.search(input.value);
    graph.showHits(nodes);
    told.textContent = input.value.trim() ? (nodes.length ? `${count(nodes.length, "match", "matches")}` : "no match") : "";
    results.hidden = !nodes.length;
    results.replaceChildren(
      ...nodes.slice(0, HITS).map((node) =>
        el(
          "li",
          { role: "option" },
          el(
            "button",
            { type: "button", onclick: () => pick(node), onkeydown: step },
            swatch(model.nodes.device[node]),
            el("b", {}, model.type(node)),
            ` ${shortened(model.name(node), 70)}`,
            el("small", {}, ` ${model.deviceName(node)} · ${time(model.nodes.us[node])}`),
          ),
        ),
      ),
    );
  };
  const pick = (node) => {
    results.hidden = true;
    go(node);
  };
  const step = (event) => {
    const buttons = [...results.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "ArrowDown") buttons[Math.min(at + 1, buttons.length - 1)]?.focus();
    else if (event.key === "ArrowUp") at > 0 ? buttons[at - 1].focus() : input.focus();
    else if (event.key === "Escape") {
      input.value = "";
      run();
      input.focus();
    } else if (event.key === "Enter" && event.target === input && nodes.length) pick(nodes[0]);
    else return;
    event.preventDefault();
  };
  const input = el("input", { id: "search", type: "search", placeholder: "Search names and types  ( / )", "aria-label": "Search operations", autocomplete: "off", spellcheck: "false", oninput: debounced(run, 30), onkeydown: step, onfocus: () => (results.hidden = !nodes.length) });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input,textarea")) return;
    event.preventDefault();
    input.focus();
    input.select();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest(".search")) results.hidden = true;
  });
  return el("div", { class: "search" }, input, told, results);
}

function build(model) {
  const panel = el("aside", { id: "details", "aria-label": "What is selected", "aria-live": "polite" });
  const show = (box) => panel.replaceChildren(...details(model, graph.tree, box, go).flat().filter(Boolean));
  const graph = new Graph(model, show);
  const go = (node) => {
    graph.reveal(node);
    document.getElementById("graph").scrollIntoView({ block: "nearest" });
  };
  const goSubmodel = (submodel) => {
    graph.revealSubmodel(submodel);
    document.getElementById("graph").scrollIntoView({ block: "nearest" });
  };
  const button = (text, work, more = {}) => el("button", { type: "button", onclick: work, ...more }, text);
  const modes = ["submodel", "layer"].map((by) =>
    button(by === "submodel" ? "By submodel" : "By layer", () => {
      graph.groupBy(by);
      modes.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.by === by)));
      show(null);
    }, { "data-by": by, "aria-pressed": String(by === "submodel") }),
  );
  const { summary, devices } = model;
  const busy = devices.reduce((sum, name) => sum + summary.devices[name].busy_us, 0) || 1;
  const infeasible = summary.feasible ? null : el("p", { class: "alarm", role: "alert" }, "HETERO cannot run this placement as it is: the reasons of its operations tell why.");
  const flight = (which) => timeline(model, which, goSubmodel);
  document.getElementById("report").append(
    patterns(devices.length),
    el(
      "header",
      {},
      el("div", { class: "title" }, el("h1", {}, model.title), el("p", { class: "quiet" }, `HETERO:${devices.join(",")} · ${summary.objective}`)),
      theme(),
    ),
    el(
      "main",
      {},
      infeasible,
      el("section", { class: "tiles", "aria-label": "In short" }, verdict(model)),
      el(
        "section",
        { "aria-label": "Order of the model" },
        el(
          "ul",
          { class: "legend devices" },
          devices.map((name, device) => el("li", {}, swatch(device), el("b", {}, name), ` ${count(summary.devices[name].operations, "operation")}, busy ${time(summary.devices[name].busy_us)} (${percent(summary.devices[name].busy_us / busy)})`)),
        ),
        stripe(model, go),
        el("p", { class: "quiet ends" }, el("span", {}, "first operation"), el("span", {}, "width is time"), el("span", {}, "last")),
      ),
      el(
        "section",
        { id: "graph", "aria-label": "Graph" },
        el("h2", {}, "What runs where"),
        el(
          "div",
          { class: "toolbar" },
          searchBox(model, graph, go),
          el("div", { class: "buttons", role: "group", "aria-label": "Grouping" }, modes),
          el("div", { class: "buttons" }, button("Open more", () => graph.openMore(), { id: "more" }), button("Close all", () => { graph.closeAll(); show(null); }, { id: "close" })),
          el("div", { class: "buttons" }, button("−", () => graph.zoomBy(1 / 1.3), { "aria-label": "Zoom out" }), button("+", () => graph.zoomBy(1.3), { "aria-label": "Zoom in" }), button("Fit", () => graph.fit())),
        ),
        graph.note,
        el("div", { class: "split" }, graph.frame, panel),
      ),
      el("section", {}, el("h2", {}, "One request"), el("p", { class: "quiet" }, `Submodels run one after another: ${time(summary.latency_us)} in all, of which ${time(summary.parts_us.nodes + summary.parts_us.fusions)} are operations, ${time(summary.parts_us.submodels)} calls of submodels and ${time(summary.parts_us.transfers)} transfers.`), flight("one")),
      el("section", {}, el("h2", {}, `${model.starts.several.length} requests in flight`), el("p", { class: "quiet" }, inFlight(model)), flight("several")),
      el("section", {}, el("h2", {}, "Time and memory of each device"), devicesTable(model)),
      el("section", {}, el("h2", {}, "Predicted and measured"), predictedAndMeasured(model)),
      el("section", {}, el("h2", {}, "Rivals"), rivals(model)),
      el("section", {}, el("h2", {}, "What crosses between devices"), cutsTable(model, go)),
      el("section", {}, el("h2", {}, "Operations that take longest"), operationsTable(model, go)),
      el("section", {}, el("h2", {}, "What was done"), done(model)),
    ),
    el("footer", { class: "quiet" }, "Times are predictions but for those that are called measured. Constants are not drawn; their bytes are with the operation that reads them. Keys: / search, arrows move, Enter opens, + − 0 zoom."),
  );
  show(null);
  graph.fit();
  addEventListener("resize", debounced(() => graph.fit(), 150));
}

const data = JSON.parse(document.getElementById("data").textContent);
if (data.format !== FORMAT) throw new Error(`this page reads reports of format ${FORMAT}, not ${data.format}`);
build(new Model(data));
performance.mark("report-drawn");
