// Elements, numbers and colours. Every text goes in as text, so that nothing a policy wrote is ever read as markup.
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const DATA = JSON.parse(byId("data").textContent);

// Characters that act on a page, as measure/terminal.py lists them: controls, marks that reverse a line, halves of characters.
const ACTIVE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\p{Cs}]/gu;
const visible = (text) => String(text).replace(ACTIVE, (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
const READ = ["title", "aria-label"];

function put(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "paint") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : READ.includes(name) ? visible(value) : String(value));
  }
  for (const child of [children].flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
}
const el = (name, attributes, ...children) => put(document.createElement(name), attributes, children);
const shape = (name, attributes, ...children) => put(document.createElementNS(SVG, name), attributes, children);

// Grey is for models before post-training; runs beyond the palette repeat its colours with another dash.
const PALETTE = 8;
const DASHES = ["", "6 4", "2 3", "8 3 2 3", "14 4", "4 2", "14 3 2 3 2 3", "1 5", "6 2 2 2 2 2", "20 6"];
function look(index) {
  const turn = index < PALETTE ? 0 : 1 + Math.floor((index - PALETTE) / (PALETTE - 1));
  const colour = index < PALETTE ? index : 1 + ((index - PALETTE) % (PALETTE - 1));
  return { colour: `var(--c${colour})`, dash: DASHES[turn % DASHES.length] };
}
// One look for each setting: policies that differ in their seeds alone share it; then those of runs without an evaluation.
const settingOf = (label) => DATA.decision.rows.find((row) => row.policies.includes(label))?.setting ?? label;
const SETTINGS = [...new Set([...DATA.policies, ...DATA.curves].map((one) => settingOf(one.label)))];
const lookOf = (label) => Math.max(0, SETTINGS.indexOf(settingOf(label)));
function swatch(index) {
  const { colour, dash } = look(index);
  return shape("svg", { viewBox: "0 0 22 10", class: "line", "aria-hidden": "true" },
    shape("line", { x1: 1, x2: 21, y1: 5, y2: 5, "stroke-width": 3, "stroke-dasharray": dash || null, paint: { stroke: colour } }));
}

// A name that a line may break after each underscore.
const breakable = (name) => name.split(/(?<=_)/).flatMap((part, nth) => (nth ? [el("wbr"), part] : [part]));

// A table that scrolls sideways in its own box; where `stacks`, a narrow screen shows each row as a card with the titles in it.
// The roles say what the display of a card would make a screen reader forget.
function table(caption, titles, rows, stacks) {
  const head = titles.map((title) => el("th", { scope: "col", role: "columnheader", title: title.about, class: title.left && "left" }, breakable(title.text ?? title)));
  const body = rows.map((row) => el("tr", { role: "row", ...row.attributes }, el("th", { scope: "row", role: "rowheader", title: row.about }, row.name),
    row.cells.map((cell, nth) => {
      const title = titles[nth + 1];
      return el("td", { role: "cell", class: [title.left && "left", cell?.kind].filter(Boolean).join(" ") || null, "data-title": title.text ?? title }, cell?.of ?? cell);
    })));
  return el("div", { class: stacks ? "scroll stacks" : "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { role: "table" }, el("caption", { class: "hidden" }, caption), el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)),
      el("tbody", { role: "rowgroup" }, body)));
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const fixed = (value, digits) => (isNumber(value) ? value.toFixed(digits).replace(/^-(?=[0.]+$)/, "") : "–");
const signed = (value) => (value >= 0 ? "+" : "") + fixed(value, 3);
function short(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}
const figure = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : isNumber(value) ? short(value) : String(value));
const counted = (count, word) => `${figure(count)} ${word}${count === 1 ? "" : "s"}`;

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= raw * 0.999) || 10 * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(Number((k * step).toPrecision(12)));
  return found;
}

// Ticks of a log axis: powers of ten, and 2 and 5 of each where there is room.
function powers(low, high, count) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const found = (heads) => Array.from({ length: last - first + 1 }, (_, nth) => heads.map((head) => head * 10 ** (first + nth))).flat().filter((v) => v >= low && v <= high);
  const some = found([1, 2, 5]), tens = found([1]);
  return some.length <= count * 1.5 ? (some.length > 1 ? some : ticks(low, high, count)) : tens;
}

// "auto" follows the system; a choice is kept where the browser allows it to be.
function startTheme() {
  const system = window.matchMedia("(prefers-color-scheme: dark)"), names = ["auto", "light", "dark"];
  let chosen = "auto";
  try { chosen = localStorage.getItem("posttrain-theme") || "auto"; } catch { /* storage is off */ }
  if (!names.includes(chosen)) chosen = "auto";
  const show = () => {
    document.documentElement.dataset.theme = chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
    byId("theme").textContent = `Theme: ${chosen}`;
  };
  byId("theme").addEventListener("click", () => {
    chosen = names[(names.indexOf(chosen) + 1) % names.length];
    try { localStorage.setItem("posttrain-theme", chosen); } catch { /* storage is off */ }
    show();
  });
  system.addEventListener("change", show);
  show();
}
