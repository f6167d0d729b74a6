"use strict";
// Sorts tables and reads values off the curves. All that it shows is on the page without it.

function make(name, fields = {}, ...inner) {
  const node = Object.assign(document.createElement(name), fields);
  node.append(...inner);
  return node;
}

// ---- tables: a head sorts what lies along it, up, then down, then as it was
function valueOf(cell) {
  const copy = cell.cloneNode(true);
  copy.querySelectorAll("small").forEach(small => small.remove());
  const text = copy.textContent.replaceAll("−", "-");
  const found = text.match(/-?\d+(\.\d+)?(e[-+]?\d+)?/);
  if (!found) return null;
  return Number(found[0]) + (text.includes(">") ? 1e-9 : text.includes("<") ? -1e-9 : 0);  // "> 30" is more than 30
}

function orderBy(values, direction) {
  const places = values.map((_, i) => i);
  if (direction === "none") return places;
  const sign = direction === "ascending" ? 1 : -1;
  return places.sort((i, j) => {
    const [a, b] = [values[i], values[j]];
    if (a === null || b === null) return (a === null) - (b === null) || i - j;  // what has no number is last
    return sign * (a - b) || i - j;
  });
}

for (const table of document.querySelectorAll("table[data-sort]")) {
  const rows = [...table.tBodies[0].rows];
  const original = rows.map(row => [...row.cells]);
  const head = [...table.tHead.rows[0].cells];
  const byRow = table.dataset.sort === "columns";
  const last = head.length - (table.classList.contains("defined") ? 1 : 0);  // the definitions stay where they are
  const heads = byRow ? rows.map(row => row.cells[0]) : head.slice(1, last);
  heads.forEach((cell, index) => {
    const button = make("button", {type: "button"}, ...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const next = {ascending: "descending", descending: "none"}[cell.getAttribute("aria-sort")] || "ascending";
      heads.forEach(each => each.removeAttribute("aria-sort"));
      if (next !== "none") cell.setAttribute("aria-sort", next);
      if (byRow) {
        const order = orderBy(original[index].slice(1, last).map(valueOf), next).map(place => place + 1);
        [head, ...original].forEach((cells, i) => {
          (i ? rows[i - 1] : table.tHead.rows[0]).append(cells[0], ...order.map(j => cells[j]), ...cells.slice(last));
        });
      } else {
        table.tBodies[0].append(...orderBy(original.map(cells => valueOf(cells[index + 1])), next).map(i => rows[i]));
      }
    });
  });
}

// ---- curves: a slider lies over the plot, for the pointer, for the keyboard and for those who listen
for (const figure of document.querySelectorAll("figure")) {
  const data = figure.querySelector("script");
  if (!data) continue;
  const {at, x, lines} = JSON.parse(data.textContent);
  const svg = figure.querySelector("svg");
  const box = svg.viewBox.baseVal;
  const slider = make("input", {type: "range", min: 0, max: at.length - 1, value: at.length - 1});
  slider.setAttribute("aria-label", figure.querySelector("h3").textContent);
  const told = make("div", {className: "told", hidden: true});
  told.setAttribute("aria-hidden", "true");  // the slider says it
  const plot = make("div", {className: "read"});
  svg.replaceWith(plot);
  plot.append(svg, slider, told);
  const mark = document.createElementNS(svg.namespaceURI, "line");
  for (const [name, value] of Object.entries({y1: 28, y2: box.height - 38, stroke: "var(--soft)", "stroke-width": 1}))
    mark.setAttribute(name, value);
  let pointer = null;

  function nearest() {
    const {left, width} = svg.getBoundingClientRect();
    const place = (pointer - left) / width;
    return at.reduce((best, here, i) => Math.abs(here - place) < Math.abs(at[best] - place) ? i : best, 0);
  }
  function show(i) {
    const known = lines.map(([label, colour, values]) => [label, colour, values[i]]).filter(each => each[2] !== null);
    slider.value = i;
    slider.setAttribute("aria-valuetext", [x[i], ...known.map(([label, , value]) => `${label}: ${value}`)].join(", "));
    told.replaceChildren(make("b", {textContent: x[i]}), ...known.map(([label, colour, value]) => {
      const line = make("span", {}, make("i"), `${label} `, make("em", {textContent: value}));
      line.firstChild.style.background = `var(--c${colour})`;
      return line;
    }));
    told.hidden = false;
    const [here, room] = [at[i] * plot.clientWidth, plot.clientWidth - told.offsetWidth];
    told.style.left = `${Math.max(0, Math.min(at[i] > 0.55 ? here - told.offsetWidth - 8 : here + 8, room))}px`;
    mark.setAttribute("x1", at[i] * box.width);
    mark.setAttribute("x2", at[i] * box.width);
    svg.append(mark);
  }
  function hide() {
    told.hidden = true;
    mark.remove();
  }
  slider.setAttribute("aria-valuetext", x[at.length - 1]);
  slider.addEventListener("pointermove", event => { pointer = event.clientX; show(nearest()); });
  slider.addEventListener("pointerdown", event => { pointer = event.clientX; });
  slider.addEventListener("input", () => show(pointer === null ? Number(slider.value) : nearest()));
  slider.addEventListener("keydown", event => { pointer = null; if (event.key === "Escape") hide(); });
  slider.addEventListener("focus", () => { if (pointer === null) show(Number(slider.value)); });
  slider.addEventListener("pointerleave", () => { pointer = null; if (document.activeElement !== slider) hide(); });
  slider.addEventListener("blur", hide);
}
