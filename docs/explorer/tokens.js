"use strict";
// The tokens of a run, from files as `bandpo calibrate` reads them (docs/run.md), and what a rule does to them.

const COLUMNS = {
  old: ["old_logps", "old_per_token_logps", "old_log_probs", "old_logprobs", "old_log_prob"],
  new: ["logps", "per_token_logps", "log_probs", "logprobs", "log_prob", "new_logps", "new_log_probs"],
  advantage: ["advantages", "advantage"],
  mask: ["response_mask", "completion_mask", "mask"],
};
const TAIL = Math.log(0.2); // at most as probable: rare
const ROUNDING = 1e-3; // what a log-probability may be above 0
const MOST_BYTES = 200e6;

/** The first column of each kind that a row has. */
function columnsOf(row, where) {
  const found = {};
  for (const [role, names] of Object.entries(COLUMNS)) found[role] = names.find((name) => name in row);
  for (const [role, what] of [["old", "old"], ["new", "current"]]) {
    if (!found[role]) {
      throw new Error(
        `${where} has no column of ${what} log-probabilities; looked for ${COLUMNS[role].join(", ")}; it has ` +
          `${Object.keys(row).join(", ") || "none"}`,
      );
    }
  }
  return found;
}

/**
 * The tokens of a text of JSON lines: {old, logRatio, advantage}, log-probabilities and advantages of all tokens one after the
 * other; advantage is null if no column has it. A row is a response, with lists.
 */
function readTokens(text, file) {
  const old = [], logRatio = [], advantage = [];
  let columns = null, row = 0;
  const lines = text.split("\n");
  for (const [i, line] of lines.entries()) {
    if (!line.trim()) continue;
    const where = `${file}, row ${++row}`;
    let values;
    try {
      values = JSON.parse(line);
    } catch {
      if (i === lines.length - 1 && columns) break; // it was being written when its process was killed
      throw new Error(`${where} is not JSON; a line of JSON for each row is expected`);
    }
    if (values === null || typeof values !== "object" || Array.isArray(values)) throw new Error(`${where} is not an object of columns`);
    columns ??= columnsOf(values, file);
    const [olds, news] = [columns.old, columns.new].map((name) => {
      if (Array.isArray(values[name])) return values[name];
      throw new Error(`${where}: '${name}' is ${JSON.stringify(values[name])}; a list of numbers is expected`);
    });
    const same = (name, list) => {
      if (list.length !== olds.length) throw new Error(`${where}: '${name}' has ${list.length} values, '${columns.old}' has ${olds.length}`);
      return list;
    };
    same(columns.new, news);
    const mask = columns.mask ? same(columns.mask, [].concat(values[columns.mask])) : null;
    let advantages = null;
    if (columns.advantage) {
      const given = values[columns.advantage];
      advantages = Array.isArray(given) ? same(columns.advantage, given) : olds.map(() => given);
    }
    olds.forEach((log, i) => {
      if (mask && !mask[i]) return;
      for (const [name, value] of [[columns.old, log], [columns.new, news[i]]]) {
        if (typeof value !== "number") throw new Error(`${where}: '${name}' is ${JSON.stringify(value)}; a number is expected`);
        if (value > ROUNDING) throw new Error(`${where}: '${name}' is ${value}; log-probabilities are at most 0; are these probabilities, or negated?`);
      }
      if (advantages && typeof advantages[i] !== "number") {
        throw new Error(`${where}: '${columns.advantage}' is ${JSON.stringify(advantages[i])}; a number is expected`);
      }
      old.push(Math.min(log, 0));
      logRatio.push(Math.min(news[i], 0) - Math.min(log, 0));
      if (advantages) advantage.push(advantages[i]);
    });
  }
  if (!old.length) throw new Error(`${file} has no tokens`);
  return { old, logRatio, advantage: columns.advantage ? advantage : null };
}

/** The tokens of several files. */
async function readFiles(files) {
  const parts = [];
  for (const file of files) {
    if (!file.name.endsWith(".jsonl")) {
      throw new Error(`${file.name} must end in .jsonl`);
    }
    if (file.size > MOST_BYTES) {
      throw new Error(`${file.name} has ${Math.round(file.size / 1e6)} MB; a browser takes ${MOST_BYTES / 1e6}, the command bandpo calibrate any size`);
    }
    parts.push(readTokens(await file.text(), file.name));
  }
  const joined = (name) => [].concat(...parts.map((part) => part[name]));
  return { old: joined("old"), logRatio: joined("logRatio"), advantage: parts.every((part) => part.advantage) ? joined("advantage") : null };
}

/** Of each token whether it is outside its bounds: 1 above, -1 below, 0 inside. */
function sidesOf(tokens, rule) {
  return tokens.old.map((log, i) => (rule.contains(log, tokens.logRatio[i]) ? 0 : Math.sign(tokens.logRatio[i])));
}

/** Shares of all tokens: outside its bounds, above, below, cut (clipped: outside, and pushed farther out); and of those outside the rare ones. */
function countOf(tokens, sides) {
  const count = { outside: 0, above: 0, below: 0, cut: 0, rare: 0 };
  sides.forEach((side, i) => {
    if (!side) return;
    count.outside += 1;
    count[side > 0 ? "above" : "below"] += 1;
    if (tokens.old[i] <= TAIL) count.rare += 1;
    if (tokens.advantage && tokens.advantage[i] * side > 0) count.cut += 1;
  });
  const share = (name) => count[name] / tokens.old.length;
  const cut = tokens.advantage ? share("cut") : null;
  return { outside: share("outside"), above: share("above"), below: share("below"), cut, rare: count.outside ? count.rare / count.outside : null };
}
