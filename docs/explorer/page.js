"use strict";
// What is set, the controls that set it, the address that holds it, and the page drawn from it.

const P = oddsAxis(1e-4, 0.9999, [0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999]);
const R = logAxis(1 / 30, 30, [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20]);
const SAMPLES = [...Array(121).keys()].map((i) => P.value(i / 120)).concat([...Array(119).keys()].map((i) => (i + 1) / 120)).sort((a, b) => a - b);
const MOST_DOTS = 4000;
const WORDS = [["of", 0.995], ["the", 0.92], ["equals", 0.6], ["so", 0.25], ["therefore", 0.08], ["check", 0.02], ["wait", 0.003], ["alternatively", 0.0004]];
const SIDES = ["a", "b"];

const choice = (name) => ({ name, values: METHODS.find((method) => method.name === name).fields.map((field) => field[1]) });
const state = { a: choice("band-kl"), b: choice("grpo"), p: 0.003, r: 1.5, good: true, which: "a", where: 0 };
const EXAMPLE = readTokens(document.getElementById("tokens").textContent, "example");
let tokens = EXAMPLE, source = "";
const element = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};

// ---- the address

/** #a=band-kl:0.05&b=grpo:0.2&p=0.003&r=1.5&push=up */
function addressOf() {
  const rules = SIDES.map((side) => `${side}=${[state[side].name, ...state[side].values].join(":")}`);
  return `#${rules.join("&")}&p=${state.p}&r=${Number(state.r.toPrecision(4))}&push=${state.good ? "up" : "down"}`;
}

/** Takes what the address says; what it cannot mean is told. */
function readAddress() {
  const wrong = [];
  for (const [key, text] of new URLSearchParams(location.hash.slice(1))) {
    if (SIDES.includes(key)) {
      const [name, ...values] = text.split(":");
      const method = METHODS.find((each) => each.name === name);
      const fits = method && values.length <= method.fields.length && values.every((value, i) => isWithin(value, method.fields[i]));
      if (fits) state[key] = { name, values: method.fields.map((field, i) => (i < values.length ? Number(values[i]) : field[1])) };
      else wrong.push(`${key}=${text}`);
    } else if (key === "p" && isWithin(text, ["p", 0, P.low, P.high])) state.p = Number(text);
    else if (key === "r" && isWithin(text, ["r", 0, R.low, R.high])) state.r = Number(text);
    else if (key === "push" && ["up", "down"].includes(text)) state.good = text === "up";
    else wrong.push(`${key}=${text}`);
  }
  if (state.p * state.r > 1) {
    wrong.push(`p=${state.p}&r=${state.r}`);
    state.r = 1 / state.p;
  }
  element("notice").hidden = !wrong.length;
  element("notice").textContent = `The address has what this page does not know: ${wrong.join(", ")}. The rest of it is used.`;
}

const isWithin = (text, [, , least, most]) => String(text).trim() !== "" && Number(text) >= least && Number(text) <= most;

// ---- controls

/** A slider and a number for one value; on a logarithmic scale where its limits are far apart. */
function fieldFor(label, scale, get, set) {
  const id = `field-${label.replace(/\W/g, "-")}-${document.querySelectorAll(".field").length}`;
  const range = make("input", { type: "range", min: 0, max: 1000, step: 1, id });
  const box = make("input", { type: "number", min: scale.low, max: scale.high, step: "any" });
  const error = make("span", { className: "error", hidden: true });
  error.setAttribute("role", "alert");
  box.setAttribute("aria-label", `${label}, as a number`);
  range.addEventListener("input", () => set(Number(scale.value(range.value / 1000).toPrecision(3))));
  box.addEventListener("input", () => {
    const fits = isWithin(box.value, ["", 0, scale.low, scale.high]);
    error.hidden = fits;
    error.textContent = `${label} must be a number from ${number(scale.low)} to ${number(scale.high, 5)}, got ${box.value || "none"}`;
    if (fits) set(Number(box.value));
  });
  const row = make("div", { className: "field" }, make("label", { htmlFor: id, textContent: label }), range, box, error);
  row.show = () => {
    range.value = Math.round(1000 * scale.at(get()));
    range.setAttribute("aria-valuetext", String(get()));
    if (document.activeElement !== box || isWithin(box.value, ["", 0, scale.low, scale.high])) {
      error.hidden = true;
      if (Number(box.value) !== get() || box.value === "") box.value = Number(get().toPrecision(4));
    }
  };
  return row;
}

