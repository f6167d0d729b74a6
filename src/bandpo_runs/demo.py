"""Train many small runs at once under five rules. `train` is the experiment, `Result` its numbers, `page` its page."""

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from bandpo import Band, Clip, Region, group_advantages, policy_loss
from bandpo.errors import counted

from .reports.content_security import policy

Round = tuple[Tensor, list[float]]
NO_CLIP = "No clip"
# The last rule is the one that the others are compared with.
RULES: dict[str, Region] = {
    "GRPO": Clip(0.2, 0.2),
    "Clip-Higher": Clip(0.2, 0.28),
    "Clip(0.2, 1.0)": Clip(0.2, 1.0),
    NO_CLIP: Clip(1.0, math.inf),
    "Band-KL": Band("kl", 0.05),
}
QUESTIONS, ANSWERS, MINIBATCHES = 8, 16, 4  # answers per question and round; steps per pass over a round
TOKENS, LENGTH = 8, 3
WORK, GUESS, RIGHT = 0, 1, 0  # tokens: the first two open an answer, the last is the right one of a step
P_OTHER, LUCK, P_RIGHT, SPREAD = 0.05, 0.06, 0.85, 0.5


class Task(NamedTuple):
    """What the runs of a panel start with, and how they are trained.

    Attributes:
        text: describes it.
        p_work: the probability that an answer works, before each question's own noise.
        wrong: the share of inverted rewards.
        rate: the learning rate of all rules.
        rounds: at least; more of them where each answer is used for fewer steps.
    """

    text: str
    p_work: float
    wrong: float
    rate: float
    rounds: int

    def length(self, uses: int) -> int:
        """Return the number of rounds."""
        return self.rounds + 64 // uses

    def setting(self, seeds: int, uses: int) -> str:
        """Describe the runs."""
        return (
            f"{len(RULES) * seeds} runs: {len(RULES)} rules, {seeds} seeds, {self.length(uses)} rounds. A round "
            f"samples {QUESTIONS * ANSWERS} answers and uses each {times(uses)}. One learning rate for all "
            f"({self.rate}), tuned for no rule."
        )


# The shares are means over questions and seeds, whose noise takes up to 3 points off the numbers of the tasks.
RARE = Task(
    f"Each run trains a policy on {QUESTIONS} questions. An answer guesses (right {LUCK:.0%} of the time) or works "
    "in two steps (each right 82% of the time). At first 92% of the answers guess, 2% work, and 6% are nonsense.",
    p_work=0.02, wrong=0.0, rate=0.01, rounds=10,
)  # fmt: skip
# research/log.md says how it was searched for.
NOISY = Task(
    "The same questions, but 49% of the answers work at first, 30% of the rewards are wrong, and the learning rate is "
    "ten times as large.",
    p_work=0.5, wrong=0.3, rate=0.1, rounds=4,
)  # fmt: skip


def times(uses: int) -> str:
    """Say how often each answer is used."""
    return "once" if uses == 1 else f"{uses} times"


