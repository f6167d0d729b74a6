"use strict";
// The methods to choose from, and what is pasted into one's own code. The names are bandpo's own (docs/methods.md) where it has
// the method; a field is [name, value, least, most].

const DELTA = ["delta", 0.05, 0.001, 2];
const EPS_LOW = ["eps_low", 0.2, 0, 1];
const EPS_HIGH = ["eps_high", 0.28, 0, 10];
const clip = (low, high) => ({ type: "clip", eps_low: low, eps_high: high });
const ball = (divergence) => (delta) => ({ type: "band", divergence, delta });
const applied = (trust_region, surrogate) => ({ type: "objective", trust_region, surrogate });

const METHODS = [
  {
    name: "grpo", title: "GRPO, PPO: one clip for all", short: "GRPO", family: "Fixed clips",
    fields: [["eps", 0.2, 0.001, 1]], node: (eps) => clip(eps, eps),
    about: "The same rule for every token: its probability may change by the share eps, so 20 % at 0.2.",
  },
  {
    name: "clip-higher", title: "Clip-Higher (DAPO)", short: "Clip-Higher", family: "Fixed clips",
    fields: [EPS_LOW, EPS_HIGH], node: clip,
    about: "A clip with more room upwards (eps_high) than downwards (eps_low).",
  },
  {
    name: "no-clip", title: "No clip", short: "No clip", family: "Fixed clips",
    fields: [], node: () => clip(1, "inf"),
    about: "No token is clipped. It shows what a clip is for.",
  },
  {
    name: "band-kl", title: "Band-KL (BandPO)", short: "Band-KL", family: "Bands: a budget of change, delta",
    fields: [DELTA], node: ball("kl"),
    about: "Each token may move until the probabilities at its place have changed by delta in all, as the KL divergence measures it. Rare tokens may grow a lot, common ones little.",
  },
  {
    name: "band-tv", title: "Band-TV", short: "Band-TV", family: "Bands: a budget of change, delta",
    fields: [DELTA], node: ball("tv"),
    about: "Each token’s probability may rise or fall by delta, whatever it was.",
  },
  {
    name: "band-chi2", title: "Band-chi2", short: "Band-chi2", family: "Bands: a budget of change, delta",
    fields: [DELTA], node: ball("chi2"),
    about: "A band measured by the chi-squared divergence, which charges more for rare tokens that grow.",
  },
  {
    name: "band-hellinger", title: "Band-Hellinger", short: "Band-Hellinger", family: "Bands: a budget of change, delta",
    fields: [["delta", 0.02, 0.001, 0.9]], node: ball("hellinger"),
    about: "A band measured by the Hellinger distance, which treats rise and fall alike.",
  },
  {
    name: "band-reverse-kl", title: "Band by reverse KL", short: "Reverse KL", family: "Bands: a budget of change, delta",
    fields: [DELTA], node: ball("reverse_kl"),
    about: "A band measured by the KL divergence the other way round: less room for rare tokens to grow, more for tokens to vanish.",
  },
  {
    name: "wilson", title: "Wilson’s interval", short: "Wilson", family: "Bands: a budget of change, delta",
    fields: [DELTA], node: ball("neyman_chi2"),
    about: "The interval that statisticians draw around a share p. No token may reach 0 or 1.",
  },
  {
    name: "band-relaxed", title: "Relaxed Band (BandPO)", short: "Relaxed Band", family: "Mixtures",
    fields: [DELTA, EPS_LOW, EPS_HIGH],
    node: (delta, low, high) => ({ type: "relaxed", inner: ball("kl")(delta), outer: clip(low, high) }),
    about: "Band-KL, but never less room than a clip gives: the wider of both on each side.",
  },
  {
    name: "band-capped", title: "Band-KL with a cap", short: "Capped Band", family: "Mixtures",
    fields: [DELTA, ["max_ratio", 10, 1.01, 100]],
    node: (delta, max_ratio) => ({ type: "capped", region: ball("kl")(delta), max_ratio }),
    about: "Band-KL, but no token may become more than max_ratio times as likely, as in the public BandPO scripts.",
  },
  {
    name: "trgppo", title: "TRGPPO: Band-KL or a clip", short: "TRGPPO", family: "Mixtures",
    fields: [["delta", 0.03, 0.001, 2], ["eps", 0.2, 0.001, 1]],
    node: (delta, eps) => ({ type: "union", first: ball("kl")(delta), second: clip(eps, eps) }),
    about: "Band-KL, but never less room than a symmetric clip gives.",
  },
  {
    name: "dcpo", title: "DCPO", short: "DCPO", family: "Wider for rare tokens, by a formula",
    fields: [["eps_low", 0.16, 0.001, 1], ["eps_high", 0.2, 0.001, 1], ["max_ratio", 10, 1.01, 100]],
    node: (eps_low, eps_high, max_ratio) => ({ type: "dcpo", eps_low, eps_high, max_ratio }),
    about: "The rarer the token, the more room, up to a cap. No token may fall below half of its probability.",
  },
  {
    name: "ripo", title: "RIPO", short: "RIPO", family: "Wider for rare tokens, by a formula",
    fields: [DELTA], node: (delta) => ({ type: "ripo", delta }),
    about: "The room is the square root of delta / p.",
  },
  {
    name: "cispo", title: "CISPO: the push is held, not clipped", short: "CISPO", family: "Not clipped, but pushed less",
    fields: [["eps_high", 4, 0.1, 10]], node: (high) => applied(clip(1, high), "weight"),
    about: "No token is ever clipped; the weight of its push grows with its ratio up to 1 + eps_high and no further.",
  },
  {
    name: "ce-gppo", title: "CE-GPPO: some push is kept", short: "CE-GPPO", family: "Not clipped, but pushed less",
    fields: [["eps", 0.2, 0.001, 1], ["low", 0.5, 0, 1], ["high", 1, 0, 1]],
    node: (eps, low, high) => applied(clip(eps, eps), { type: "preserve", low, high }),
    about: "Beyond the bounds a share of the push at the bound is kept: low below them, high above them.",
  },
  {
    name: "dgpo", title: "DGPO: the push decays", short: "DGPO", family: "Not clipped, but pushed less",
    fields: [["eps", 0.2, 0.001, 1], ["low", 1, 0.1, 4], ["high", 0.5, 0.1, 4]],
    node: (eps, low, high) => applied(clip(eps, eps), { type: "decay", low, high }),
    about: "Beyond the bounds the push shrinks as a power of how far out the token is.",
  },
  {
    name: "cfpo", title: "CFPO, SPO: pulled back", short: "CFPO", family: "Not clipped, but pushed less",
    fields: [["eps", 0.2, 0.001, 1]], node: (eps) => applied(clip(eps, eps), "quadratic"),
    about: "The push weakens from the start, is nothing at the bound and pulls the token back beyond it.",
  },
  {
    name: "sapo", title: "SAPO: a soft gate", short: "SAPO", family: "Not clipped, but pushed less",
    fields: [["tau_positive", 1, 0.1, 10], ["tau_negative", 1.05, 0.1, 10]],
    node: (tau_positive, tau_negative) => applied(clip(1, "inf"), { type: "sapo", tau_positive, tau_negative }),
    about: "It has no interval: the push fades smoothly as the ratio leaves 1.",
  },
  {
    name: "abc-grpo", title: "ABC-GRPO: clipped for either sign", short: "ABC-GRPO", family: "Clipped for either sign",
    fields: [["eps", 0.2, 0.001, 1]], node: (eps) => applied(twice(clip(eps, eps)), "mask_two_sided"),
    about: "A token outside its bounds gets no push at all, not even one that would bring it back.",
  },
];
const twice = (rule) => ({ type: "by_sign", positive: rule, negative: rule });

