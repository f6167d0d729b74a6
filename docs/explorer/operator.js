"use strict";
// The operator: from a rule, as the node that bandpo has for it in YAML, to the interval in which the ratio r = new / old
// probability of a token may move, and from there to what training gains by the token. tests/test_explorer.py compares all
// of it with bandpo, in float64.

/** e^x - 1 - x; the digits that cancel near 0 are not missed at the radii of this page. */
const excess = (x) => Math.expm1(x) - x;
const FARTHEST = 700; // in log-odds, where e^x still is a number

/** The generators f of the divergences, as functions of log u. */
const GENERATORS = {
  kl: excess,
  reverse_kl: (x) => Math.exp(x) * excess(-Math.max(x, -FARTHEST)), // 1 at u = 0
  tv: (x) => 0.5 * Math.abs(Math.expm1(x)),
  chi2: (x) => Math.expm1(x) ** 2,
  neyman_chi2: (x) => 4 * Math.sinh(0.5 * x) ** 2,
  hellinger: (x) => 0.5 * Math.expm1(0.5 * x) ** 2,
};
const LEAST_REST = Math.exp(-300); // what all other tokens together count as, at least

/** The end of the interval in t, from 0 towards `end`, in which `cost`, which rises from 0, is at most `delta`. */
function solve(cost, delta, end) {
  if (cost(end) <= delta) return end;
  let inside = 0, outside = end;
  for (let step = 0; step < 60; step++) {
    const middle = (inside + outside) / 2;
    if (cost(middle) <= delta) inside = middle;
    else outside = middle;
  }
  return inside;
}

/**
 * A ball of radius delta in an f-divergence. The move of a token from p to r p costs least if all others are rescaled by one
 * factor c: p f(r) + (1 - p) f(c). With t, the change of the token's log-odds, r = 1 / (p + (1 - p) e^-t) and
 * c = 1 / (1 + p (e^t - 1)), in which nothing cancels.
 */
function band(divergence, delta) {
  const f = GENERATORS[divergence];
  const ratio = (p, t) => -Math.log1p((1 - p) * Math.expm1(-t));
  const cost = (p) => (t) => p * f(ratio(p, t)) + (1 - p) * f(-Math.log1p(p * Math.expm1(t)));
  return {
    bounds: (p) => [-FARTHEST, FARTHEST].map((end) => Math.exp(ratio(p, solve(cost(p), delta, end)))),
    contains(logP, logR) {
      if (logR + logP > 0) return false;
      const p = Math.exp(logP), rest = Math.max(-Math.expm1(logP), LEAST_REST);
      const logC = Math.log1p(Math.max((-p * Math.expm1(logR)) / rest, -1)); // at least: rounding near r p = 1
      return p * f(logR) + rest * f(logC) <= delta;
    },
  };
}

/** A rule whose interval has a formula. */
function formula(bounds) {
  return {
    bounds,
    contains(logP, logR) {
      const [low, high] = bounds(Math.exp(logP));
      return Math.log(low) <= logR && logR <= Math.log(high);
    },
  };
}

/** The wider of two rules on each side. */
function union(a, b) {
  return {
    bounds(p) {
      const [[lowA, highA], [lowB, highB]] = [a.bounds(p), b.bounds(p)];
      return [Math.min(lowA, lowB), Math.max(highA, highB)];
    },
    contains: (logP, logR) => a.contains(logP, logR) || b.contains(logP, logR),
  };
}

/** The rule of a node: `bounds(p)`, the lowest and the highest ratio, and `contains(log p, log r)`, which solves nothing. */
function ruleOf(node) {
  switch (node.type) {
    case "objective":
      return ruleOf(node.trust_region);
    case "by_sign": // whose two rules are the same here
      return ruleOf(node.positive);
    case "band":
      return band(node.divergence, node.delta);
    case "clip": {
      const ends = [1 - node.eps_low, node.eps_high === "inf" ? Infinity : 1 + node.eps_high];
      return formula(() => ends);
    }
    case "dcpo":
      return formula((p) => [
        0.5 + 0.5 * Math.sqrt(Math.max(1 - (4 * node.eps_low) / p, 0)),
        Math.min(0.5 + 0.5 * Math.sqrt(1 + (4 * node.eps_high) / p), node.max_ratio),
      ]);
    case "ripo":
      return formula((p) => [Math.max(0, 1 - Math.sqrt(node.delta / p)), 1 + Math.sqrt(node.delta / p)]);
    case "relaxed":
      return union(ruleOf(node.inner), ruleOf(node.outer));
    case "union":
      return union(ruleOf(node.first), ruleOf(node.second));
    case "capped": {
      const inner = ruleOf(node.region);
      return {
        bounds(p) {
          const [low, high] = inner.bounds(p);
          return [low, Math.min(high, node.max_ratio)];
        },
        contains: (logP, logR) => logR <= Math.log(node.max_ratio) && inner.contains(logP, logR),
      };
    }
  }
  throw new Error(`no rule of type ${node.type}`);
}

/**
 * What training gains by a token of advantage A = 1 (`good`) or -1 at ratio r, up to a constant, and its derivative in the
 * log-probability, the push.
 */
function surrogate(node, good, r, [low, high]) {
  const form = node.surrogate || "clip", kind = form.type || form;
  const A = good ? 1 : -1, bound = good ? high : low;
  const far = good ? r > high : r < low; // outside, and pushed further out
  const inside = { value: r * A, slope: r * A }, still = { value: bound * A, slope: 0 };
  const same = (x) => ({ value: x, slope: x });
  switch (kind) {
    case "clip":
      return far ? still : inside;
    case "mask_two_sided":
      return r < low || r > high ? same(0) : inside;
    case "weight": {
      const weight = Math.min(Math.max(r, low), high);
      return { value: weight * A * Math.log(r), slope: weight * A };
    }
    case "preserve":
      return far ? same((good ? form.high : form.low) * bound * A) : inside;
    case "decay":
      return far ? same(r * A * (good ? (high / r) ** form.high : (r / low) ** form.low)) : inside;
    case "quadratic": {
      const room = Math.abs((r > 1 ? high : low) - 1), moved = r - 1;
      if (room < 1e-6) return far ? still : inside;
      return { value: r * A - moved ** 2 / (2 * room), slope: r * (A - moved / room) };
    }
    case "sapo": {
      const tau = good ? form.tau_positive : form.tau_negative;
      const s = 1 / (1 + Math.exp(-tau * (r - 1)));
      return { value: (4 / tau) * s * A, slope: 4 * s * (1 - s) * r * A };
    }
  }
  throw new Error(`no surrogate ${kind}`);
}