def train(
    rules: Mapping[str, Region], seeds: Sequence[int], uses: int, rounds: int, task: Task = RARE
) -> Iterator[Round]:
    """Train one policy for each rule and seed, all in one tensor.

    A round samples 16 answers to each of 8 questions and uses each of them `uses` times, in 4 minibatches. A seed fixes
    the first policy and all random numbers, so the rules see the same ones. No run depends on another.
    Before each round and at the end it yields the expected share of right answers, (rules, seeds), and the share of
    tokens that each rule clipped in the round before.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    shape = len(rules), len(seeds)
    first = torch.full((LENGTH, TOKENS), (1 - P_RIGHT) / (TOKENS - 1))
    first[1:, RIGHT] = P_RIGHT
    first[0] = P_OTHER / (TOKENS - 2)
    first[0, [WORK, GUESS]] = torch.tensor([task.p_work, 1 - task.p_work - P_OTHER])
    noise = torch.stack(
        [SPREAD * torch.randn(QUESTIONS, LENGTH, TOKENS, generator=g) for g in generators]
    )
    # The logits are a part that all questions share and a part of each, (rules, seeds, questions, places, tokens).
    shared = first.log().expand(*shape, 1, -1, -1).clone().requires_grad_()
    own = noise.expand(*shape, -1, -1, -1).clone().requires_grad_()
    adam = torch.optim.Adam([shared, own], lr=task.rate, betas=(0.9, 0.99))
    clipped = [0.0] * len(rules)
    for number in range(rounds + 1):
        table = (shared + own).detach().log_softmax(-1)
        p = table.exp()
        yield (p[..., 0, WORK] * p[..., 1:, RIGHT].prod(-1) + p[..., 0, GUESS] * LUCK).mean(-1), clipped
        if number == rounds:
            return
        chance = torch.stack(
            [torch.rand(QUESTIONS, ANSWERS, LENGTH + 2, generator=g) for g in generators]
        )
        above = chance[..., :LENGTH, None] > p.cumsum(-1).unsqueeze(3)
        answers = above.sum(-1).clamp(max=TOKENS - 1)  # (rules, seeds, questions, answers, places)
        works, guesses = answers[..., 0] == WORK, answers[..., 0] == GUESS
        right = torch.where(
            works, (answers[..., 1:] == RIGHT).all(-1), guesses & (chance[..., -1] < LUCK)
        )
        right ^= chance[..., -2] < task.wrong
        advantages = group_advantages(right.float().flatten(), ANSWERS).view(right.shape)
        mask = works[..., None] | (torch.arange(LENGTH) == 0)  # only work has further tokens
        old = _log_probabilities(table, answers)
        for step in range(uses * MINIBATCHES):
            part = slice(step % MINIBATCHES, None, MINIBATCHES)
            new = _log_probabilities((shared + own[:, :, part]).log_softmax(-1), answers[:, :, part])
            batch = [
                x.flatten(1, 3) for x in (new, old[:, :, part], advantages[:, :, part], mask[:, :, part])
            ]
            level = "main" if step == uses * MINIBATCHES - 1 else None
            # The sum over seeds of each one's own mean over its answers.
            losses = [
                policy_loss(
                    new_logps,
                    old_logps,
                    gains,
                    shown,
                    rule,
                    normalizer=new[0, 0, ..., 0].numel(),
                    metrics=level,
                )
                for rule, new_logps, old_logps, gains, shown in zip(rules.values(), *batch, strict=True)
            ]
            adam.zero_grad()
            torch.stack([loss for loss, _ in losses]).sum().backward()
            adam.step()
        # At the last step of the round.
        clipped = [metrics.compute()["clip/fraction"] for _, metrics in losses]


def _log_probabilities(table: Tensor, answers: Tensor) -> Tensor:
    """Look up log pi of each token of each answer."""
    table = table.unsqueeze(3).expand(-1, -1, -1, answers.shape[3], -1, -1)
    return table.gather(-1, answers.unsqueeze(-1)).squeeze(-1)


class Mean(NamedTuple):
    """A mean and half of its 95% interval."""

    value: Tensor
    half: Tensor

    def __str__(self) -> str:
        return f"{round(float(self.value), 1) + 0.0:.1f} ± {self.half:.1f}"  # and no -0.0


def mean_of(runs: Tensor) -> Mean:
    """Return the mean over the last axis, with its 95% interval. Student's t has its quantile to 1% for n >= 8."""
    n = runs.shape[-1]
    t = 1.96 + 2.37 / (n - 1) + 2.82 / (n - 1) ** 2
    return Mean(runs.mean(-1), t * runs.std(-1) / math.sqrt(n))


