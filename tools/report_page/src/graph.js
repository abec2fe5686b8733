// The picture of the graph: boxes that open, zoom, a small map, the keyboard.
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { bytes, count, el, percent, shortened, svg, time } from "./dom.js";
import { header, layOut, middle, touch } from "./layout.js";
import { Tree } from "./model.js";

const MOST_SHOWN = 600;

export class Graph {
  constructor(model, onSelect) {
    this.model = model;
    this.onSelect = onSelect;
    this.selected = null;
    this.hits = [];
    this.view = svg("g");
    this.canvas = svg(
      "svg",
      { class: "canvas", role: "tree", "aria-label": "graph of the model", onkeydown: (event) => this.#key(event) },
      svg("title", {}, "Graph of the model: arrow keys move, Enter opens or selects"),
      this.view,
    );
    this.map = svg("svg", { class: "minimap", "aria-hidden": "true" });
    this.note = el("p", { class: "note", role: "status" });
    this.frame = el("div", { class: "frame" }, this.canvas, this.map);
    this.zoom = zoom()
      .scaleExtent([0.02, 4])
      // The wheel scrolls the page unless it is meant for the picture, as maps in pages do.
      .filter((event) => !event.button && (event.type !== "wheel" || event.ctrlKey || event.metaKey || this.active))
      .on("zoom", ({ transform }) => {
        this.transform = transform;
        this.view.setAttribute("transform", transform);
        this.#frameMap();
      });
    select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.frame.addEventListener("pointerdown", () => (this.active = true));
    document.addEventListener("pointerdown", (event) => {
      if (!this.frame.contains(event.target)) this.active = false;
    });
    this.transform = zoomIdentity;
    for (const kind of ["pointerdown", "pointermove"]) this.map.addEventListener(kind, (event) => this.#jump(event));
    this.groupBy("submodel");
  }

  groupBy(by) {
    this.by = by;
    this.tree = new Tree(this.model, by);
    this.selected = null;
    this.draw();
    if (this.canvas.isConnected) this.fit();
  }

  draw() {
    const own = this.canvas.isConnected ? this.canvas.getBoundingClientRect() : { width: 0 };
    layOut(this.tree, this.tree.root, own.width ? own : innerWidth > 900 ? { width: 930, height: 640 } : { width: 360, height: 420 });
    this.elements = new Map();
    const { root } = this.tree;
    this.view.replaceChildren(this.#inside(root));
    this.#drawMap();
    this.#mark();
  }

  #inside(box) {
    const parts = svg("g");
    const lines = svg("g", { class: "edges", "aria-hidden": "true" });
    for (const { edge, points } of box.routes) lines.append(this.#edge(edge, points));
    parts.append(lines);
    for (const child of box.children) parts.append(this.#box(child));
    return parts;
  }

  #edge(edge, points) {
    const told = edge.cut ? `${bytes(edge.cut)} to another device` : `${count(edge.count, "tensor")}, ${bytes(edge.bytes)}`;
    const group = svg(
      "g",
      { class: edge.cut ? "edge cut" : "edge" },
      svg("title", {}, `${edge.source.label} → ${edge.target.label}: ${told}`),
      svg("path", { d: curve(points), "marker-end": edge.cut ? "url(#arrow-cut)" : "url(#arrow)" }),
    );
    if (edge.cut) {
      const [x, y] = points[Math.floor(points.length / 2)];
      const text = bytes(edge.cut);
      const width = 7 * text.length + 10;
      group.append(
        svg("rect", { class: "tag", x: x - width / 2, y: y - 9, width, height: 18, rx: 9 }),
        svg("text", { x, y: y + 4, "text-anchor": "middle" }, text),
      );
    }
    return group;
  }

  #box(box) {
    const { width, height } = box;
    const main = heaviest(box);
    const group = svg("g", {
      class: `box ${box.isGroup ? "group" : "op"}${box.open ? " open" : ""}`,
      transform: `translate(${box.x - width / 2},${box.y - height / 2})`,
      role: "treeitem",
      tabindex: -1,
      "aria-level": box.level,
      "aria-expanded": box.isGroup ? String(box.open) : null,
      "aria-label": this.#label(box),
      "data-box": box.id,
    });
    group.append(
      svg("title", {}, this.tree.describe(box)),
      svg("rect", { class: `body tint-${(main) % 8}`, width, height, rx: box.isGroup ? 8 : 4 }),
    );
    if (box.isGroup && box.open) {
      const room = Math.floor((width - 60) / 7.5);
      group.append(
        ...this.#band(box, 0, 0, width, 6, true),
        svg("text", { class: "name", x: 14, y: 24 }, shortened(box.label, Math.min(room, 48))),
        svg("text", { class: "facts", x: width - 14, y: 24, "text-anchor": "end" }, "−"),
      );
      const words = Math.min(box.label.length, 48) * 8 + 30;
      const short = this.model.devices.filter((_, device) => box.counts[device]).join(" + ");
      const facts = [this.#facts(box), `${short} · ${time(box.time)}`, short].find((one) => width - words > one.length * 6.6 + 24);
      if (facts) group.append(svg("text", { class: "facts", x: width - 30, y: 24, "text-anchor": "end" }, facts));
      group.append(svg("rect", { class: "head", width, height: header }), this.#inside(box));
    } else if (box.isGroup) {
      group.append(
        ...this.#band(box, 0, 0, 12, height, false),
        svg("text", { class: "name", x: 22, y: 22 }, shortened(box.label, 18)),
        svg("text", { class: "facts", x: 22, y: 42 }, this.#facts(box)),
        svg("text", { class: "more", x: width - 12, y: 23, "text-anchor": "end" }, "+"),
      );
    } else {
      const node = box.node;
      const type = this.model.type(node);
      const right = this.model.computes(node) ? time(this.model.nodes.us[node]) : "";
      group.append(
        svg("rect", { class: `fill-${(main) % 8}`, width: 8, height, rx: 2 }),
        svg("text", { class: "name", x: 16, y: 18 }, shortened(type, 17)),
        svg("text", { class: "facts", x: width - 8, y: 18, "text-anchor": "end" }, right),
        svg("text", { class: "facts", x: 16, y: 35 }, shortened(box.label, 20)),
      );
    }
    group.addEventListener("click", (event) => {
      event.stopPropagation();
      this.active = true;
      const toggled = !box.open || event.target.classList.contains("head");
      this.select(box, { toggle: toggled });
    });
    this.elements.set(box, group);
    return group;
  }

  #facts(box) {
    const { devices } = this.model;
    const used = devices.filter((_, device) => box.counts[device]);
    return `${used.join(" + ") || "–"} · ${count(box.count, "op")} · ${time(box.time)}`;
  }

  #label(box) {
    const { model } = this;
    if (box.isGroup) return `${box.label}: ${this.#facts(box)}, ${percent(box.time / model.total)} of the time`;
    return `${model.type(box.node)} ${shortened(model.name(box.node), 80)} on ${model.deviceName(box.node)}`;
  }

  // The share of each device in a box, in its colour and pattern.
  #band(box, x, y, width, height, wide) {
    const total = box.time || box.count || 1;
    const parts = [];
    let at = 0;
    this.model.devices.forEach((_, device) => {
      const share = (box.time ? box.us[device] : box.counts[device]) / total;
      if (!share) return;
      const place = wide ? { x: x + at * width, y, width: share * width, height } : { x, y: y + at * height, width, height: share * height };
      parts.push(svg("rect", { class: `fill-${(device) % 8}`, ...place }));
      at += share;
    });
    return parts;
  }

  // Selects a box; a group that `toggle` is given for opens or closes.
  select(box, { toggle = false, focus = true, tell = true } = {}) {
    this.selected = box;
    if (toggle && box.isGroup) this.toggle(box, !box.open);
    this.#mark();
    if (focus) this.elements.get(box)?.focus({ preventScroll: true });
    if (tell) this.onSelect(box);
  }

  toggle(box, open) {
    if (box === this.tree.root) return;
    box.open = open;
    touch(box);
    this.#keepInPlace(box, () => this.draw());
  }

  // Redraws so that a box stays under the eye that looks at it.
  #keepInPlace(box, work) {
    const { transform } = this;
    const before = box.x === undefined ? null : middle(box).map((at, axis) => at - [0, box.height / 2][axis]);
    work();
    if (!before) return;
    const after = middle(box).map((at, axis) => at - [0, box.height / 2][axis]);
    this.#move(transform.translate(before[0] - after[0], before[1] - after[1]));
  }

  // Opens what hides a node, selects it and brings it into view.
  reveal(node) {
    const leaf = this.tree.leaf[node];
    for (let at = leaf.parent; at; at = at.parent) {
      if (!at.open) {
        at.open = true;
        touch(at);
      }
    }
    if (leaf.dirty || !this.elements.has(leaf)) this.draw();
    this.centre(leaf);
    this.select(leaf, { focus: false });
  }

  revealSubmodel(submodel) {
    const box = this.tree.boxes.find((one) => one.kind === "submodel" && one.submodel === submodel);
    if (!box) return;
    for (let at = box.parent; at; at = at.parent) {
      at.open = true;
      touch(at);
    }
    this.draw();
    this.centre(box);
    this.select(box, { focus: false });
  }

  openMore() {
    const closed = this.tree.boxes.filter((box) => box.isGroup && !box.open && this.elements.has(box));
    let shown = this.elements.size;
    let left = 0;
    for (const box of closed) {
      if (shown + box.children.length > MOST_SHOWN) {
        left += 1;
        continue;
      }
      shown += box.children.length;
      box.open = true;
      touch(box);
    }
    this.note.textContent = left ? `${count(left, "box", "boxes")} stayed closed: click those that you want to see.` : "";
    this.draw();
    this.fit();
  }

  closeAll() {
    for (const box of this.tree.boxes) {
      if (box.isGroup && box.open && box !== this.tree.root) box.open = false;
      box.dirty = true;
    }
    this.note.textContent = "";
    this.selected = null;
    this.draw();
    this.fit();
  }

  fit() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const { root } = this.tree;
    if (!width || !root.width) return;
    const top = header - 6; // the root has no header of its own
    // All of it where that can be read, else the beginning.
    const scale = Math.min(1.1, Math.max(Math.min(width / root.width, height / (root.height - top)), Math.min(0.7, width / root.width)));
    const y = Math.max(0, Math.min(36, (height - (root.height - top) * scale) / 2));
    this.#move(zoomIdentity.translate((width - root.width * scale) / 2, y - top * scale).scale(scale));
  }