const scaleOf = ([, , least, most]) => (least > 0 && most / least > 20 ? logAxis(least, most, []) : axis(least, most, []));

/** The controls of a rule: which, with what numbers. */
function buildRule(side) {
  const place = element(`rule-${side}`);
  const select = make("select", { id: `method-${side}` });
  select.setAttribute("aria-label", `Rule ${side.toUpperCase()}`);
  for (const family of new Set(METHODS.map((method) => method.family))) {
    const group = make("optgroup", { label: family });
    group.append(...METHODS.filter((method) => method.family === family).map((method) => make("option", { value: method.name, textContent: method.title })));
    select.append(group);
  }
  const about = make("p", { className: "about" }), fields = make("div");
  place.append(select, fields, about);
  select.addEventListener("change", () => {
    state[side] = choice(select.value);
    changed();
  });
  let built = "";
  place.show = () => {
    const method = methodOf(state[side]);
    select.value = method.name;
    about.textContent = method.about;
    if (built !== method.name) {
      built = method.name;
      const rows = method.fields.map((field, i) =>
        fieldFor(field[0], scaleOf(field), () => state[side].values[i] ?? field[1], (value) => {
          state[side].values[i] = value;
          changed();
        }),
      );
      fields.replaceChildren(...rows);
    }
    for (const row of fields.children) row.show();
  };
}

function buildToken() {
  const place = element("token");
  const rows = [
    fieldFor("probability p", P, () => state.p, (p) => moveTo(p, state.r)),
    fieldFor("ratio r now", R, () => state.r, (r) => moveTo(state.p, r)),
  ];
  const now = make("p", { className: "about" }), signs = make("div", { className: "signs" });
  for (const [good, text] of [[true, "Good answer ↑"], [false, "Bad answer ↓"]]) {
    const button = make("button", { type: "button", textContent: text });
    button.addEventListener("click", () => {
      state.good = good;
      if ((state.r > 1) !== good) state.r = Math.min(1 / state.r, 1 / state.p); // a token moves to where it is pushed
      changed();
    });
    button.show = () => button.setAttribute("aria-pressed", state.good === good);
    signs.append(button);
  }
  place.append(signs, ...rows, now);
  place.show = () => {
    for (const each of [...rows, ...signs.children]) each.show();
    now.textContent = `Its probability was ${probability(state.p)} and is ${probability(state.p * state.r)} now, ${number(state.r, 3)} times as much.`;
  };
}

/** Moves the token; its ratio ends where its probability would be 1. */
function moveTo(p, r) {
  state.p = within(Number(p.toPrecision(4)), P.low, P.high);
  state.r = within(r, R.low, Math.min(R.high, 1 / state.p));
  changed();
}

function buildCards() {
  for (const [text, p] of WORDS) {
    const card = make("button", { type: "button", className: "card" });
    card.addEventListener("click", () => moveTo(p, state.r));
    card.show = (rules) => {
      card.setAttribute("aria-pressed", state.p === p);
      const bar = (rule, y) => {
        const [low, high] = rule.bounds(p).map((r) => 240 * within(P.at(r * p), 0, 1));
        return `<rect class="${rule.side}" x="${low}" y="${y}" width="${Math.max(high - low, 2)}" height="5"/>`;
      };
      const x = 240 * P.at(p);
      card.innerHTML =
        `<b>‘${text}’</b>, p = ${probability(p)}` +
        `<svg viewBox="0 0 240 20" aria-hidden="true"><path class="zero" d="M0 10H240"/>${bar(rules.a, 3)}${bar(rules.b, 12)}<path class="ring" d="M${x} 0V20"/></svg>` +
        SIDES.map((side) => `<span data-side="${side}">${rules[side].short} ${verdictOf(rules[side], p, state.good)}</span>`).join("");
    };
    element("cards").append(card);
  }
}

// ---- words

/** What a rule does with a token that is pushed up or down, beginning with a verb. */
function verdictOf(rule, p, good, more = false) {
  const [low, high] = rule.bounds(p);
  const effect = effectOf(rule.node);
  if (effect.endsWith("start")) return effect;
  const ratio = good ? high : low, end = ratio * p;
  if (end > 1 - 1e-9) return "does not clip it";
  if (end > 0.9999) return "lets it grow to almost 1";
  if (end < 1e-6) return `lets it fall to ${end < 1e-12 ? 0 : "almost 0"}`;
  return `${effect} ${probability(end)}${more ? ` (${number(ratio)} times as likely)` : ""}`;
}

