"""The figure of docs/report/index.md: what a rule moves, by the share of tokens that it clips.

Its points are the worlds of research/grids, SmolLM2's runs, and the public runs of docs/report/runs.csv. Anyone may add
a row to these. `bandpo doctor LOG` names the nearest of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from bandpo_runs.reports.charts import LIGHT
from research.csv_rows import as_table, read_rows
from research.grid import difference

from .rows import ROOT

GRIDS = ROOT / "research" / "grids"
RUNS = ROOT / "docs" / "report" / "runs.csv"
SMOLLM2 = ROOT / "research" / "measurements" / "smollm2_reuse.csv"
RATES = SMOLLM2.with_name("smollm2_rates.csv")
JUDGING = 100  # SmolLM2's first seed that chose nothing
# What each grid's points are of: the figure's name of them, and at which multiple of the best learning rate of no clip
# ("own": each rule at its own best).
KINDS = {
    "ways": ("several right answers, each rule at its best learning rate", "own"),
    "random_rewards": ("random rewards", "own"),
    "one_rate": ("a learning rate four times too high", "4"),
}
MODEL, PUBLIC = "SmolLM2-135M", "public run"
Point = dict[str, Any]
_INK, _FAINT, _MARKERS = "#1f2328", "#8c959f", "os^D"
_LOOK: dict[Any, Any] = {
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "legend.frameon": False,
    "svg.hashsalt": "bandpo",
    "svg.fonttype": "none",
}


def points() -> list[Point]:
    """Return all points: what a rule moved against another, and the percentage of tokens that it clipped."""
    public = [{"kind": PUBLIC, **row} for row in read_rows(RUNS)]
    return [*(point for grid in KINDS for point in _of_grid(grid)), *_of_smollm2(), *public]


def _of_grid(grid: str) -> Iterator[Point]:
    kind, rate = KINDS[grid]
    first = {row["world"]: float(row["best_rate"]) for row in read_rows(GRIDS / f"{grid}_rates.csv")}
    own = {(row["world"], row["rule"]): row for row in read_rows(GRIDS / f"{grid}_rates.csv")}
    for row in read_rows(GRIDS / f"{grid}.csv"):
        wanted = own[row["world"], row["rule"]]["own_rate"] if rate == "own" else 4 * first[row["world"]]
        clipped = 100 * (float(row["lost_up"]) + float(row["lost_down"]))
        if not clipped or not np.isclose(float(row["learning_rate"]), float(wanted)):
            continue
        told = own[row["world"], row["rule"]] if rate == "own" else row
        yield {
            "kind": kind,
            "run": row["world"],
            "rule": row["rule"],
            "against": "no clip",
            "clipped": f"{clipped:.3g}",
            "counted": "clipped",
            **_moved(told, "final", "pass1"),
            **_moved(told, "harder" if float(row["harder"]) else None, "coverage"),
            **_moved(told, "entropy", "entropy"),
            "note": "",
            "source": f"research/grids/{grid}.csv",
        }


def _moved(row: Mapping[str, str], name: str | None, column: str) -> dict[str, str]:
    ends = (row[f"{name}_minus_first"], row[f"{name}_half_width"]) if name else ("", "")
    return {column: ends[0], f"{column}_half_width": ends[1]}


def _of_smollm2() -> Iterator[Point]:
    """Yield how far rules are from no clip on the same seeds, in both measurements, where a rule has ten pairs."""
    runs: dict[tuple[str, str, str], dict[str, dict[str, tuple[float, float]]]] = {}
    for row in read_rows(SMOLLM2):
        place = f"SmolLM2, {row['uses']} epoch{'s' * (row['uses'] != '1')}", "outside", SMOLLM2.name
        runs.setdefault(place, {}).setdefault(row["rule"], {})[row["seed"]] = float(row["right"]), float(row["clipped"])
    for row in read_rows(RATES):
        rate = f"{float(row['learning_rate']) / 1.25e-6:g} times no clip's best learning rate"
        place = f"SmolLM2, 4 epochs, {rate}", "clipped", RATES.name
        runs.setdefault(place, {}).setdefault(row["rule"], {})[row["seed"]] = (
            float(row["pass1"]),
            float(row["clipped_above"]) + float(row["clipped_below"]),
        )
    for (run, counted, file), by_rule in runs.items():
        for rule, by_seed in by_rule.items():
            seeds = sorted(seed for seed in by_seed.keys() & by_rule["no clip"].keys() if int(seed) >= JUDGING)
            if rule != "no clip" and len(seeds) >= 10:
                gap, half, _ = difference(
                    *(np.array([some[seed][0] for seed in seeds]) for some in (by_seed, by_rule["no clip"]))
                )
                yield {
                    "kind": MODEL,
                    "run": run,
                    "rule": rule,
                    "against": "no clip",
                    "clipped": f"{100 * float(np.mean([by_seed[seed][1] for seed in seeds])):.3g}",
                    "counted": counted,
                    "pass1": f"{gap:.3g}",
                    "pass1_half_width": f"{half:.3g}",
                    "note": f"{len(seeds)} pairs of seeds",
                    "source": f"research/measurements/{file}",
                }


def save(path: Path, all_points: Sequence[Point]) -> None:
    """Draw the figure into a file."""
    with matplotlib.style.context(["default", _LOOK]):
        figure = Figure(figsize=(8.2, 4.4), layout="constrained", facecolor="white")
        draw(figure, all_points)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def draw(figure: Figure, all_points: Sequence[Point]) -> None:
    """Draw what rules moved in pass@1 and in coverage, by the percentage of tokens that they clipped."""
    panels = figure.subplots(1, 2, sharex=True)
    titles = {"pass1": "pass@1, minus the baseline's", "coverage": "coverage, minus the baseline's"}
    for ax, (column, title) in zip(panels, titles.items(), strict=True):
        ax.axhline(0, color=_FAINT, lw=0.8)
        ax.set(xscale="log", xlim=(0.001, 100), xlabel="tokens that a rule clips, percent", title=title)
        for i, kind in enumerate([*(kind for kind, _ in KINDS.values()), MODEL]):
            for counted in ("clipped", "outside"):
                some = [each for each in all_points if (each["kind"], each["counted"]) == (kind, counted)]
                some = [each for each in some if float(each["clipped"]) and each.get(column)]
                if some:
                    x, y = ([float(each[name]) for each in some] for name in ("clipped", column))
                    half = [float(each[f"{column}_half_width"]) for each in some]
                    look: dict[str, Any] = {"fmt": _MARKERS[i], "color": LIGHT[i], "markersize": 4, "elinewidth": 0.6}
                    look["fillstyle"] = "full" if counted == "clipped" else "none"
                    ax.errorbar(np.maximum(x, 0.001), y, yerr=half, label=kind, **look)
    panels[0].plot([], [], "v", color=LIGHT[4], label=f"{PUBLIC}; on the lower edge: no difference is known")
    panels[0].set_ylim(-0.42, 0.38)
    _name(panels[0], all_points)
    named = {label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named, loc="outside upper center", ncols=2)


def _name(ax: Any, all_points: Sequence[Point]) -> None:
    """Name SmolLM2's points that are off 0, and public runs; one without a difference stands on the lower edge."""
    look: dict[str, Any] = {"textcoords": "offset points", "size": 7}
    for point in all_points:
        if point["kind"] == MODEL and abs(float(point["pass1"])) > float(point["pass1_half_width"]):
            ax.annotate(
                f"{point['rule']}, {point['run'].partition(', ')[2]}",
                (float(point["clipped"]), float(point["pass1"])),
                (-5, -9),
                ha="right",
                **look,
            )
    bottom, free = ax.get_ylim()[0], 0.0
    public = [point for point in all_points if point["kind"] == PUBLIC and point["clipped"]]
    for point in sorted(public, key=lambda point: float(point["clipped"])):
        x, y = float(point["clipped"]), float(point["pass1"] or bottom)
        fill = "full" if point["counted"] == "clipped" else "none"
        ax.plot([x], [y], "v", color=LIGHT[4], ms=5, clip_on=False, fillstyle=fill)
        name = point["run"].partition(",")[0]
        if point["pass1"]:
            ax.annotate(name, (x, y), (6, -3), **look)
        else:
            free = max(x, 1.45 * free)  # names stand side by side
            ax.annotate(name, (free, y), (0, 7), rotation=90, ha="center", **look)