class Result(NamedTuple):
    """Measurements of all runs. Curves are (rules, seeds, rounds + 1); `clipped` is a share for each rule and round."""

    names: list[str]
    uses: int
    curves: Tensor
    clipped: Tensor

    @classmethod
    def of(cls, rules: Mapping[str, Region], uses: int, rounds: Sequence[Round]) -> Self:
        right, clipped = zip(*rounds, strict=True)
        return cls([*rules], uses, torch.stack(right, -1), torch.tensor(clipped[1:]).T)

    def until_half(self) -> Tensor:
        """Return the rounds to half right of each run, (rules, seeds). A run that never gets there has all."""
        half = self.curves >= 0.5
        return torch.where(half.any(-1), half.int().argmax(-1), half.shape[-1] - 1).float()

    def forgot(self) -> dict[str, int]:
        """Count each rule's runs that end with fewer right answers than they began with."""
        counts = (self.curves[..., -1] < self.curves[..., 0]).sum(-1)
        return dict(zip(self.names, counts.tolist(), strict=True))

    def rows(self) -> list[list[str]]:
        """Return the table: a head, and a row for each rule."""
        until, forgot = self.until_half(), self.forgot()
        rows = [
            ["rule", "rounds to half", f"more than {self.names[-1]}", "right at end", "forgot", "clipped"]
        ]
        for name, own, end, clipped in zip(
            self.names, until, self.curves[..., -1], self.clipped.mean(-1), strict=True
        ):
            rows.append(
                [
                    name,
                    str(mean_of(own)),
                    "" if name == self.names[-1] else str(mean_of(own - until[-1])),
                    f"{end.mean():.0%}",
                    str(forgot[name]),
                    f"{clipped:.1%}",
                ]
            )
        return rows

    def verdict(self) -> str:
        """Say in one sentence how the last rule compares with each of the others."""
        *others, last = self.until_half()
        differences = {name: mean_of(own - last) for name, own in zip(self.names, others, strict=False)}
        ties = [name for name, mean in differences.items() if abs(mean.value) <= mean.half]
        phrases = [
            f"{Mean(abs(value), half)} {'fewer' if value > 0 else 'more'} than {name}"
            for name, (value, half) in differences.items()
            if name not in ties
        ]
        phrases += (
            [f"a tie with {' and '.join([', '.join(ties[:-1]), ties[-1]] if ties[1:] else ties)}"]
            if ties
            else []
        )
        return (
            f"With each answer used {times(self.uses)}, {self.names[-1]} needs {mean_of(last)} rounds until half of "
            f"the answers are right: {', '.join(phrases)}."
        )


def headline(rare: Result, noisy: Result) -> tuple[str, str]:
    """Say in two sentences what the two tasks show."""
    until, forgot = rare.until_half(), noisy.forgot()
    gain = mean_of(until[0] - until[-1])
    sooner = (
        f"A wide limit for rare tokens learns {gain.value:.1f} rounds sooner than GRPO's. Band-KL and Clip(0.2, 1.0) "
        "both have one."
    )
    as_late = f"With each answer used {times(rare.uses)}, Band-KL learns no sooner than GRPO."
    without, seeds = forgot.pop(NO_CLIP), noisy.curves.shape[1]
    ends = dict(zip(noisy.names, noisy.curves[..., -1].mean(-1).tolist(), strict=True))
    return (sooner if gain.value > gain.half else as_late), (
        f"With {NOISY.wrong:.0%} of the rewards wrong, {without} of {seeds} runs without a clip forgot the skill, and "
        f"{sum(forgot.values())} of {seeds * len(forgot)} with a limit. At the end {ends[NO_CLIP]:.0%} of the answers "
        f"are right without a clip, {ends['GRPO']:.0%} under GRPO, {ends['Band-KL']:.0%} under Band-KL."
    )


def notes(rare: Result, noisy: Result) -> list[str]:
    """Describe the numbers and their limits."""
    return [
        *["No rule clips even one token in a thousand in the first task, so little can differ."]
        * bool(rare.clipped.mean(-1).max() < 0.001),
        "GRPO is Clip(0.2, 0.2), Clip-Higher is Clip(0.2, 0.28), Band-KL has radius 0.05.",
        "± is a 95% interval of the mean over seeds. Differences are paired by seed; in a tie the interval holds 0.",
        "A run forgot if it ends with fewer right answers than it began with. Clipped tokens are counted at the last "
        "step of each round, where the policy has moved farthest.",
        "These are two small tasks: they say nothing about language models. The second was chosen because rules differ "
        "in it, by other seeds; at a learning rate of 0.01 none of 160 runs forgot there.",
        *(
            f"In the {number} task {counted(int(late.sum()), 'run')} never got half right: they count as "
            f"{result.curves.shape[-1] - 1} rounds."
            for number, result in (("first", rare), ("second", noisy))
            for late in [(result.curves < 0.5).all(-1)]
            if late.any()
        ),
    ]