  centre(box) {
    const { width, height } = this.canvas.getBoundingClientRect();
    const scale = Math.max(this.transform.k, 0.75);
    const [x, y] = middle(box);
    this.#move(zoomIdentity.translate(width / 2 - x * scale, height / 2 - y * scale).scale(scale));
  }

  zoomBy(factor) {
    select(this.canvas).call(this.zoom.scaleBy, factor);
  }

  #move(transform) {
    select(this.canvas).call(this.zoom.transform, transform);
  }

  // Marks what is selected, what it reads and who reads it, and what a search found.
  #mark() {
    const near = new Map();
    if (this.selected && !this.selected.isGroup) {
      for (const node of this.model.inputs(this.selected.node)) near.set(this.tree.shown(node), "reads");
      for (const node of this.model.outputs(this.selected.node)) near.set(this.tree.shown(node), "readby");
    }
    const hits = new Set(this.hits.map((node) => this.tree.shown(node)));
    let entry = this.selected && this.elements.get(this.selected);
    for (const [box, element] of this.elements) {
      element.classList.toggle("selected", box === this.selected);
      element.classList.toggle("reads", near.get(box) === "reads");
      element.classList.toggle("readby", near.get(box) === "readby");
      element.classList.toggle("hit", hits.has(box));
      element.setAttribute("tabindex", "-1");
      entry = entry || element;
    }
    entry?.setAttribute("tabindex", "0");
  }

  showHits(nodes) {
    this.hits = nodes;
    this.#mark();
  }

  // Boxes that are drawn, in the order in which they run.
  #visible() {
    const found = [];
    const walk = (box) => {
      for (const child of box.children) {
        found.push(child);
        if (child.open) walk(child);
      }
    };
    walk(this.tree.root);
    return found;
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const box = this.selected && this.elements.has(this.selected) ? this.selected : this.tree.root.children[0];
    const go = (to) => {
      if (!to || to === this.tree.root) return;
      this.select(to);
      this.#intoView(to);
    };
    const all = this.#visible();
    const at = all.indexOf(box);
    const actions = {
      ArrowDown: () => go(all[at + 1]),
      ArrowUp: () => go(all[at - 1]),
      ArrowRight: () => (box.isGroup && !box.open ? this.select(box, { toggle: true }) : go(box.children[0])),
      ArrowLeft: () => (box.open ? this.select(box, { toggle: true }) : go(box.parent)),
      Home: () => go(all[0]),
      End: () => go(all[all.length - 1]),
      Enter: () => this.select(box, { toggle: true }),
      " ": () => this.select(box, { toggle: true }),
      "+": () => this.zoomBy(1.3),
      "=": () => this.zoomBy(1.3),
      "-": () => this.zoomBy(1 / 1.3),
      0: () => this.fit(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  #intoView(box) {
    const element = this.elements.get(box);
    const own = element.getBoundingClientRect();
    const frame = this.canvas.getBoundingClientRect();
    const outside = own.left < frame.left || own.right > frame.right || own.top < frame.top || own.top + 40 > frame.bottom;
    if (outside) this.centre(box);
  }

  #drawMap() {
    const { root } = this.tree;
    const room = innerWidth > 700 ? 150 : 90;
    const scale = Math.min(room / root.width, room / root.height);
    this.mapScale = scale;
    this.map.setAttribute("width", Math.max(root.width * scale, 8));
    this.map.setAttribute("height", Math.max(root.height * scale, 8));
    this.map.setAttribute("viewBox", `0 0 ${root.width} ${root.height}`);
    const parts = [];
    const walk = (box) => {
      for (const child of box.children) {
        const [x, y] = middle(child);
        parts.push(
          svg("rect", {
            class: child.open ? "outline" : `plain-${(heaviest(child)) % 8}`,
            x: x - child.width / 2,
            y: y - child.height / 2,
            width: child.width,
            height: child.height,
          }),
        );
        if (child.open) walk(child);
      }
    };
    walk(root);
    this.window = svg("rect", { class: "window" });
    this.map.replaceChildren(...parts, this.window);
    this.#frameMap();
  }

  #frameMap() {
    if (!this.window || !this.canvas.isConnected) return;
    const { width, height } = this.canvas.getBoundingClientRect();
    const { root } = this.tree;
    const [left, top] = this.transform.invert([0, 0]);
    const [right, bottom] = this.transform.invert([width, height]);
    const clamp = (value, most) => Math.min(Math.max(value, 0), most);
    const [x, y] = [clamp(left, root.width), clamp(top, root.height)];
    const size = { width: clamp(right, root.width) - x, height: clamp(bottom, root.height) - y };
    for (const [name, value] of Object.entries({ x, y, ...size })) this.window.setAttribute(name, value);
    const whole = size.width >= root.width * 0.98 && size.height >= root.height * 0.9;
    this.map.classList.toggle("idle", whole);
  }

  #jump(event) {
    if (!event.buttons) return;
    event.preventDefault();
    const own = this.map.getBoundingClientRect();
    const { root } = this.tree;
    const x = ((event.clientX - own.left) / own.width) * root.width;
    const y = ((event.clientY - own.top) / own.height) * root.height;
    const { width, height } = this.canvas.getBoundingClientRect();
    const { k } = this.transform;
    this.#move(zoomIdentity.translate(width / 2 - x * k, height / 2 - y * k).scale(k));
  }
}

export function heaviest(box) {
  const from = box.time ? box.us : box.counts;
  let best = 0;
  from.forEach((value, device) => {
    if (value > from[best]) best = device;
  });
  return best;
}

function curve(points) {
  const at = ([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`;
  let path = `M${at(points[0])}`;
  for (let i = 1; i < points.length - 1; i += 1) {
    const end = i === points.length - 2 ? points[i + 1] : [(points[i][0] + points[i + 1][0]) / 2, (points[i][1] + points[i + 1][1]) / 2];
    path += `Q${at(points[i])} ${at(end)}`;
  }
  if (points.length === 2) path += `L${at(points[1])}`;
  return path;
}
