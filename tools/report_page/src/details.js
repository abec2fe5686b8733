// What is known of the box that is selected.
import { bytes, count, el, number, percent, shortened, signed, time } from "./dom.js";

const FEW = 8;

export function details(model, tree, box, go) {
  if (!box) return overview(model);
  return box.isGroup ? ofGroup(model, tree, box, go) : ofOperation(model, box.node, go);
}

const link = (model, node, go, most = 60) =>
  el("button", { type: "button", class: "link", onclick: () => go(node), title: model.name(node) }, shortened(model.name(node), most));

const row = (name, ...value) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, ...value));

function chip(model, device) {
  return el("span", { class: "chip" }, el("span", { class: `swatch swatch-${(device) % 8}`, "aria-hidden": "true" }), model.devices[device]);
}

function bar(share, device) {
  return el("span", { class: "bar" }, el("span", { class: `swatch swatch-${(device) % 8}`, css: { width: `${Math.max(share * 100, 0.5)}%` } }));
}

function overview(model) {
  const types = new Map();
  for (let node = 0; node < model.size; node += 1) {
    if (!model.computes(node)) continue;
    const type = model.type(node);
    if (!types.has(type)) types.set(type, { type, count: 0, us: 0, on: model.devices.map(() => 0) });
    const one = types.get(type);
    one.count += 1;
    one.us += model.nodes.us[node];
    one.on[model.nodes.device[node]] += model.nodes.us[node];
  }
  const longest = [...types.values()].sort((x, y) => y.us - x.us).slice(0, 8);
  const most = longest.length ? longest[0].us || 1 : 1;
  const moves = model.summary.closest_moves;
  return [
    el("h3", {}, "Where the time goes"),
    el("p", { class: "quiet" }, "Click a box to open it, and an operation for what it costs here and elsewhere, and why it is here. Red dashed lines cross between devices."),
    el(
      "table",
      { class: "costs" },
      el(
        "tbody",
        {},
        longest.map(({ type, count: number, us, on }) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, el("button", { type: "button", class: "link", onclick: () => find(type) }, type), el("br"), el("small", {}, `${number}×`)),
            el("td", { class: "figure" }, time(us), el("br"), el("small", {}, percent(us / model.total))),
            el("td", { class: "wide" }, el("span", { class: "bar" }, on.map((own, device) => (own ? el("span", { class: `swatch swatch-${device % 8}`, css: { width: `${(own / most) * 100}%` } }) : null)))),
          ),
        ),
      ),
    ),
    moves.length ? el("h4", {}, "Single moves that come closest to paying") : null,
    el(
      "ol",
      { class: "plain" },
      moves.map((move) =>
        el("li", {}, `${shortened(move.operation, 60)}${move.moves > 1 ? ` and ${move.moves - 1} with it` : ""} to ${move.to}: `, el("b", {}, signed(move.cost_us))),
      ),
    ),
  ];
}

function find(text) {
  const input = document.getElementById("search");
  input.value = text;
  input.focus();
  input.dispatchEvent(new Event("input"));
}

function ofOperation(model, node, go) {
  const { nodes, devices } = model;
  const here = nodes.device[node];
  const most = Math.max(...nodes.us_on.map((on) => on[node] || 0), nodes.us[node]) || 1;
  const together = nodes.group.reduce((sum, group) => sum + (group === nodes.group[node] ? 1 : 0), 0) - 1;
  const place = model.order.indexOf(nodes.submodel[node]) + 1;
  const other = nodes.other[node];
  return [
    el("p", { class: "kind" }, model.type(node)),
    el("h3", { class: "long" }, model.name(node)),
    el("p", { class: "where" }, "runs on ", chip(model, here), place ? ` in submodel ${place} of ${model.order.length}` : ""),
    el("div", { class: "why" }, el("h4", {}, "Why here"), el("p", {}, sentence(model.why(node))), other >= 0 ? el("p", {}, link(model, other, go)) : null),
    el("h4", {}, "What it costs"),
    el(
      "table",
      { class: "costs" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "on"), el("th", { scope: "col" }, "operation"), el("th", { scope: "col" }), el("th", { scope: "col" }, "if moved there"))),
      el(
        "tbody",
        {},
        devices.map((_, device) => {
          const us = device === here ? nodes.us[node] : nodes.us_on[device][node];
          const move = nodes.move_us[device][node];
          return el(
            "tr",
            { class: device === here ? "here" : null },
            el("th", { scope: "row" }, chip(model, device)),
            el("td", { class: "figure" }, us === null ? "cannot" : time(us)),
            el("td", { class: "wide" }, us === null ? null : bar(us / most, device)),
            el("td", { class: "figure" }, device === here ? "is here" : move === null ? "impossible" : signed(move)),
          );
        }),
      ),
    ),
    together ? el("p", { class: "quiet" }, `${count(together, "other operation")} would move with it.`) : null,
    el(
      "table",
      { class: "facts" },
      el(
        "tbody",
        {},
        row("share of all operations", percent(nodes.us[node] / model.total)),
        model.texts[nodes.output[node]] ? row("output", el("code", {}, model.texts[nodes.output[node]])) : null,
        nodes.weights[node] ? row("weights", bytes(nodes.weights[node])) : null,
        nodes.states[node] ? row("state", bytes(nodes.states[node])) : null,
      ),
    ),
    neighbours(model, "Reads", model.inputs(node), here, go),
    neighbours(model, "Is read by", model.outputs(node), here, go),
  ];
}