function writeVerdict(rules) {
  const { p, r, good } = state;
  const [a, b] = SIDES.map((side) => `<b class="${side}">${rules[side].short}</b> ${verdictOf(rules[side], p, good, true)}`);
  const pushes = SIDES.map((side) => (good ? 1 : -1) * surrogate(rules[side].node, good, r, rules[side].bounds(p)).slope > 1e-9);
  const [yes, no] = [true, false].map((pushed) => SIDES.filter((side, i) => pushes[i] === pushed).map((side) => rules[side].short));
  const now = !no.length ? "both rules still push it" : !yes.length ? "neither rule pushes it any more" : `${yes[0]} still pushes it, ${no[0]} does not`;
  element("verdict").innerHTML =
    `A token of probability ${probability(p)} in a ${good ? "good" : "bad"} answer is pushed ${good ? "up" : "down"}: ${a}, ${b}. ` +
    `Where it is now, at ${probability(p * r)}, ${now}.`;
}

// ---- pictures and tables

const rows = (table, head, body) => {
  table.tHead.innerHTML = `<tr><td></td>${head.map((text) => `<th scope="col">${text}</th>`).join("")}</tr>`;
  table.tBodies[0].innerHTML = body
    .map(([name, cells]) => `<tr><th scope="row">${name}</th>${cells.map((text) => `<td>${text}</td>`).join("")}</tr>`)
    .join("");
};

function drawLimits(pen, rules, points) {
  for (const side of SIDES) {
    const [lower, upper] = [0, 1].map((end) => points(rules[side].curve, end));
    pen.area(side, [...lower, ...upper.slice().reverse()]);
  }
  for (const side of SIDES) for (const end of [0, 1]) pen.line(`${side} ${end ? "high" : "low"}`, points(rules[side].curve, end));
}

const ratioPoints = (curve, end) => curve.map(([p, bounds]) => [p, bounds[end]]);
const changePoints = (curve, end) => curve.map(([p, bounds]) => [p, changeOf(p, bounds[end])]);
const changeOf = (p, r) => Math.min((r - 1) * p, 1 - p);
const named = (rules) => SIDES.map((side) => rules[side].short).join(" and ");

function drawMap(place, rules, height, dots) {
  const about = { title: "times as likely as before (ratio r)", xTitle: "probability p when it was written", xFormat: String, height,
    label: `Limits of the ratio by old probability, for ${named(rules)}; at p = ${probability(state.p)} they are in the table` };
  plot(place, P, R, about, (pen) => {
    pen.area("none", [...SAMPLES.map((p) => [p, 1 / p]), [P.high, R.high], [P.low, R.high]]);
    drawLimits(pen, rules, ratioPoints);
    pen.level("zero", 1);
    if (dots) return dots(pen);
    pen.text("end", P.value(0.985), R.value(0.95), "above 1");
    pen.text("", P.value(0.015), R.value(0.04), "fell");
    pen.text("", P.value(0.015), R.value(0.93), "grew");
    for (const side of SIDES) for (const r of rules[side].bounds(state.p)) pen.dot(side, state.p, r);
  });
}

function drawChange(rules) {
  const all = SIDES.flatMap((side) => [0, 1].flatMap((end) => changePoints(rules[side].curve, end).map(([, change]) => change)));
  const [low, high] = [Math.min(-0.02, ...all) * 1.08, Math.max(0.02, ...all) * 1.08];
  const x = axis(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), y = axis(low, high, niceTicks(low, high));
  const about = { title: "change of probability", xTitle: "probability p when it was written", height: (width) => within(0.75 * width, 250, 400),
    label: `Limits of the change of probability by old probability, for ${named(rules)}` };
  plot(element("change"), x, y, about, (pen) => {
    drawLimits(pen, rules, changePoints);
    pen.line("limit", SAMPLES.map((p) => [p, 1 - p]));
    pen.line("limit", SAMPLES.map((p) => [p, -p]));
    pen.level("zero", 0);
    pen.upright("here", state.p);
    for (const side of SIDES) for (const r of rules[side].bounds(state.p)) pen.dot(side, state.p, changeOf(state.p, r));
  });
}