COLOURS = ("#d9622b", "#ad8100", "#1a9a76", "#8a8794", "#4f7fe8")  # legible on white and on black
_STYLE = """:root{color-scheme:light dark;--soft:#59616a;--rule:#dcdbd4}
@media(prefers-color-scheme:dark){:root{--soft:#a2a9b0;--rule:#3a4046}}
body{max-width:46rem;margin:0 auto;padding:2rem 1.25rem 4rem;font:1.0625rem/1.55 system-ui,sans-serif}
h1{font-size:clamp(1.5rem,1.1rem + 2vw,2.1rem);line-height:1.2;text-wrap:balance}h2{font-size:1.15rem}
figure{margin:2rem 0;display:grid;grid-template-columns:auto 1fr;gap:0 .5rem}
figure svg{width:100%;height:20rem;border:solid var(--rule);border-width:0 0 1px 1px}
.axis{display:flex;justify-content:space-between}.up{flex-direction:column;text-align:right;margin:-.6rem 0}
.across,figcaption,.key{grid-column:2}.axis,figcaption,thead{color:var(--soft);font-size:.85rem}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;padding:0;margin:.6rem 0;font-size:.9rem}
path,line{fill:none;stroke-width:2.25px;vector-effect:non-scaling-stroke}polygon{opacity:.15}
.half{stroke:var(--soft);stroke-width:1px;stroke-dasharray:2 3}
.scroll{overflow-x:auto}table{border-spacing:0;font-variant-numeric:tabular-nums;font-size:.95rem}
th,td{padding:.4rem 0 .4rem .9rem;text-align:right;border-bottom:1px solid var(--rule);font-weight:400}
:is(th,td):first-child{padding-left:0;text-align:left}td{white-space:nowrap}
@media(max-width:30rem){table{font-size:.78rem}thead{font-size:.68rem}th,td{padding-left:.35rem}}"""


def page(rare: Result, noisy: Result, command: str) -> str:
    """Return the results as one HTML file that loads nothing."""
    first, second = headline(rare, noisy)
    title, _, more = first.partition(". ")
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in notes(rare, noisy))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">{policy()}
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title.rstrip(".")}</title><style>{_STYLE}</style></head><body>
<h1>{title.rstrip(".")}</h1><p>{more} {second}</p>
<h2>A rare good habit</h2>{_panel(RARE, rare)}
<h2>Noisy rewards</h2>{_panel(NOISY, noisy)}
<h2>What the numbers are</h2>{lines}
<h2>To repeat this</h2><p><code>{html.escape(command)}</code></p>
<h2>Next</h2><p><code>bandpo train</code> trains a small language model under Band-KL on this computer (docs/train.md).
For your own training see docs/own_loop.md, docs/trl.md and docs/verl.md. The paper of Band-KL is
<a href="https://arxiv.org/abs/2603.04918">BandPO</a>.</p>
</body></html>
"""


def _panel(task: Task, result: Result) -> str:
    """Return a task, its curves and its table."""
    means, halves = mean_of(result.curves.transpose(1, 2))
    last, curves, key = means.shape[1] - 1, "", ""
    for colour, name, mean, half in zip(COLOURS, result.names, 100 * means, 100 * halves, strict=True):
        upper, middle, lower = (
            [f"{x},{100 - y:.2f}" for x, y in enumerate(mean + k * half)] for k in (1, 0, -1)
        )
        area = f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}"/>'
        curves = f'{area}<path d="M{"L".join(middle)}" stroke="{colour}"/>{curves}'
        key += f'<li><b style="color:{colour}">&#9644;</b> {html.escape(name)}</li>'
    head, *rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in result.rows()]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"""<p>{html.escape(task.text)} {task.setting(result.curves.shape[1], result.uses)}</p>
<figure><div class="axis up"><span>100%</span><span>50%</span><span>0%</span></div>
<svg viewBox="0 0 {last} 100" preserveAspectRatio="none" role="img" aria-label="Share of right answers by round">
<line class="half" x1="0" y1="50" x2="{last}" y2="50"/>{curves}</svg>
<div class="axis across"><span>0</span><span>{last} rounds</span></div><ul class="key">{key}</ul>
<figcaption>Share of right answers: mean over seeds, with its 95% interval.</figcaption></figure>
<div class="scroll"><table><thead><tr>{head.replace("td>", "th>")}</tr></thead><tbody>{body}</tbody></table></div>
<p>{html.escape(result.verdict())}</p>"""
