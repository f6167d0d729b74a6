"""Writes docs/methods.md, the index of methods, from `bandpo.losses.methods.METHODS` and the sentences below.

    python docs/methods.py

tests/losses/test_methods.py compares the committed page with a new one, and runs its lines.
"""

from __future__ import annotations

from pathlib import Path

from bandpo import Method, method
from bandpo.integrations import REFUSED, trainers_that_run
from bandpo.losses.methods import METHODS
from bandpo.losses.notation import as_python

PAGE = Path(__file__).parent / "methods.md"
INTRO = """# The method index

In short: every method that the library knows, each with its formula, what it is for, and the lines that switch it on in
your trainer. If you do not know yet what you need, read [choose a rule and a radius](choose.md) first. The page is made
from the library's own list by `python docs/methods.py`. A test fails when it is out of date, and another one runs
every line for your own loop.

**How to read a formula.** It is what is maximised for each token. p and pi are the old and the new probability of the
token, r = pi / p is the ratio, A the advantage; sg(...) is a number without a gradient; "PPO with" an interval is
min(r A, clip(r, r_low, r_high) A). pi_rollout is the sampler's probability.

**The average** is that of the paper over the tokens of a batch, in verl's words
([`aggregate`](api.md)); "-" is a method that names none, for which `policy_loss` takes `seq-mean-token-mean`.
Trainers average themselves: they take a method, and say in a line which average it gets and whether it is the paper's.

**How to use a line.**

- *Your loop* is the call that gives the loss. `rollout_logps` are the sampler's log-probabilities, `log`, `sign` and
  `minimum` those of `math` and `torch`; other names are what `help(bandpo.Context)` explains.
- *TRL*: the trainer is `bandpo.integrations.trl.BandPOTrainer` ([trl.md](trl.md)).
- *verl*: the setting stands behind the two that load our loss, `actor_rollout_ref.actor.policy_loss.loss_mode=bandpo`
  and `actor_rollout_ref.actor.policy_loss._target_=bandpo.integrations.verl.BandPOLossConfig` ([verl.md](verl.md)).
- *torchrl, Liger, SkyRL, tinker, prime-rl*: each has a module in `bandpo.integrations` ([hosts.md](hosts.md)).
- In a recipe of `bandpo train`, `bandpo lab` or `bandpo verl` it is `trust_region: NAME`.
- A trainer that is not listed refuses the method by name, and says why. For other numbers than the paper's, pass the
  objective, with yours, in the place of the name.

**What was checked.** Value and gradient of every method are held against its formula, which
[tests/losses/test_methods.py](../tests/losses/test_methods.py) has once more, without our code. Where only *gradient*
is said, the values differ by what does not move a parameter. What was compared with a trainer's own function stands
beside it. *Not checked* is what nobody here could read at its source. What the methods have to do with one another is
in [prior art](prior.md).
"""

