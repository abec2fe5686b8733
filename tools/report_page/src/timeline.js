// When what runs: a lane for each device, blocks for submodels, lines for what moves between lanes.
import { bytes, count, el, svg, time } from "./dom.js";

const LANE = 40;
const GAP = 22;
const TOP = 8;
const AXIS = 26;
// Neighbours on a lane that are narrower together are one block.
const NARROW = 1.5;

export function timeline(model, which, onSubmodel) {
  const frame = el("div", { class: "timeline" });
  const draw = () => {
    const width = Math.max(frame.clientWidth || 900, 280);
    frame.replaceChildren(picture(model, which, width, onSubmodel));
  };
  new ResizeObserver(draw).observe(frame);
  draw();
  return frame;
}

function picture(model, which, width, onSubmodel) {
  const { devices, stages, submodels, cuts } = model;
  const runs = which === "one" ? [model.starts.one] : model.starts.several;
  const last = stages.us.length - 1;
  const end = Math.max(...runs.map((starts) => starts[last] + stages.us[last])) || 1;
  const left = Math.min(20 + 9 * Math.max(...devices.map((name) => name.length)), width / 3);
  const x = (us) => left + (us / end) * (width - left - 12);
  const y = (device) => TOP + device * (LANE + GAP);
  const height = TOP + devices.length * (LANE + GAP) - GAP + AXIS;
  const found = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `${which === "one" ? "one request" : count(runs.length, "request")}: ${time(end)} in all`,
  });
  devices.forEach((name, device) => {
    found.append(
      svg("rect", { class: "lane", x: left, y: y(device), width: width - left - 12, height: LANE }),
      svg("text", { class: "device", x: left - 8, y: y(device) + LANE / 2 + 4, "text-anchor": "end" }, name),
    );
  });
  const lanes = devices.map(() => []);
  const lines = [];
  runs.forEach((starts, request) => {
    starts.forEach((begin, stage) => {
      const us = stages.us[stage];
      const submodel = stages.submodel[stage];
      if (submodel >= 0) {
        lanes[submodels.device[submodel]].push({ begin, end: begin + us, submodel, request, stage });
      } else {
        const cut = stages.cut[stage];
        lines.push({ begin, end: begin + us, from: cuts.from[cut], to: cuts.to[cut], bytes: cuts.bytes[cut] });
      }
    });
  });
  const order = new Map(model.order.map((submodel, place) => [submodel, place + 1]));
  lanes.forEach((blocks, device) => {
    blocks.sort((a, b) => a.begin - b.begin);
    for (const block of merged(blocks, x)) {
      const wide = Math.max(x(block.end) - x(block.begin), 1);
      const label = `submodel ${order.get(block.submodel)}`;
      const told = block.more
        ? `${count(block.more + 1, "submodel")}, ${time(block.end - block.begin)}`
        : `${label}${runs.length > 1 ? `, request ${block.request + 1}` : ""}: ${time(block.end - block.begin)}, from ${time(block.begin)}`;
      const words = runs.length > 1 ? [`request ${block.request + 1}`, String(block.request + 1)] : [`${label} · ${time(block.end - block.begin)}`, label, String(order.get(block.submodel))];
      const fits = block.more ? null : words.find((one) => one.length * 6.8 + 12 < wide);
      found.append(
        svg(
          "g",
          { class: "block", "data-submodel": block.submodel, onclick: () => onSubmodel(block.submodel) },
          svg("title", {}, `${devices[device]}: ${told}`),
          svg("rect", { class: `fill-${(device) % 8}`, x: x(block.begin), y: y(device) + 2, width: wide, height: LANE - 4, rx: Math.min(3, wide / 3) }),
          fits && svg("rect", { class: "plate", x: x(block.begin) + wide / 2 - fits.length * 3.6 - 5, y: y(device) + LANE / 2 - 9, width: fits.length * 7.2 + 10, height: 18, rx: 4 }),
          fits && svg("text", { x: x(block.begin) + wide / 2, y: y(device) + LANE / 2 + 4, "text-anchor": "middle" }, fits),
        ),
      );
    }
  });
  let drawn = "";
  for (const { begin, end: until, from, to, bytes: size } of lines) {
    const down = to > from;
    const start = y(from) + (down ? LANE - 2 : 2);
    const stop = y(to) + (down ? 2 : LANE - 2);
    const shape = `${x(begin).toFixed(1)},${start} ${x(until).toFixed(1)},${stop}`;
    if (shape === drawn) continue; // one upon another
    drawn = shape;
    found.append(
      svg(
        "g",
        { class: "transfer" },
        svg("title", {}, `${devices[from]} → ${devices[to]}: ${bytes(size)}, ${time(until - begin)}`),
        svg("line", { x1: x(begin), y1: start, x2: x(until), y2: stop, "marker-end": "url(#arrow-cut)" }),
      ),
    );
  }
  const base = height - AXIS + 6;
  const step = nice(end / Math.max(2, Math.floor((width - left) / 110)));
  for (let at = 0; at <= end; at += step) {
    found.append(
      svg("line", { class: "tick", x1: x(at), y1: TOP, x2: x(at), y2: base }),
      svg("text", { class: "axis", x: x(at), y: base + 14, "text-anchor": at ? "middle" : "start" }, time(at)),
    );
  }
  return found;
}

function merged(blocks, x) {
  const found = [];
  for (const block of blocks) {
    const before = found[found.length - 1];
    if (before && x(block.end) - x(before.begin) < 3 && x(block.begin) - x(before.end) < NARROW) {
      before.end = block.end;
      before.more = (before.more || 0) + 1;
    } else found.push({ ...block });
  }
  return found;
}

function nice(least) {
  const power = 10 ** Math.floor(Math.log10(least || 1));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least);
}
