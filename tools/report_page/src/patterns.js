// A colour and a pattern for each device: whoever does not tell the colours apart tells the patterns.
import { svg } from "./dom.js";

const DRAWN = [
  () => [],
  () => [svg("path", { d: "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4" })],
  () => [svg("circle", { cx: 4, cy: 4, r: 1.6, class: "dot" })],
  () => [svg("path", { d: "M0,4 h8 M4,0 v8" })],
  () => [svg("path", { d: "M0,2 h8 M0,6 h8" })],
  () => [svg("path", { d: "M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4" })],
  () => [svg("path", { d: "M2,0 v8 M6,0 v8" })],
  () => [svg("path", { d: "M0,0 l8,8 M8,0 l-8,8" })],
];

export function patterns() {
  const defs = svg("defs");
  DRAWN.forEach((drawn, device) => {
    defs.append(
      svg(
        "pattern",
        { id: `pattern-${device}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
        svg("rect", { class: `plain-${device}`, width: 8, height: 8 }),
        svg("g", { class: "lines" }, drawn()),
      ),
    );
  });
  for (const [id, kind] of [["arrow", "tip"], ["arrow-cut", "tip cut"]]) {
    defs.append(
      svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { class: kind, d: "M0,0 L8,4 L0,8 z" })),
    );
  }
  return svg("svg", { class: "defs", width: 0, height: 0, "aria-hidden": "true" }, defs);
}
