// A page of tables: a click on a title sorts the table, and the address keeps the order, as `#0:3:down`.
const tables = [...document.querySelectorAll("table")];

const number = (text) => {
  const found = text.replace(/,/g, "").replace("−", "-").match(/^[-+]?\d*\.?\d+(e[-+]?\d+)?/i);
  return found ? Number(found[0]) : null;
};

function sort(table, column, down) {
  const body = table.tBodies[0], rows = [...body.rows].map((row) => [row, row.cells[column].textContent.trim()]);
  const numbers = rows.every(([, text]) => number(text) !== null || text === "-" || text === "");
  const key = numbers ? (text) => number(text) ?? -Infinity : (text) => text;
  rows.sort(([, a], [, b]) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1));
  body.append(...rows.map(([row]) => row));
  [...table.tHead.rows[0].cells].forEach((title, place) => {
    if (place === column) title.setAttribute("aria-sort", down ? "descending" : "ascending");
    else title.removeAttribute("aria-sort");
  });
}

function fromAddress() {
  for (const part of location.hash.slice(1).split(",")) {
    const [table, column, way] = part.split(":");
    if (tables[table]?.tHead.rows[0].cells[column]) sort(tables[table], Number(column), way === "down");
  }
}

const orders = new Map();
tables.forEach((table, nth) => [...table.tHead.rows[0].cells].forEach((title, column) => {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "sort" });
  button.append(...title.childNodes);
  title.append(button);
  button.addEventListener("click", () => {
    const down = title.getAttribute("aria-sort") !== "descending";
    sort(table, column, down);
    orders.set(nth, `${nth}:${column}:${down ? "down" : "up"}`);
    history.replaceState(null, "", `#${[...orders.values()].join(",")}`);
  });
}));
for (const part of location.hash.slice(1).split(",")) if (/^\d+:\d+:(up|down)$/.test(part)) orders.set(Number(part.split(":")[0]), part);
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
addEventListener("hashchange", fromAddress);
fromAddress();
document.documentElement.dataset.ready = "yes";