/** The node of a choice, {name, values}. */
const nodeOf = (choice) => methodOf(choice).node(...choice.values);
const methodOf = (choice) => METHODS.find((method) => method.name === choice.name);

/** What becomes of a token at its bound, in words. */
function effectOf(node) {
  const surrogate = node.surrogate || "clip";
  return {
    clip: "clips it at", mask_two_sided: "clips it at", weight: "holds the push on it from", preserve: "weakens the push on it from",
    decay: "fades the push on it from", quadratic: "turns the push on it at", sapo: "fades the push on it from the start",
  }[surrogate.type || surrogate];
}

// ---- the same rule in the words of bandpo

/** {type: band, divergence: kl, delta: 0.05} */
function yaml(value) {
  if (typeof value !== "object") return String(value);
  return `{${Object.entries(value).map(([key, each]) => `${key}: ${yaml(each)}`).join(", ")}}`;
}

const CLASSES = {
  clip: "Clip", band: "Band", relaxed: "Relaxed", union: "Union", capped: "Capped", dcpo: "DCPO", ripo: "RIPO",
  by_sign: "BySign", objective: "Objective", preserve: "Preserve", decay: "Decay", sapo: "Sapo",
};

const PLACES = { RIPO: "bandpo.trust_regions", Preserve: "bandpo.losses", Decay: "bandpo.losses", Sapo: "bandpo.losses" };