function neighbours(model, title, nodes, here, go) {
  if (!nodes.length) return null;
  return el(
    "div",
    {},
    el("h4", {}, title),
    el(
      "ul",
      { class: "plain" },
      nodes.slice(0, FEW).map((node) => el("li", {}, model.nodes.device[node] === here ? null : [chip(model, model.nodes.device[node]), " "], `${model.type(node)} `, link(model, node, go, 44))),
      nodes.length > FEW ? el("li", { class: "quiet" }, `and ${nodes.length - FEW} more`) : null,
    ),
  );
}

function ofGroup(model, tree, box, go) {
  const { devices, nodes } = model;
  const longest = [...box.ops].sort((a, b) => nodes.us[b] - nodes.us[a]).slice(0, FEW);
  const reasons = new Map();
  for (const node of box.ops) if (model.computes(node)) reasons.set(nodes.reason[node], (reasons.get(nodes.reason[node]) || 0) + 1);
  const own = box.kind === "submodel" ? model.submodels.us[box.submodel] : null;
  const [inside, outside] = [0, 1].map((outgoing) => crossing(model, tree, box, outgoing));
  const used = devices.map((_, device) => device).filter((device) => box.counts[device]);
  return [
    el("p", { class: "kind" }, box.kind === "submodel" ? `submodel ${box.place + 1} of ${model.order.length} that HETERO compiles` : "group of operations"),
    el("h3", { class: "long" }, box.label),
    el("p", { class: "where" }, used.length ? "runs on " : "", used.map((device) => [chip(model, device), " "])),
    el(
      "table",
      { class: "facts" },
      el(
        "tbody",
        {},
        row("operations", number(box.count)),
        used.map((device) => row(`time on ${devices[device]}`, `${time(box.us[device])} (${percent(box.us[device] / model.total)})`)),
        own === null ? null : row("with its start", time(own)),
        row("weights", bytes(box.ops.reduce((sum, node) => sum + nodes.weights[node], 0))),
        inside ? row("comes from other devices", bytes(inside)) : null,
        outside ? row("goes to other devices", bytes(outside)) : null,
      ),
    ),
    el("h4", {}, "Why here"),
    el("ul", { class: "plain" }, [...reasons].sort((a, b) => b[1] - a[1]).map(([kind, times]) => el("li", {}, `${percent(times / Math.max(box.count, 1))}: ${REASONS[model.texts[kind]] || model.texts[kind]}`))),
    el("h4", {}, "Operations that take longest"),
    el("ol", { class: "plain" }, longest.map((node) => el("li", {}, used.length > 1 ? [chip(model, nodes.device[node]), " "] : null, el("b", {}, model.type(node)), ` ${time(nodes.us[node])} `, el("br"), link(model, node, go, 50)))),
  ];
}

// The kinds of reasons (ov_hsdag/explaining/explanation.py), as shares of a group are told.
const REASONS = {
  consumer: "must be where its consumer is",
  only: "no other device runs it",
  shared: "must share a device with an operation that no other runs",
  submodel: "has to stay in a submodel with its state",
  order: "elsewhere submodels would wait for each other",
  nothing: "elsewhere a submodel would compute nothing",
  memory: "would not fit elsewhere",
  dearer: "any single move costs time",
  equal: "a move changes nothing",
  better: "a move would pay",
};

function crossing(model, tree, box, outgoing) {
  const inside = new Set(box.ops);
  let total = 0;
  model.cuts.node.forEach((node, cut) => {
    const readers = model.outputs(node).filter((reader) => model.nodes.device[reader] === model.cuts.to[cut]);
    const [from, to] = [inside.has(node), readers.some((reader) => inside.has(reader))];
    if (outgoing ? from && !to : to && !from) total += model.cuts.bytes[cut];
  });
  return total;
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