FORGIVING = ("GRPO", "Clip-Higher", "Clip .2/1", "Band-KL .05")
SIDES = (
    "upper .2 alone",
    "lower .2 alone",
    "GRPO",
    "Clip-Higher",
    "Band-KL .05",
    "Band-KL .005",
    "bonus .05",
    "bonus .01",
)


def at_rates(factor: float) -> dict[str, dict[str, Mapping[str, str]]]:
    """Return one_rate's rows at a multiple of no clip's best learning rate, by world and rule."""
    best = {row["world"]: float(row["best_rate"]) for row in read_rows(GRIDS / "one_rate_rates.csv")}
    worlds: dict[str, dict[str, Mapping[str, str]]] = {}
    for row in read_rows(GRIDS / "one_rate.csv"):
        if np.isclose(float(row["learning_rate"]), factor * best[row["world"]]):
            worlds.setdefault(row["world"], {})[row["rule"]] = row
    return worlds


def forgiven() -> str:
    """Return the table of what rules gain over no clip at four times its best learning rate, and lose at the best."""
    lines = []
    for world, by_rule in at_rates(4).items():
        name, epochs = world.split(", ")
        epochs = epochs.partition(" ")[0]
        if epochs == "8":
            cells = [_signed(by_rule[rule], "final") for rule in FORGIVING]
            lines.append([name, f"{float(by_rule['no clip']['final']):.2f}", *cells])
    by_gap = lambda row: float(row["final_minus_first"])  # noqa: E731
    worst = [min((by_rule[rule] for by_rule in at_rates(1).values()), key=by_gap) for rule in FORGIVING]
    lines.append(
        [
            "at the best learning rate: lowest difference in any setting",
            "",
            *(_signed(row, "final") for row in worst),
        ]
    )
    return as_table(["8 epochs, 4 times the best learning rate", "baseline's score", *FORGIVING], lines)


def sides() -> str:
    """Return the table of what each side of a clip does to pass@1, coverage and entropy."""
    own, chance = (
        {row["rule"]: row for row in read_rows(GRIDS / f"{grid}_rates.csv") if row["world"] == "8 uses x 2"}
        for grid in ("ways", "random_rewards")
    )
    lines = []
    for rule in SIDES:
        cells = [_signed(own[rule], name) for name in ("final", "harder", "entropy")]
        cells += [_signed(chance[rule], name) if rule in chance else "not run" for name in ("harder", "entropy")]
        lines.append([rule, *cells])
    head = ["minus the baseline", "pass@1", "coverage", "entropy", "random: coverage", "random: entropy"]
    return as_table(head, lines)


def _signed(row: Mapping[str, str], name: str) -> str:
    return f"{float(row[f'{name}_minus_first']):+.3f} ± {float(row[f'{name}_half_width']):.3f}"
