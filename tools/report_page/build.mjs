// Bundles the page of the reports into one file, ov_hsdag/report/page.html, that needs nothing else. The Python package
// replaces TITLE and DATA in it. The file says which sources it was made of, which a test compares.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "..", "ov_hsdag", "report");
const sources = ["build.mjs", "package-lock.json", "package.json", ...readdirSync(join(here, "src")).map((n) => `src/${n}`)];

const read = (name) => readFileSync(join(here, name), "utf8");
const sha256 = (text, encoding) => createHash("sha256").update(text).digest(encoding);

async function bundle(entry) {
  const { outputFiles, metafile } = await build({
    entryPoints: [join(here, "src", entry)],
    absWorkingDir: here,
    bundle: true,
    minify: true,
    write: false,
    metafile: true,
    charset: "ascii",
    format: "iife",
    legalComments: "none",
    target: "es2020",
  });
  // Nothing in it may end the element that it stands in.
  const text = outputFiles[0].text.trim().replace(/<\/(script|style)/gi, "<\\/$1").replace(/<!--/g, "<\\!--");
  return { text, inputs: Object.keys(metafile.inputs) };
}

function licences(inputs) {
  const packages = new Set();
  for (const input of inputs) {
    const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) packages.add(found[1]);
  }
  const told = [...packages].sort().map((name) => {
    const folder = join("node_modules", name);
    const { version, license } = JSON.parse(read(join(folder, "package.json")));
    const file = readdirSync(join(here, folder)).find((one) => /^licen[cs]e/i.test(one));
    if (!file) throw new Error(`${name} has no licence file`);
    return `${name} ${version} (${license})\n\n${read(join(folder, file)).trim()}\n`;
  });
  return `The page of the reports contains these packages.\n\n${told.join(`\n${"-".repeat(80)}\n\n`)}`;
}

const script = await bundle("main.js");
const style = await bundle("page.css");
const policy = [
  "default-src 'none'",
  `script-src 'sha256-${sha256(script.text, "base64")}'`,
  `style-src 'sha256-${sha256(style.text, "base64")}'`,
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");
const made = sha256(sources.sort().map((name) => `${name}\0${sha256(read(name), "hex")}\n`).join(""), "hex");

const page = read("src/page.html")
  .replace("__SOURCES__", () => made)
  .replace("__POLICY__", () => policy)
  .replace("__STYLE__", () => style.text)
  .replace("__SCRIPT__", () => script.text);
writeFileSync(join(target, "page.html"), page);
writeFileSync(join(target, "LICENSES.txt"), licences(script.inputs));
console.log(`page.html: ${(page.length / 1024).toFixed(0)} KiB of sources ${made.slice(0, 12)}`);