function drawPush(rules) {
  const { p, r, good } = state;
  const ends = SIDES.map((side) => rules[side].bounds(p)[1]).filter((x) => Number.isFinite(x));
  const most = Math.min(1 / p, R.high, good ? 1.25 * Math.max(1.6, r, ...ends) : Math.max(2, 1.25 * r));
  const x = axis(0, most, niceTicks(0, most));
  const places = [...Array(241).keys()].map((i) => (i * most) / 240 || most / 1e4);
  const bounds = SIDES.map((side) => rules[side].bounds(p));
  const all = places.concat(...bounds.flatMap(([low, high]) => [low * (1 - 1e-9), low, high, high * (1 + 1e-9)].filter((at) => at > 0 && at < most))).sort((a, b) => a - b);
  for (const [id, key, title] of [["value", "value", "surrogate"], ["slope", "slope", "gradient: the push"]]) {
    const curves = SIDES.map((side, i) => all.map((at) => [at, surrogate(rules[side].node, good, at, bounds[i])[key]]));
    const heights = curves.flat().map(([, value]) => value).concat(0);
    const [low, high] = [Math.max(Math.min(...heights), -12), Math.max(...heights)];
    const room = 0.08 * (high - low || 1), y = axis(low - room, high + room, niceTicks(low - room, high + room));
    const about = { title, xTitle: "times as likely as before (ratio r)", height: (width) => within(0.6 * width, 220, 320),
      label: `${title} by ratio, for ${named(rules)}, of a token of p = ${probability(p)} in a ${good ? "good" : "bad"} answer` };
    plot(element(id), x, y, about, (pen) => {
      pen.level("zero", 0);
      pen.upright("here", r);
      SIDES.forEach((side, i) => pen.line(side, curves[i]));
      SIDES.forEach((side, i) => pen.dot(side, r, surrogate(rules[side].node, good, r, bounds[i])[key]));
    });
  }
}

function writeNumbers(rules) {
  const { p, r, good } = state;
  element("numbers-caption").textContent = `In numbers, for p = ${probability(p)}`;
  const bounds = SIDES.map((side) => rules[side].bounds(p));
  const cells = (value, show) => bounds.map(([low, high], i) => show(value(low, high, i)));
  const toProbability = (x) => Math.min(x * p, 1);
  rows(element("numbers"), SIDES.map((side) => `${rules[side].short} ${state[side].values.join("/")}`), [
    ["lowest probability", cells((low) => toProbability(low), (x) => (x < 1e-6 ? "0" : probability(x)))],
    ["highest probability", cells((low, high) => toProbability(high), probability)],
    ["lowest ratio r", cells((low) => low, (x) => (x < 1e-6 ? "0" : number(x, 3)))],
    ["highest ratio r", cells((low, high) => high, (x) => number(x, 3))],
    ["at most taken away", cells((low) => changeOf(p, low), (x) => number(x, 3))],
    ["at most added", cells((low, high) => changeOf(p, high), (x) => number(x, 3))],
    [`push at r = ${number(r, 3)}`, cells((low, high, i) => surrogate(rules[SIDES[i]].node, good, r, [low, high]).slope, (x) => number(x, 3))],
  ]);
}

const counted = { key: null };

function drawRun(rules) {
  const key = JSON.stringify([state.a, state.b]);
  if (counted.key !== key || counted.tokens !== tokens) {
    const sides = SIDES.map((side) => sidesOf(tokens, rules[side]));
    Object.assign(counted, { key, tokens, sides, counts: sides.map((each) => countOf(tokens, each)) });
    const every = Math.ceil(tokens.old.length / MOST_DOTS);
    counted.dots = { free: [], a: [], b: [], both: [] };
    for (let i = 0; i < tokens.old.length; i += every) {
      const kind = ["free", "a", "b", "both"][(sides[0][i] ? 1 : 0) + (sides[1][i] ? 2 : 0)];
      counted.dots[kind].push([Math.exp(tokens.old[i]), Math.exp(tokens.logRatio[i])]);
    }
  }
  drawMap(element("cloud"), rules, (width) => within(0.5 * width, 300, 460), (pen) => {
    for (const kind of ["free", "both", "a", "b"]) pen.dots(kind, counted.dots[kind]);
  });
  const [a, b] = SIDES.map((side) => rules[side].short);
  element("key").innerHTML = `<span><i></i>inside both</span> <span><i class="a"></i>outside of ${a} only</span> <span><i class="b"></i>outside of ${b} only</span> <span><i class="both"></i>outside of both</span>`;
  const some = tokens.old.length > MOST_DOTS ? `, one in ${Math.ceil(tokens.old.length / MOST_DOTS)} of them drawn` : "";
  element("counts-caption").textContent =
    `${tokens.old.length.toLocaleString("en")} tokens${some}, from ${source || "a run of the lab, bandpo’s toy task (scene storm, Clip 0.2)"}. ` +
    "Outside: the ratio is outside its bounds. Rare: of probability 0.2 or less. Clipped: outside, and its answer’s advantage pushes it farther out.";
  const columns = [["outside", "outside"], ["above", "above"], ["below", "below"], ["rare", "rare of these"], ["cut", "clipped"]];
  rows(element("counts"), columns.map(([, title]) => title), SIDES.map((side, i) => [
    `${rules[side].short} ${state[side].values.join("/")}`,
    columns.map(([name]) => percent(counted.counts[i][name])),
  ]));
}

