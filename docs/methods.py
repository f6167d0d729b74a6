"""Write docs/methods.md, the table of methods, from src/bandpo/losses/methods.yaml, and what has no name in it.

    python docs/methods.py

tests/losses/test_methods.py compares the committed page with a new one, and runs its lines.
"""

import textwrap
from pathlib import Path

from bandpo.integrations import TRAINERS, trainers_that_run
from bandpo.losses import Method
from bandpo.losses.nodes import methods
from bandpo.notation import as_python

PAGE = Path(__file__).parent / "methods.md"
ABSENT_PAGE = PAGE.parents[1] / "research" / "pages" / "unnamed.md"
LINES = {
    "your loop": 'bandpo.policy_loss(logps, old_logps, advantages, mask, "NAME")',
    "[TRL](trl.md), AsyncGRPO, [unsloth](hosts.md)": 'BandPOTrainer(..., trust_region="NAME")',
    "[verl](verl.md)": "'+actor_rollout_ref.actor.policy_loss.trust_region=NAME'",
    "[torchrl, Liger, torchtitan](hosts.md)": 'trust_region="NAME"',
    "[SkyRL, RLinf](hosts.md)": 'register_bandpo_loss("NAME")',
    "[tinker](hosts.md)": 'bandpo_loss("NAME")',
    "[prime-rl](hosts.md)": '[trainer.loss.kwargs] trust_region = "NAME"',
    "[rLLM](hosts.md)": "loss_params: {trust_region: NAME}",
    "[axolotl, Trinity-RFT, xtuner, miles, slime](hosts.md), a recipe": "trust_region: NAME",
    "the command line": "bandpo explain NAME",
}
AT_SAMPLER_LINE = 'bandpo.policy_loss(logps, rollout_logps, advantages, mask, bandpo.losses.method("NAME").objective)'
# What readers look for and do not find: names, papers, why not.
_LINES = "[lines](../../examples/papers.py)"
ABSENT = [
    (
        "A-GRAE, FADE, STARE, WAPO",
        "2602.05548 2607.01490 2606.19236 2606.16154",
        f"other advantages or weights, with any rule: {_LINES}",
    ),
    (
        "REPO-R, ADAPO",
        "2603.11682",
        f"REPO-R is an advantage: {_LINES}; ADAPO moves `eps_high` by the entropy, by a law that was not found; "
        "nearest is [a `Controller`](../../docs/your_rule.md#steer-a-number)",
    ),
    (
        "TRM, OPSM (DeepSeek-V3.2)",
        "2512.23075 2512.02556",
        f"drop whole responses, beside any rule: {_LINES}; in verl `rollout_rs: seq_max_k3`, in TRL "
        "`off_policy_mask_threshold`",
    ),
    (
        "Clip-Cov, KL-Cov",
        "2505.22617",
        f"KL-Cov: {_LINES}; Clip-Cov draws at random which tokens it drops",
    ),
    ("DRO", "2405.19107", f"has no value of beta: {_LINES}"),
    (
        "M2PO",
        "2510.01161",
        "drops the tokens that moved most until the batch's mean (log r)^2 is at most 0.04",
    ),
    ("BAPO", "2510.18927", "searches its bounds anew in each batch, by the share of A > 0 in the whole loss"),
    ("W-REINFORCE, NSR", "2506.01347", "positive advantages x 0.1, or x 0: `positive_weight`, with any rule"),
    ("stochastic rescue", "2605.22703", "keeps some tokens beyond the bound, drawn at random"),
    ("TROLL", "2510.03817", "projects a token's whole distribution; a rule sees one probability of it"),
    (
        "GAPO, ERC, A-3PO, CPPO",
        "2609.00444 2512.05591 2512.06547 2606.10968",
        "rules of their own, in [research/rules](../rules/README.md)",
    ),
]
INTRO = f"""# Methods

Every method with a name. [Choose a rule](choose.md) says which to take.

## Switch one on

Write a name from the table instead of NAME:

| in | line |
| --- | --- |
{chr(10).join(f"| {where} | `{line}` |" for where, line in LINES.items())}

For other numbers write the objective instead of the name.

**Sampler** in "runs in" means that the ratio is to the sampler's policy. In your loop call
`{AT_SAMPLER_LINE}`.
{", ".join(host for host, its in TRAINERS.items() if its.sampler == "")} do so by default. In the others set:

{chr(10).join(f"- {host}: `{its.sampler}`" for host, its in TRAINERS.items() if its.sampler)}

## The table

- **formula**: p and pi are a token's old and new probability, r = pi / p, A the advantage; sg(...) stops the gradient.
  "PPO with" bounds is min(r A, clip(r, r_low, r_high) A).
- **objective**, and the paper's average over tokens ([`aggregate`](api.md)). Most trainers average themselves.
- **runs in**: in brackets the keywords that `policy_loss` needs.
  *Most* are those with a gate: {", ".join(host for host, its in TRAINERS.items() if not its.clamps)}.
- **\\***: not everything was checked at its source. `bandpo explain NAME` says what was not.

[A test](../tests/losses/test_methods.py) compares each value and gradient with its formula.
See also [how methods differ](../research/pages/prior.md) and [what has no name here](../research/pages/unnamed.md):
{textwrap.fill(", ".join(name for name, _, _ in ABSENT), 118)}.

| method | formula | objective | runs in |
| --- | --- | --- | --- |
"""
NOT_HERE = """# Methods without a name

A name of [the index](../../docs/methods.md) stands for a rule and an average. These are something else.
*Lines* are for your own loop.

| name | paper | why |
| --- | --- | --- |
"""
READ = """
Read were the papers of M2PO, BAPO and A-GRAE; the code of A-GRAE, STARE, WAPO, W-REINFORCE, verl, TRL (OPSM) and
AReaL (M2PO); SkyRL's page on REPO-R; of the others a digest. M2PO's limit is over all tokens in AReaL, and over those
that PPO would clip in a digest.
"""


def trainers(method: Method) -> str:
    """Name the trainers that run a method."""
    reasons = trainers_that_run(method, anchor="sampler")
    able, missing = ([host for host, why in reasons.items() if bool(why) == refused] for refused in (False, True))
    if not missing:
        return "all"
    if {*missing} == {host for host, its in TRAINERS.items() if its.clamps}:
        return "most"
    return ", ".join(able) if len(able) < len(missing) else f"all but {', '.join(missing)}"


def row(method: Method) -> str:
    """Write the line of a method."""
    link = "" if method.arxiv is None else f" ({_link(method.arxiv)})"
    needed = [each.partition("=")[0] for each in method.arguments.split(", ") if each and "rollout" not in each]
    keywords = f" ({', '.join(f'`{each}`' for each in needed)})" if needed else ""
    cells = [
        f"`{method.name}` {method.title}{link}{chr(92) + '*' if method.unchecked else ''}",
        f"`{method.formula}`",
        f"`{as_python(method.without_average)}` {method.objective.aggregation or ''}".strip(),
        f"{trainers(method)}{keywords}{'; sampler' if method.from_sampler else ''}",
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def absent() -> str:
    """Write the page of what has no name."""
    rows = [f"| {name} | {' '.join(map(_link, papers.split()))} | {why} |" for name, papers, why in ABSENT]
    return f"{NOT_HERE}{chr(10).join(rows)}\n{READ}"


def _link(number: str) -> str:
    return f"[{number}](https://arxiv.org/abs/{number})"


def page() -> str:
    """Write the page as it should be."""
    return INTRO + "\n".join(row(each) for each in methods()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    ABSENT_PAGE.write_text(absent(), encoding="utf-8")
