// Elements and texts. All texts become text nodes: nothing of a model's names is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

export const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

const digits = (most) => new Intl.NumberFormat("en", { maximumFractionDigits: most });
const [whole, one, two, three] = [0, 1, 2, 3].map(digits);

export const count = (number, name, plural = `${name}s`) => `${whole.format(number)} ${number === 1 ? name : plural}`;

export function time(us) {
  if (us === null || us === undefined) return "–";
  const size = Math.abs(us);
  if (size >= 1e6) return `${two.format(us / 1e6)} s`;
  if (size >= 1e5) return `${whole.format(us / 1e3)} ms`;
  if (size >= 1e4) return `${one.format(us / 1e3)} ms`;
  if (size >= 1e3) return `${two.format(us / 1e3)} ms`;
  return `${(size >= 100 ? whole : size >= 10 ? one : two).format(us)} µs`;
}

export const signed = (us) => (us > 0 ? `+${time(us)}` : time(us));

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  if (size >= 2 ** 30) return `${two.format(size / 2 ** 30)} GiB`;
  if (size >= 2 ** 20) return `${(size >= 100 * 2 ** 20 ? whole : one).format(size / 2 ** 20)} MiB`;
  if (size >= 2 ** 10) return `${(size >= 100 * 2 ** 10 ? whole : one).format(size / 2 ** 10)} KiB`;
  return count(size, "byte");
}

export const percent = (share) => `${(share >= 0.1 || share === 0 ? whole : one).format(share * 100)}%`;
export const number = (value) => three.format(value);

export const times = (value) => `${value.toFixed(2)}×`;

export function shortened(text, most) {
  return text.length <= most ? text : `…${text.slice(1 - most)}`;
}

// Gives at most so many pieces of work a turn; the last one is done once it is quiet.
export function debounced(work, ms) {
  let waiting = 0;
  return (...given) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => work(...given), ms);
  };
}
