"""Draw the picture of the README, docs/idea-light.svg and docs/idea-dark.svg: what a rule allows, and what came of it.

    python docs/idea.py           draw it from research/measurements/demo.csv
    python docs/idea.py --run     train the runs of `bandpo demo` first, and write their rows there

Left: the highest new probability r_high(p) * p that each rule allows a token of old probability p, from the rules' own
bounds. Right: what `bandpo demo` prints, the rounds until half of the answers are right.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.style
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from bandpo import Band, Clip
from bandpo_runs import demo
from bandpo_runs.provenance import hardware, source_commit, versions
from bandpo_runs.reports.charts import DASHES
from bandpo_runs.reports.templates import DARK, LIGHT

HERE = Path(__file__).parent
RULES = {"GRPO": Clip(0.2, 0.2), "Band-KL": Band("kl", 0.05)}
ROWS = HERE.parent / "research" / "measurements" / "demo.csv"
sys.path.append(str(HERE.parent))
from research.csv_rows import read_rows, write_rows  # noqa: E402

SEEDS, USES = range(32), 8  # the defaults of `bandpo demo`
AT = 0.01
PAPERS = {"light": ("#1f2328", "#8c959f", LIGHT), "dark": ("#e6edf3", "#8b949e", DARK)}


def measure() -> list[dict[str, object]]:
    """Train the runs of `bandpo demo`. A row for each rule has what the demo prints of it."""
    rare, noisy = (
        demo.Result.of(demo.RULES, USES, list(demo.train(demo.RULES, SEEDS, USES, task.length(USES), task)))
        for task in (demo.RARE, demo.NOISY)
    )
    origin = {"hardware": hardware(False), "torch": versions(["torch"])["torch"], "commit": source_commit()}
    return [
        {
            "rule": name,
            "rounds_to_half": round(float(runs.mean()), 2),
            "interval": round(float(demo.mean_of(runs).half), 2),
            "forgot": noisy.forgot()[name],
            "seeds": len(SEEDS),
            **origin,
            "command": "python docs/idea.py --run",
        }
        for name, runs in zip(rare.names, rare.until_half(), strict=True)
    ]


def alternative_text(rows: list[dict[str, str]]) -> str:
    """Say what the picture shows."""
    grow = [f"{float(rule.bounds(torch.tensor([AT]).log()).log_high.exp()) * AT:.2g}" for rule in RULES.values()]
    rounds = ", ".join(f"{row['rule']} {float(row['rounds_to_half']):.1f}" for row in rows)
    (no_clip,) = [row for row in rows if row["rule"] == demo.NO_CLIP]
    return (
        f"Left: under GRPO a token of probability {AT} may become {grow[0]}, under Band-KL {grow[1]}. "
        f"Right: rounds until half of the answers are right in bandpo demo: {rounds}. "
        f"With noisy rewards {no_clip['forgot']} of {no_clip['seeds']} runs without a clip forget the skill."
    )


def draw(ink: str, faint: str, colours: tuple[str, ...]) -> Figure:
    figure = Figure(figsize=(9.6, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    p = torch.logspace(-4, 0, 400, dtype=torch.float64)
    for (name, rule), colour, dash in zip(RULES.items(), colours, DASHES, strict=False):
        top = (rule.bounds(p.log()).log_high + p.log()).exp().clamp(max=1)
        left.plot(p, top, color=colour, linestyle=dash, linewidth=2.2)
        reach = float((rule.bounds(torch.tensor([AT]).log()).log_high).exp()) * AT
        left.plot([AT], [reach], "o", color=colour, markersize=6)
        low = name == "GRPO"
        left.annotate(
            f"{name}:\n0.01 may become {reach:.2g}", (AT, reach), color=colour, fontweight="bold",
            textcoords="offset points", xytext=(9, -26) if low else (-110, 9),
        )  # fmt: skip
    left.plot(p, p, color=faint, linestyle=(0, (1, 3)), linewidth=1)
    left.annotate("no change", (2.2e-4, 1.6e-4), color=faint)
    left.set(
        xscale="log",
        yscale="log",
        xlim=(1e-4, 1),
        ylim=(1e-4, 1.3),
        xlabel="probability of the token before the batch",
    )
    left.set_title("How likely may one batch make a good token?", loc="left", fontsize=11)
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.set_minor_locator(NullLocator())
    rows = read_rows(ROWS)
    for y, row in enumerate(reversed(rows)):
        mean, half = float(row["rounds_to_half"]), float(row["interval"])
        colour = dict(zip(RULES, colours, strict=False)).get(row["rule"], faint)
        right.barh(y, mean, color=colour, height=0.56, alpha=0.9)
        right.errorbar(mean, y, xerr=half, color=ink, linewidth=1.3)
        right.text(mean + half + 0.25, y, f"{mean:.1f}", va="center", fontweight="bold")
        if row["rule"] == demo.NO_CLIP:
            told = f"but with noisy rewards\n{row['forgot']} of {row['seeds']} runs forget"
            right.text(mean + half + 1.5, y, told, va="center", fontsize=8.5)
    right.set_yticks(range(len(rows)), [row["rule"] for row in reversed(rows)])
    right.set(xlim=(0, 12), xlabel="rounds until half of the answers are right (95% interval)")
    right.set_title("bandpo demo: a rare good habit spreads", loc="left", fontsize=11)
    right.tick_params(axis="y", length=0)
    return figure


def write(folder: Path) -> None:
    for name, (ink, faint, colours) in PAPERS.items():
        look = {
            "text.color": ink, "axes.edgecolor": faint, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink,
            "axes.spines.top": False, "axes.spines.right": False, "font.size": 9.5, "svg.hashsalt": "bandpo",
            "svg.fonttype": "none",
        }  # fmt: skip
        with matplotlib.style.context(["default", look]):
            draw(ink, faint, colours).savefig(
                folder / f"idea-{name}.svg",
                transparent=True,
                metadata={"Date": None, "Creator": None, "Description": alternative_text(read_rows(ROWS))},
            )


if __name__ == "__main__":
    if sys.argv[1:] == ["--run"]:
        write_rows(ROWS, measure())
    write(HERE)