# The sections of the page, and of each method what it is for, in a sentence.
SECTIONS: dict[str, dict[str, str]] = {
    "One interval for every token": {
        "grpo": "The usual clip: every token may become at most 1.2 times, or 0.8 times, as likely.",
        "ppo": "The same interval; GRPO differs from PPO in its advantages, which are a choice beside the rule.",
        "clip-higher": "A little more room upwards than downwards, so that exploration does not die out; a clip alone.",
        "dapo": "The same clip with DAPO's average: all tokens count alike, so long responses count more.",
        "dr-grpo": "GRPO's clip, sums over tokens divided by one length: short responses are not favoured.",
        "clip-wide": "A plain clip with much room upwards. In our lab it did as well as the bands.",
        "weighted-clip": "Tight downwards, wide upwards, good tokens count less: among the best of our contest.",
        "no-clip": "No limit at all. It is fastest in our lab, until the run breaks.",
        "dual-clip": "GRPO, and a bound on what one token of a bad answer can do to the loss.",
        "two-sided-grpo": "The same idea with the bound at 4, from training on many machines far apart.",
        "atr-grpo": "The interval in which an estimate of the KL, r - 1 - log r, is small: slightly wider upwards.",
        "decaying-clip": "A clip that narrows while training goes on.",
    },
    "Intervals that depend on the token's probability": {
        "band-kl": "The paper's method: rare tokens may grow a lot, likely ones little, as a ball in KL allows.",
        "band-tv": "At most 0.05 of all probability may move, up or down, whatever the token.",
        "band-chi2": "The step is proportional to the standard deviation of the token's coin.",
        "band-relaxed": "The wider of Band-KL and Clip-Higher on each side: never tighter than what you have.",
        "decaying-band": "Band-KL with a radius that falls from 0.2 to 0.02.",
        "two-level-clip": "Tight on likely tokens, wide on others: for a rare strategy often the best of our contest.",
        "trgppo": "The relaxed band's rule, of 2019: on each side the wider of a KL ball and a clip.",
        "dcpo": "An interval that widens for rare tokens as 1 / sqrt(p), with a cap.",
        "ripo": "The interval of the square root alone, without a cap.",
        "wilson": "What statistics calls Wilson's score interval around p.",
    },
    "What becomes of a token outside": {
        "cispo": "No token loses its gradient: outside the interval its weight is held instead.",
        "ce-gppo": "Tokens that PPO stops keep a part of their gradient.",
        "gppo": "Tokens that PPO stops keep the gradient that they would have at the bound.",
        "dgpo": "Tokens that PPO stops keep a gradient that fades the further they are.",
        "sapo": "No interval: a smooth gate that closes slowly on both sides.",
        "cfpo": "No interval: a square that grows with the distance pulls each token back.",
        "abc-grpo": "Four ranges, for each sign and side, and tokens are stopped on both sides.",
        "up": "Good tokens are pushed without a limit, bad ones clipped from below.",
    },
    "One ratio for a whole response": {
        "gspo": "The ratio is the geometric mean over the response, which single noisy tokens cannot move.",
        "gmpo": "The geometric mean of ratios that are clipped token by token first.",
        "band-sequence": "The band for the whole response, which is one action with one probability.",
        "topr": "Good responses are learnt from as they are, bad ones with a weight of at most 1.",
    },
    "Measured from the sampler": {
        "dppo": "Tokens that have moved by 0.15 of probability since they were sampled, and would go on, are dropped.",
        "drpo": "DPPO's idea with a smooth penalty instead of a mask.",
        "dis": "Tokens are weighed by the ratio to the sampler, and dropped outside of a wide interval.",
        "kpop": "Tokens at which trainer and sampler disagree in KL, in either direction, are dropped.",
        "a-3po": "PPO for asynchronous training: the older the sampler, the wider the interval.",
        "cppo": "DPPO with a budget: what earlier tokens of a response have spent, later ones lack.",
    },
    "Rules that see the batch": {
        "band-entropy": "Band-KL with more room where the model was uncertain, and less elsewhere.",
        "aspo": "Weights turned around for good tokens, and more room where entropy is high.",
        "gapo": "More room for questions that the model rarely gets right.",
        "erc": "Tokens at which the entropy changes too fast are stopped.",
    },
}
# What was compared with others' own functions: (whose, file, test).
COMPARED: dict[str, list[tuple[str, str, str]]] = {
    "grpo": [
        ("TRL's", "tests/integrations/test_trl_objectives.py", "test_a_clip_in_the_place_of_trls_term_is_trls_loss"),
        ("verl's", "tests/cluster/test_verl_loss.py", "test_clip_is_vanilla_bit_for_bit"),
        ("torchrl's", "tests/hosts/test_torchrl.py", "test_clip_is_torchrls_own_loss_bit_for_bit"),
        ("Liger's", "tests/hosts/test_liger.py", "test_clip_is_ligers_own_loss"),
        ("SkyRL's", "tests/hosts/test_skyrl.py", "test_clip_is_skyrls_own_loss_bit_for_bit"),
    ],
    "dual-clip": [
        ("verl's", "tests/cluster/test_verl_loss.py", "test_clip_is_vanilla_bit_for_bit"),
        ("SkyRL's", "tests/hosts/test_skyrl.py", "test_clip_is_skyrls_own_loss_bit_for_bit"),
    ],
    "gspo": [("TRL's", "tests/integrations/test_trl_objectives.py", "test_gspo_is_trls_with_its_sequence_level_ratio")],
    "cispo": [("TRL's", "tests/integrations/test_trl_objectives.py", "test_cispo_is_trls_whose_average_is_dapos")],
    "sapo": [
        ("TRL's", "tests/integrations/test_trl_objectives.py", "test_sapo_is_trls"),
        ("verl's", "tests/cluster/test_verl_loss.py", "test_sapo_is_verls"),
    ],
    "dppo": [
        ("verl's", "tests/cluster/test_verl_loss.py", "test_band_has_the_gradient_of_dppo"),
        ("SkyRL's", "tests/hosts/test_skyrl.py", "test_band_against_the_sampler_has_the_gradient_of_skyrls_dppo"),
    ],
    "wilson": [("scipy's", "tests/trust_regions/test_trust_regions.py", "test_neymans_chi2_band_is_wilsons_interval")],
}
# Those of which the values differ from the formula by what does not move a parameter.
GRADIENT_ONLY = (
    "up ce-gppo gppo abc-grpo dppo aspo dis kpop erc a-3po drpo cppo".split()  # noqa: SIM905
)


