"use strict";
const [names, ...lines] = JSON.parse(document.getElementById("rows").textContent);
const rows = lines.map(line => Object.fromEntries(names.map((name, i) => [name, line[i]])));
const MOST = 200;
const FILTERS = ["contest", "world", "control", "uses", "rule"];
const interval = (row, name, low, high) => row[name] && `${row[name]} [${row[low]}, ${row[high]}]`;
const COLUMNS = [
  ["rule", row => row.rule + (row["at an edge"] ? "*" : ""), row => row.rule],
  ["reward", row => interval(row, "reward", "low", "high"), row => +row.reward],
  ["difference", row => interval(row, "difference", "difference low", "difference high"), row => row.difference === "" ? -9 : +row.difference],
  ["from", row => row.from],
  ["outside %", row => row["outside %"], row => +row["outside %"]],
  ["lost %", row => row["lost %"], row => +row["lost %"]],
  ["uses", row => row.uses, row => +row.uses],
  ["mini-batches", row => row["mini-batches"], row => +row["mini-batches"]],
  ["world", row => row.world],
  ["control", row => row.control],
  ["contest", row => row.contest],
  ["setting", row => row.setting],
  ["p (Holm)", row => row["p (Holm)"], row => +row["p (Holm)"]],
  ["seeds", row => row.seeds, row => +row.seeds],
  ["settings tried", row => row["settings tried"], row => +row["settings tried"]],
  ["id", row => row.id],
];
const asked = new URLSearchParams(location.search);
const state = {search: (asked.get("rows") || "").replace("-", " "), order: null, down: true};
for (const name of FILTERS) state[name] = asked.get(name) || "";

function element(tag, text, more = {}) {
  const made = Object.assign(document.createElement(tag), more);
  made.append(text);
  return made;
}

function fits(row, but) {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [row.id, ...COLUMNS.map(column => column[1](row))].join(" ").toLowerCase();
  const ids = words.length > 0 && words.every(word => /^[0-9a-f]{6}$/.test(word));
  return FILTERS.every(name => name === but || !state[name] || row[name] === state[name])
    && (ids ? words.includes(row.id) : words.every(word => text.includes(word)));
}

function draw() {
  for (const name of FILTERS) {  // what the other filters leave
    const select = document.getElementById(`filter-${name}`);
    const left = [...new Set((state[name] ? [state[name]] : []).concat(rows.filter(row => fits(row, name)).map(row => row[name])))];
    left.sort((a, b) => a.localeCompare(b, "en", {numeric: true}));
    select.replaceChildren(new Option("all", ""), ...left.map(value => new Option(value, value)));
    select.value = state[name];
  }
  const found = rows.filter(row => fits(row));
  if (state.order !== null) {
    const [, shown, number] = COLUMNS[state.order], of = number || shown, sign = state.down ? -1 : 1;
    found.sort((a, b) => sign * (of(a) > of(b) ? 1 : of(a) < of(b) ? -1 : 0));
  }
  const more = found.length > MOST ? `; the first ${MOST} are shown` : "";
  document.getElementById("count").textContent = `${found.length} of ${rows.length} rows${more}`;
  document.getElementById("body").replaceChildren(...found.slice(0, MOST).map(row => {
    const line = document.createElement("tr");
    line.append(...COLUMNS.map(([name, shown]) => element("td", shown(row), {className: name === "setting" || name === "world" ? "wide" : ""})));
    return line;
  }));
}

const form = document.getElementById("filters");
const search = Object.assign(document.createElement("input"), {type: "search", value: state.search, placeholder: "words or row ids"});
search.addEventListener("input", () => { state.search = search.value; draw(); });
const field = element("label", "search");
field.append(search);
form.append(field);
for (const name of FILTERS) {
  const select = Object.assign(document.createElement("select"), {id: `filter-${name}`});
  select.addEventListener("change", () => { state[name] = select.value; draw(); });
  const label = element("label", name);
  label.append(select);
  form.append(label);
}
form.addEventListener("submit", event => event.preventDefault());
const head = document.createElement("tr");
head.append(...COLUMNS.map(([name], i) => {
  const cell = document.createElement("th"), button = element("button", name, {type: "button", title: "Sort by this column"});
  button.addEventListener("click", () => { state.down = state.order === i ? !state.down : true; state.order = i; draw(); });
  cell.append(button);
  return cell;
}));
document.getElementById("head").append(head);
draw();