function writeLines(rules) {
  const lines = linesFor(rules[state.which].node);
  const buttons = (place, texts, chosen, choose) =>
    place.replaceChildren(...texts.map((text, i) => {
      const button = make("button", { type: "button", textContent: text });
      button.setAttribute("aria-pressed", chosen === i);
      button.addEventListener("click", () => {
        choose(i);
        changed();
        place.children[i].focus();
      });
      return button;
    }));
  if (element("lines").textContent !== lines[state.where][1] || !element("where").children.length) {
    buttons(element("which"), SIDES.map((side) => `${side.toUpperCase()}: ${rules[side].short}`), SIDES.indexOf(state.which), (i) => (state.which = SIDES[i]));
    buttons(element("where"), lines.map(([name]) => name), state.where, (i) => (state.where = i));
    element("lines").textContent = lines[state.where][1];
    element("copied").textContent = "";
  }
}

const made = {}; // the rule of each side, until it changes

function ruleFor(side) {
  const key = JSON.stringify(state[side]);
  if (made[side]?.key !== key) {
    const node = nodeOf(state[side]), rule = ruleOf(node);
    made[side] = { ...rule, key, node, side, short: methodOf(state[side]).short, curve: SAMPLES.map((p) => [p, rule.bounds(p)]) };
  }
  return made[side];
}

function draw() {
  const rules = { a: ruleFor("a"), b: ruleFor("b") };
  for (const id of ["rule-a", "rule-b", "token"]) element(id).show();
  writeVerdict(rules);
  drawMap(element("map"), rules, (width) => within(0.52 * width, 300, 420));
  placeHandle(element("map"), state.p, state.r);
  drawChange(rules);
  writeNumbers(rules);
  for (const card of element("cards").children) card.show(rules);
  drawPush(rules);
  drawRun(rules);
  writeLines(rules);
}

let waiting = 0, saving = 0;

/** Draws once before the next frame, and keeps the address up with it. */
function changed() {
  waiting ||= requestAnimationFrame(() => {
    waiting = 0;
    draw();
  });
  clearTimeout(saving);
  saving = setTimeout(() => {
    if (location.protocol !== "about:") history.replaceState(null, "", addressOf());
  }, 200);
}

async function copy() {
  const lines = element("lines");
  try {
    await navigator.clipboard.writeText(lines.textContent);
    element("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(lines);
    element("copied").textContent = "Selected; press Ctrl-C or Cmd-C.";
  }
}

async function openFiles() {
  const error = element("files-error"), files = [...element("files").files];
  error.hidden = true;
  if (!files.length) return;
  try {
    tokens = await readFiles(files);
    source = files.map((file) => file.name).join(", ");
  } catch (problem) {
    error.hidden = false;
    error.textContent = problem.message;
  }
  changed();
}

function start() {
  document.body.classList.toggle("inside", location.search === "?inside"); // a frame on the landing page
  SIDES.forEach(buildRule);
  buildToken();
  buildCards();
  draggable(element("map"), moveTo);
  draggable(element("change"), (p) => moveTo(within(p, P.low, P.high), state.r));
  for (const id of ["value", "slope"]) draggable(element(id), (r) => moveTo(state.p, r));
  element("copy").addEventListener("click", copy);
  element("files").addEventListener("change", openFiles);
  element("example").addEventListener("click", () => {
    [tokens, source, element("files").value] = [EXAMPLE, "", ""];
    element("files-error").hidden = true;
    changed();
  });
  element("controls").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => {
    readAddress();
    changed();
  });
  readAddress();
  draw();
  new ResizeObserver(changed).observe(element("map"));
}

start();