/** Band("kl", 0.05) */
function python(value) {
  if (value === "inf") return 'float("inf")';
  if (typeof value === "string") return `"${value}"`;
  if (typeof value !== "object") return String(value);
  const { type, ...fields } = value;
  const named = type === "objective" ? (key) => (key === "surrogate" ? "surrogate=" : "") : () => "";
  return `${CLASSES[type]}(${Object.entries(fields).map(([key, each]) => named(key) + python(each)).join(", ")})`;
}

/** band:kl:0.05 where there is such a word, else the node. */
function word(node) {
  const values = Object.values(node);
  return values.some((value) => typeof value === "object") ? `'${yaml(node)}'` : values.join(":");
}

/** The lines for each place where the rule may run: [place, lines]. */
function linesFor(node) {
  const rule = python(node), names = [...new Set(rule.match(/\b[A-Z]\w*(?=\()/g))].sort();
  const imports = [...new Set(["bandpo", ...Object.values(PLACES)])].map((place) => {
    const here = names.filter((name) => (PLACES[name] || "bandpo") === place);
    return here.length ? `from ${place} import ${here.join(", ")}\n` : "";
  }).join("").trim();
  return [
    [
      "Your own loop",
      `import bandpo
${imports}

rule = ${rule}
# logps, old_logps: log-probabilities of the tokens, now and when they were written
# advantages: one for each response; mask: 1 at tokens of the response, 0 in padding
loss, metrics = bandpo.policy_loss(logps, old_logps, advantages, mask, rule)`,
    ],
    [
      "TRL",
      `${imports}
from bandpo.integrations.trl import BandPOTrainer

# in GRPOConfig: steps_per_generation or num_iterations for at least two steps per batch, or clipping has no effect
trainer = BandPOTrainer(                                    # was: GRPOTrainer(
    model, reward, args, dataset,
    trust_region=${rule})`,
    ],
    [
      "verl",
      `actor_rollout_ref.actor.policy_loss._target_=bandpo.integrations.verl.BandPOLossConfig
actor_rollout_ref.actor.policy_loss.loss_mode=bandpo
'+actor_rollout_ref.actor.policy_loss.trust_region=${yaml(node)}'`,
    ],
    [
      "Command line",
      `bandpo explain ${word(node)}
bandpo lab --methods grpo,${word(node)}
bandpo calibrate tokens.jsonl --match ${word(node)}`,
    ],
  ];
}
