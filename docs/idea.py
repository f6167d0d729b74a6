"""Draw the picture of the README, docs/idea-light.svg and docs/idea-dark.svg: what a rule allows, and what came of it.

    python docs/idea.py

Left: the highest new probability r_high(p) * p that each rule allows a token of old probability p, from the rules' own
bounds. Right: rounds until half of the lab's answers work (scene tail, learning rate 5e-6, five seeds), from
benchmarks/lab.csv.
"""

import statistics
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.style
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from bandpo import Band, Clip
from bandpo_runs.provenance import read_rows
from bandpo_runs.reports.charts import DASHES
from bandpo_runs.reports.templates import DARK, LIGHT

HERE = Path(__file__).parent
RULES = {"GRPO": Clip(0.2, 0.2), "Band-KL": Band("kl", 0.05)}
# Names of the lab's rows, with what to write at the bar. The wide clip stands there because it does as well.
BARS = {
    "GRPO 0.2/0.2": "GRPO",
    "Clip-Higher 0.2/0.28": "Clip-Higher",
    "Clip 0.2/1.0": "Clip(0.2, 1.0)",
    "Band-KL 0.05": "Band-KL",
}
AT = 0.01
PAPERS = {"light": ("#1f2328", "#8c959f", LIGHT), "dark": ("#e6edf3", "#8b949e", DARK)}


def rounds() -> dict[str, list[float]]:
    rows = read_rows(HERE.parent / "benchmarks" / "lab.csv")
    rows = [row for row in rows if (row["scene"], row["learning_rate"]) == ("tail", "5e-06")]
    return {label: [float(row["half_work"]) for row in rows if row["label"] == label] for label in BARS}


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
    for y, (label, counts) in zip((3, 2, 1, 0), rounds().items(), strict=True):
        mean = statistics.mean(counts)
        colour = {"GRPO 0.2/0.2": colours[0], "Band-KL 0.05": colours[1]}.get(label, faint)
        right.barh(y, mean, color=colour, height=0.56, alpha=0.9)
        right.plot(counts, [y] * len(counts), "|", color=ink, markersize=9)
        right.text(max(counts) + 0.6, y, f"{mean:.0f}", va="center", fontweight="bold")
    right.set_yticks((3, 2, 1, 0), [*BARS.values()])
    right.set(xlim=(0, 34), xlabel="training rounds until half of the answers show it")
    right.set_title("A tiny model learns a rare good habit", loc="left", fontsize=11)
    right.tick_params(axis="y", length=0)
    return figure


def write(folder: Path) -> None:
    for name, (ink, faint, colours) in PAPERS.items():
        look = {
            "text.color": ink, "axes.edgecolor": faint, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink,
            "axes.spines.top": False, "axes.spines.right": False, "font.size": 9.5, "svg.hashsalt": "bandpo",
        }  # fmt: skip
        with matplotlib.style.context(["default", look]):
            draw(ink, faint, colours).savefig(
                folder / f"idea-{name}.svg", transparent=True, metadata={"Date": None, "Creator": None}
            )


if __name__ == "__main__":
    write(HERE)