def trainers(method: Method) -> str:
    """Those that run it; the others refuse it by name."""
    reasons = trainers_that_run(method, anchor="sampler")  # where it matters TRL and SkyRL must be told
    able, missing = ([host for host, why in reasons.items() if bool(why) == refused] for refused in (False, True))
    if not able:
        return "a loop of one's own"
    if not missing:
        return "all"
    return ", ".join(able) if len(able) < len(missing) else f"all but {', '.join(missing)}"


def paper(method: Method) -> str:
    link = "" if method.arxiv is None else f" ([{method.arxiv}](https://arxiv.org/abs/{method.arxiv}))"
    return f"{method.title}{link}"


def loop(method: Method) -> str:
    """The call in a loop of one's own."""
    old, more = "old_logps", [each for each in (method.arguments,) if each]
    if more and more[0].startswith("old_logps="):
        old, _, rest = more[0].removeprefix("old_logps=").partition(", ")
        more = [rest] if rest else []
    whole = f'"{method.name}"' if method.is_complete else f'bandpo.method("{method.name}").objective'
    return f"bandpo.policy_loss({', '.join(['logps', old, 'advantages', 'mask', whole, *more])})"


def lines(method: Method) -> dict[str, str]:
    """Of your own loop and of each trainer that runs the method, what switches it on."""
    name, sampler = method.name, method.from_sampler
    verl = f"'+actor_rollout_ref.actor.policy_loss.trust_region={name}'"
    known = {
        "TRL": f'BandPOTrainer(..., trust_region="{name}")',
        "verl": verl + (" '+actor_rollout_ref.actor.policy_loss.anchor=sampler'" if sampler else ""),
        "torchrl": f'BandPOLoss(policy, trust_region="{name}")',
        "Liger": f'BandPOLoss(..., trust_region="{name}")',
        "SkyRL": f'register_bandpo_loss("{name}"' + (', anchor="rollout")' if sampler else ")"),
        "tinker": f'bandpo_loss("{name}")',
        "prime-rl": f'[trainer.loss.kwargs] trust_region = "{name}"',
    }
    if sampler:
        known["TRL"] += ' with BandPOConfig(..., anchor="sampler")'
    reasons = trainers_that_run(method, anchor="sampler" if sampler else "old")
    return {"your loop": loop(method)} | {host: line for host, line in known.items() if not reasons[host]}


def checked(method: Method) -> str:
    what = "gradient" if method.name in GRADIENT_ONLY else "value and gradient"
    others = [f"{whose} own function ([`{test}`](../{file}))" for whose, file, test in COMPARED.get(method.name, ())]
    return f"{what}, against the formula" + (f"; against {', '.join(others)}" if others else "")


def entry(method: Method, sentence: str) -> str:
    """The part of the page about one method."""
    rows = [f"- {where}: `{line}`" for where, line in lines(method).items()]
    refused = [host for host in REFUSED if host not in lines(method)]
    unchecked = f" *Not checked:* {method.unchecked}." if method.unchecked else ""
    return "\n".join(
        [
            f"### `{method.name}`",
            "",
            f"**{paper(method)}.** {sentence}",
            "",
            f"    {method.formula}",
            "",
            *rows,
            *([f"- not in {', '.join(refused)}"] if refused else []),
            "",
            f"As an objective: `{as_python(method.objective)}`. *Checked:* {checked(method)}. "
            f"*Source:* {method.source}.{unchecked}",
            "",
        ]
    )


def page() -> str:
    """The page as it should be."""
    given = [name for section in SECTIONS.values() for name in section]
    if sorted(given) != sorted(each.name for each in METHODS):
        raise ValueError(f"every method needs one sentence in SECTIONS, got {given}")
    out = [INTRO]
    for title, names in SECTIONS.items():
        out.append(f"## {title}\n\n| name | method | in short | average | trainers |\n| --- | --- | --- | --- | --- |")
        for name, sentence in names.items():
            each = method(name)
            average = each.objective.aggregation or "-"
            out.append(f"| [`{name}`](#{name}) | {each.title} | {sentence} | {average} | {trainers(each)} |")
        out.append("")
        out += [entry(method(name), sentence) for name, sentence in names.items()]
    return "\n".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
