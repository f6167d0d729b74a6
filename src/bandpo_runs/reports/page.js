"use strict";
// Reads values off the curves, which are on the page without it too.

function make(name, fields = {}, ...inner) {
  const node = Object.assign(document.createElement(name), fields);
  node.append(...inner);
  return node;
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
