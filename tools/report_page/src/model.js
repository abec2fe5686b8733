// What the report's data say, made handy: names, the tree of boxes, edges between boxes.
import { count, shortened } from "./dom.js";

// A box never has more children than this: more are put together in the order in which they run.
const MOST_CHILDREN = 36;

export class Model {
  constructor(data) {
    Object.assign(this, data);
    this.size = data.nodes.device.length;
    this.memo = new Array(this.size);
    this.#connect();
    this.total = this.summary.parts_us.nodes + this.summary.parts_us.fusions || 1;
    this.order = data.stages.submodel.filter((one) => one >= 0);
  }

  name(node) {
    if (this.memo[node] === undefined) this.memo[node] = this.path(-1, this.names.name[node]);
    return this.memo[node];
  }

  // Text of the parts of a name from behind one entry to another.
  path(after, entry) {
    const parts = [];
    for (let at = entry; at >= 0 && at !== after; at = this.names.parent[at]) parts.push(this.texts[this.names.part[at]]);
    return parts.reverse().join("");
  }

  type(node) {
    return this.texts[this.nodes.type[node]];
  }

  why(node) {
    return this.texts[this.nodes.why[node]];
  }

  deviceName(node) {
    return this.devices[this.nodes.device[node]];
  }

  // Whether a node computes; Parameters and Results only name what goes in and out.
  computes(node) {
    const type = this.type(node);
    return type !== "Parameter" && type !== "Result";
  }

  inputs(node) {
    return this.#slice(this.inPtr, this.inNode, node);
  }

  outputs(node) {
    return this.#slice(this.outPtr, this.outEdge, node).map((edge) => this.edges.to[edge]);
  }

  #slice(pointer, values, node) {
    return Array.from(values.subarray(pointer[node], pointer[node + 1]));
  }

  #connect() {
    const { from, to } = this.edges;
    const pointers = (ends) => {
      const pointer = new Int32Array(this.size + 1);
      for (const node of ends) pointer[node + 1] += 1;
      for (let node = 0; node < this.size; node += 1) pointer[node + 1] += pointer[node];
      return pointer;
    };
    this.inPtr = pointers(to);
    this.outPtr = pointers(from);
    this.inNode = new Int32Array(to.length);
    this.inEdge = new Int32Array(to.length);
    this.outEdge = new Int32Array(to.length);
    const [nextIn, nextOut] = [this.inPtr.slice(), this.outPtr.slice()];
    for (let edge = 0; edge < to.length; edge += 1) {
      this.inEdge[nextIn[to[edge]]] = edge;
      this.inNode[nextIn[to[edge]]++] = from[edge];
      this.outEdge[nextOut[from[edge]]++] = edge;
    }
  }

  // Nodes whose name or type has all the words, best first.
  search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    if (!this.lower) {
      this.lower = new Array(this.size);
      for (let node = 0; node < this.size; node += 1) {
        // Names of nodes that nobody named grow with the model; their ends tell them apart.
        this.lower[node] = `${this.type(node)} ${this.name(node).slice(-400)} ${this.deviceName(node)}`.toLowerCase();
      }
    }
    const found = [];
    for (let node = 0; node < this.size; node += 1) {
      const told = this.lower[node];
      if (words.every((word) => told.includes(word))) found.push(node);
    }
    const typed = (node) => (this.type(node).toLowerCase() === words[0] ? 0 : 1);
    return found.sort((a, b) => typed(a) - typed(b) || a - b);
  }
}

// A box of the picture: an operation, or a group of them that can be opened.
class Box {
  constructor(kind, label, parent, ops) {
    Object.assign(this, { kind, label, parent, ops, children: [], open: false, dirty: true, edges: null });
  }

  get isGroup() {
    return this.kind !== "op";
  }

  get node() {
    return this.ops[0];
  }
}

export class Tree {
  // by: "submodel", or "layer" for scopes of names alone.
  constructor(model, by) {
    this.model = model;
    this.leaf = new Array(model.size);
    const all = Array.from({ length: model.size }, (_, node) => node);
    this.root = new Box("root", "the model", null, all);
    this.root.open = true;
    if (by === "submodel") this.#bySubmodel();
    else this.#build(this.root, all, -1);
    this.#arrange(this.root);
    this.boxes = [];
    this.#number(this.root, 0);
    this.#openFirst();
  }

