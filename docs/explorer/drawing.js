"use strict";
// Plots as SVG, made anew at each change, in the pixels that the page has for them; handles stay, so that a drag goes on.

const NS = "http://www.w3.org/2000/svg";
const MARGIN = { left: 52, right: 14, top: 26, bottom: 40 };

const within = (x, low, high) => Math.min(Math.max(x, low), high);

/** An axis: `at(value)`, 0 to 1 in the plot, and not far beyond it elsewhere; `value(share)` back, and its ticks. */
function axis(low, high, ticks, scale = (x) => x, back = (x) => x) {
  const [first, last] = [scale(low), scale(high)];
  return {
    low, high, ticks,
    at: (value) => within((scale(value) - first) / (last - first), -1, 2),
    value: (share) => back(first + within(share, 0, 1) * (last - first)),
  };
}
const logAxis = (low, high, ticks) => axis(low, high, ticks, Math.log, Math.exp);
const oddsAxis = (low, high, ticks) => axis(low, high, ticks, (p) => Math.log(p / Math.max(1 - p, 0)), (x) => 1 / (1 + Math.exp(-x)));

/** Round numbers within an interval, five or so. */
function niceTicks(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9) + 1e-12; i++) ticks.push(i * step);
  return ticks;
}

/** 0.0036, 12, 0.51: so many digits that count, without e-notation. */
function number(x, digits = 2) {
  if (x === null || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (Math.abs(x) < 1e-12) return "0";
  const rounded = Number(x.toPrecision(digits));
  const decimals = Math.min(Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(rounded)))), 12);
  return rounded.toFixed(decimals).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "").replace("-", "−");
}

/** Probabilities near 1 need the digits after the nines: 0.9987. */
function probability(p) {
  return p > 0.98 && p < 1 ? String(1 - Number((1 - p).toPrecision(2))).slice(0, 8) : number(p);
}
const percent = (x) => (x === null ? "–" : `${number(100 * x, 3)} %`);

/**
 * A plot in `place`. `draw(pen)` draws what is in it; the pen takes values, not pixels. Lines and areas are cut at the frame,
 * dots beyond it stand on it.
 */
function plot(place, x, y, { title, xTitle, label, height, xFormat = number, yFormat = number }, draw) {
  const width = Math.max(place.clientWidth, 240), tall = height(width);
  const left = (value) => MARGIN.left + x.at(value) * (width - MARGIN.left - MARGIN.right);
  const top = (value) => MARGIN.top + (1 - y.at(value)) * (tall - MARGIN.top - MARGIN.bottom);
  const parts = [];
  const put = (text) => parts.push(text);
  const pixel = (value) => value.toFixed(2);
  const points = (list) => list.map(([a, b]) => `${pixel(left(a))},${pixel(top(b))}`).join(" L");
  const edge = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: tall - MARGIN.bottom };
  const [frameX, frameY] = [(value) => within(left(value), edge.left, edge.right), (value) => within(top(value), edge.top, edge.bottom)];
  const cut = `clip-path="url(#${place.id}-frame)"`;
  put(`<clipPath id="${place.id}-frame"><rect x="${edge.left}" y="${edge.top}" width="${edge.right - edge.left}" height="${edge.bottom - edge.top}"/></clipPath>`);
  for (const value of x.ticks) {
    put(`<line class="grid" x1="${pixel(left(value))}" x2="${pixel(left(value))}" y1="${edge.top}" y2="${edge.bottom}"/>`);
  }
  for (const value of y.ticks) {
    put(`<line class="grid" x1="${edge.left}" x2="${edge.right}" y1="${pixel(top(value))}" y2="${pixel(top(value))}"/>`);
  }
  draw({
    line: (kind, list) => put(`<path class="curve ${kind}" ${cut} d="M${points(list)}"/>`),
    area: (kind, list) => put(`<path class="area ${kind}" ${cut} d="M${points(list)}Z"/>`),
    upright: (kind, value) => put(`<line class="${kind}" x1="${pixel(left(value))}" x2="${pixel(left(value))}" y1="${edge.top}" y2="${edge.bottom}"/>`),
    level: (kind, value) => put(`<line class="${kind}" x1="${edge.left}" x2="${edge.right}" y1="${pixel(top(value))}" y2="${pixel(top(value))}"/>`),
    dot: (kind, a, b) => put(`<circle class="dot ${kind}" cx="${pixel(frameX(a))}" cy="${pixel(frameY(b))}" r="5"/>`),
    dots: (kind, list) => put(`<path class="dots ${kind}" d="${list.map(([a, b]) => `M${pixel(frameX(a))} ${pixel(frameY(b))}h0`).join("")}"/>`),
    text: (kind, a, b, text) => put(`<text class="note ${kind}" x="${pixel(left(a))}" y="${pixel(top(b))}">${text}</text>`),
  });
  let last = -Infinity; // labels that would touch the one before are left out
  for (const value of x.ticks) {
    if (left(value) - last < 40) continue;
    last = left(value);
    put(`<text class="tick x" x="${pixel(left(value))}" y="${edge.bottom + 17}">${xFormat(value)}</text>`);
  }
  for (const value of y.ticks) put(`<text class="tick y" x="${edge.left - 7}" y="${pixel(top(value) + 4)}">${yFormat(value)}</text>`);
  put(`<text class="title" x="0" y="13">${title}</text>`);
  put(`<text class="tick xtitle" x="${edge.right}" y="${edge.bottom + 34}">${xTitle}</text>`);
  let svg = place.querySelector("svg");
  if (!svg) {
    svg = document.createElementNS(NS, "svg");
    svg.setAttribute("role", "img");
    place.prepend(svg);
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${tall}`);
  svg.setAttribute("aria-label", label);
  svg.innerHTML = parts.join("");
  place.scales = { x, y, left: frameX, top: frameY, edge };
}

/** Puts the handle of a plot at a point of it. */
function placeHandle(place, a, b) {
  const handle = place.querySelector(".handle"), svg = place.querySelector("svg");
  const scale = svg.clientWidth / svg.viewBox.baseVal.width || 1;
  handle.style.left = `${place.scales.left(a) * scale}px`;
  handle.style.top = `${place.scales.top(b) * scale}px`;
}

/**
 * Calls `move(x, y)` with the values under the pointer: where a mouse is pressed and drawn anywhere in the plot, where a finger
 * draws the handle, and where it taps; a finger elsewhere scrolls the page.
 */
function draggable(place, move) {
  const send = (event) => {
    const svg = place.querySelector("svg"), box = svg.getBoundingClientRect(), { x, y, edge } = place.scales;
    const scale = svg.viewBox.baseVal.width / box.width;
    const a = ((event.clientX - box.left) * scale - edge.left) / (edge.right - edge.left);
    const b = 1 - ((event.clientY - box.top) * scale - edge.top) / (edge.bottom - edge.top);
    move(x.value(a), y.value(b));
  };
  let held = false;
  place.addEventListener("pointerdown", (event) => {
    if (event.button || (event.pointerType !== "mouse" && !event.target.closest(".handle"))) return;
    held = true;
    place.setPointerCapture(event.pointerId);
    event.preventDefault();
    send(event);
  });
  place.addEventListener("pointermove", (event) => held && send(event));
  for (const end of ["pointerup", "pointercancel"]) place.addEventListener(end, () => (held = false));
  place.addEventListener("click", send);
}
