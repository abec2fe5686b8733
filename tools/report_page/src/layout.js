// Where boxes are: each open box is laid out by itself, its open children before it.
import dagre from "@dagrejs/dagre";

const OP = { width: 170, height: 44 };
const GROUP = { width: 194, height: 54 };
const HEADER = 34;
const MARGIN = 16;

// Sizes `box` and all that is open in it, and gives its children x and y inside of it (their middles). `frame`, given for
// the outermost box, is what that is to fill: it goes down or to the right, whichever can be drawn larger.
export function layOut(tree, box, frame = null) {
  if (!box.dirty) return;
  box.dirty = false;
  if (!box.isGroup || !box.open) {
    Object.assign(box, box.isGroup ? GROUP : OP);
    return;
  }
  for (const child of box.children) layOut(tree, child);
  const edges = tree.edgesOf(box);
  let graph = arranged(box, edges, box.direction ?? "TB");
  if (frame && !box.direction) {
    const other = arranged(box, edges, "LR");
    box.direction = scaleIn(frame, other) > scaleIn(frame, graph) ? "LR" : "TB"; // and so it stays
    if (box.direction === "LR") graph = other;
  }
  for (const child of box.children) {
    const { x, y } = graph.node(String(child.id));
    child.x = x + MARGIN;
    child.y = y + MARGIN + HEADER;
  }
  box.routes = edges.map((edge) => {
    const route = graph.edge(String(edge.source.id), String(edge.target.id));
    return { edge, points: route.points.map(({ x, y }) => [x + MARGIN, y + MARGIN + HEADER]) };
  });
  const { width, height } = graph.graph();
  box.width = Math.max(width + 2 * MARGIN, GROUP.width);
  const spare = (box.width - width - 2 * MARGIN) / 2;
  if (spare > 0) {
    for (const child of box.children) child.x += spare;
    for (const route of box.routes) for (const point of route.points) point[0] += spare;
  }
  box.height = height + 2 * MARGIN + HEADER;
}

const scaleIn = (frame, graph) =>
  Math.min(1, frame.width / (graph.graph().width + 2 * MARGIN), frame.height / (graph.graph().height + 2 * MARGIN));

function arranged(box, edges, rankdir) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir, nodesep: 22, ranksep: rankdir === "TB" ? 34 : 14, edgesep: 10, marginx: 0, marginy: 0 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const child of box.children) graph.setNode(String(child.id), { width: child.width, height: child.height });
  for (const { source, target, cut } of edges) {
    const room = cut ? { width: 62, height: 16, labelpos: "c" } : {};
    graph.setEdge(String(source.id), String(target.id), { weight: 1, ...room });
  }
  dagre.layout(graph);
  return graph;
}

export function touch(box) {
  for (let at = box; at; at = at.parent) at.dirty = true;
}

// Its middle in the coordinates of the whole picture.
export function middle(box) {
  let [x, y] = [box.x, box.y];
  for (let at = box.parent; at && at.parent; at = at.parent) {
    x += at.x - at.width / 2;
    y += at.y - at.height / 2;
  }
  return [x, y];
}

export const header = HEADER;