  #bySubmodel() {
    const { model } = this;
    const inside = model.submodels.device.map(() => []);
    const outside = [];
    for (let node = 0; node < model.size; node += 1) {
      const submodel = model.nodes.submodel[node];
      (submodel >= 0 ? inside[submodel] : outside).push(node);
    }
    if (model.order.length === 1 && !outside.length) {
      this.#build(this.root, this.root.ops, -1);
      return;
    }
    model.order.forEach((submodel, place) => {
      if (!inside[submodel].length) return;
      const box = new Box("submodel", `submodel ${place + 1}`, this.root, inside[submodel]);
      box.submodel = submodel;
      box.place = place;
      this.#build(box, box.ops, -1);
      this.root.children.push(box);
    });
    for (const node of outside) this.#addLeaf(this.root, node, -1);
  }

  #addLeaf(parent, node, scope) {
    const name = this.model.path(scope, this.model.names.name[node]) || this.model.path(-1, this.model.names.name[node]);
    const box = new Box("op", name.replace(/^[/.]+/, ""), parent, [node]);
    this.leaf[node] = box;
    parent.children.push(box);
  }

  // Boxes of the scopes just below an entry of the names.
  #build(parent, ops, entry) {
    const { names } = this.model;
    let at = entry;
    let scopes;
    let direct;
    for (;;) {
      scopes = new Map();
      direct = [];
      for (const node of ops) {
        let scope = names.scope[node];
        while (scope >= 0 && scope !== at && names.parent[scope] !== at) scope = names.parent[scope];
        if (scope < 0 || scope === at) direct.push(node);
        else if (scopes.has(scope)) scopes.get(scope).push(node);
        else scopes.set(scope, [node]);
      }
      if (direct.some((node) => this.model.computes(node)) || scopes.size !== 1) break;
      at = scopes.keys().next().value; // a scope that holds all tells nothing
    }
    for (const node of direct) this.#addLeaf(parent, node, at);
    for (const [scope, inside] of [...scopes].flatMap((group) => this.#numbered(...group))) {
      if (inside.length === 1) {
        this.#addLeaf(parent, inside[0], at);
        continue;
      }
      const [last, label] = this.#named(scope, inside, at);
      const box = new Box("scope", label, parent, inside);
      parent.children.push(box);
      this.#build(box, inside, last);
    }
  }

  // "layers" that holds nothing but "layers.0" to "layers.11" gives way to these.
  #numbered(scope, inside) {
    const { names, texts } = this.model;
    const below = new Map();
    for (const node of inside) {
      let at = names.scope[node];
      while (at >= 0 && at !== scope && names.parent[at] !== scope) at = names.parent[at];
      if (at < 0 || at === scope || !/^[./]*\d+[./]*$/.test(texts[names.part[at]])) return [[scope, inside]];
      if (below.has(at)) below.get(at).push(node);
      else below.set(at, [node]);
    }
    return below.size > MOST_CHILDREN / 2 ? [[scope, inside]] : [...below];
  }

  // The innermost scope that all of the nodes are in, and what to call it below `after`.
  #named(scope, inside, after) {
    const { names } = this.model;
    let last = scope;
    for (;;) {
      let below = -1;
      for (const node of inside) {
        let at = names.scope[node];
        while (at >= 0 && at !== last && names.parent[at] !== last) at = names.parent[at];
        if (at === last || at < 0 || (below >= 0 && at !== below)) {
          below = -1;
          break;
        }
        below = at;
      }
      if (below < 0) break;
      last = below;
    }
    const trimmed = (text) => text.replace(/^[/.]+|[/.]+$/g, "");
    let label = trimmed(this.model.path(after, last));
    // "layers.0", not "0".
    if (/^\d/.test(label) && after >= 0) label = trimmed(this.model.path(names.parent[after], last));
    return [last, label || trimmed(this.model.path(-1, last)) || "scope"];
  }

  // Children in the order in which they run; too many are put together.
  #arrange(box) {
    box.children.sort((a, b) => a.ops[0] - b.ops[0]);
    for (const child of box.children) this.#arrange(child);
    this.#chunk(box);
  }

  #chunk(box) {
    if (box.children.length <= MOST_CHILDREN) return;
    if (box.children.some((one) => one.isGroup)) this.#gather(box);
    const { children } = box;
    if (children.length <= MOST_CHILDREN) return;
    const size = Math.max(12, Math.ceil(children.length / 24));
    box.children = [];
    for (let begin = 0; begin < children.length; begin += size) {
      const some = children.slice(begin, begin + size);
      if (some.length === 1) {
        box.children.push(some[0]);
        continue;
      }
      box.children.push(this.#chunkOf(some, box));
    }
  }

  // Operations between two groups become a group of their own.
  #gather(box) {
    const found = [];
    let run = [];
    const end = () => {
      if (run.length > 3) found.push(this.#chunkOf(run, box));
      else found.push(...run);
      run = [];
    };
    for (const child of box.children) {
      if (child.isGroup) {
        end();
        found.push(child);
      } else run.push(child);
    }
    end();
    box.children = found;
  }

  #chunkOf(some, parent) {
    const ops = some.flatMap((one) => one.ops).sort((a, b) => a - b);
    const chunk = new Box("chunk", this.#chunkLabel(some, ops), parent, ops);
    chunk.children = some;
    for (const one of some) one.parent = chunk;
    this.#chunk(chunk);
    return chunk;
  }

  #chunkLabel(some, ops) {
    const groups = some.filter((one) => one.isGroup);
    if (groups.length > 1) return `${groups[0].label} … ${groups[groups.length - 1].label}`;
    const types = new Map();
    for (const node of ops) types.set(this.model.type(node), (types.get(this.model.type(node)) || 0) + 1);
    const most = [...types].sort((a, b) => b[1] - a[1]).slice(0, 2).map(([type, times]) => `${times} ${type}`);
    return `${groups.length ? `${groups[0].label} and others` : most.join(", ")}`;
  }

  #number(box, level) {
    const { nodes, devices } = this.model;
    box.id = this.boxes.length;
    box.level = level;
    this.boxes.push(box);
    box.us = new Float64Array(devices.length);
    box.counts = new Int32Array(devices.length);
    for (const node of box.ops) {
      box.us[nodes.device[node]] += nodes.us[node];
      if (box.kind === "op" || this.model.computes(node)) box.counts[nodes.device[node]] += 1;
    }
    box.time = box.us.reduce((sum, one) => sum + one, 0);
    box.count = box.counts.reduce((sum, one) => sum + one, 0);
    for (const child of box.children) this.#number(child, level + 1);
  }

  // Opens what leaves a picture that is taken in at a glance.
  #openFirst() {
    let level = this.root.children;
    for (;;) {
      const groups = level.filter((box) => box.isGroup);
      const next = groups.flatMap((box) => box.children);
      // All of a level or none: what is open by chance would look as if it mattered.
      if (!groups.length || level.length + next.length > 30) return;
      for (const box of groups) box.open = true;
      if (next.some((box) => !box.isGroup)) return;
      level = next;
    }
  }

  // The child of a box that a node is in, null where it is in none.
  childOf(box, node) {
    let at = this.leaf[node];
    while (at && at.parent !== box) at = at.parent;
    return at;
  }

  // The box that shows a node now.
  shown(node) {
    let found = this.leaf[node];
    for (let at = found.parent; at; at = at.parent) if (!at.open) found = at;
    return found;
  }

  // Edges between the children of a box, with the bytes that cross between devices.
  edgesOf(box) {
    if (box.edges) return box.edges;
    const { model } = this;
    const found = new Map();
    for (const node of box.ops) {
      const target = this.childOf(box, node);
      for (let at = model.inPtr[node]; at < model.inPtr[node + 1]; at += 1) {
        const from = model.inNode[at];
        const source = this.childOf(box, from);
        if (!source || source === target) continue;
        const key = source.id * this.boxes.length + target.id;
        let edge = found.get(key);
        if (!edge) found.set(key, (edge = { source, target, count: 0, bytes: 0, cut: 0, sent: new Set() }));
        edge.count += 1;
        const size = model.edges.bytes[model.inEdge[at]];
        edge.bytes += size;
        if (model.nodes.device[from] !== model.nodes.device[node] && model.type(node) !== "Result") {
          const sent = from * model.devices.length + model.nodes.device[node];
          if (!edge.sent.has(sent)) edge.cut += size; // a tensor goes to each device once
          edge.sent.add(sent);
        }
      }
    }
    box.edges = [...found.values()];
    return box.edges;
  }

  describe(box) {
    if (box.kind === "op") return `${this.model.type(box.node)} ${this.model.name(box.node)}`;
    return `${box.label}, ${count(box.count, "operation")}`;
  }

  short(box, most) {
    return shortened(box.label, most);
  }
}
