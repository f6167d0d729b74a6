"""Draw run folders as one HTML page that needs no network and, if asked, as one picture.

A run folder holds `run.json` (what ran), `config.yaml` (its settings) and `metrics.jsonl` (what happened, one JSON
object a line). Runs with the same scene and learning rate form a section; in it, runs with the same label are the seeds
of one method, and runs with the same seed are a pair: they began alike, so their difference is the fairest comparison.

Read it in this order: `read_runs`, then `PANELS` and `NUMBERS` (all that is shown of a run), then `summarize` (how
seeds become one cell of a table), then the drawing and the page.
"""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
import torch
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

import bandpo

MIN_SEEDS = 3  # with fewer, a standard deviation says next to nothing
Value = tuple[
    float, float
]  # what is known of a number; (3, 3): it is 3; (30, inf): more than 30; (nan, nan): undefined


# ------------------------------------------------------------------------------------------------------------ reading
@dataclass(frozen=True, eq=False)
class Run:
    """One run. `x` are its rounds (or steps), `rows` the lines of metrics.jsonl for each of them."""

    folder: Path
    info: dict[str, Any]
    config: dict[str, Any]
    axis: str
    x: np.ndarray
    rows: list[list[dict[str, Any]]]
    cut_off: bool

    @property
    def label(self) -> str:
        return self.info["label"]

    @property
    def finished(self) -> bool:
        return self.info["finished"] and not self.cut_off

    def total(self, key: str) -> np.ndarray:
        """The sum of a metric for each of `x`; NaN where no line has it."""
        known = [[row[key] for row in rows if row.get(key) is not None] for rows in self.rows]
        return np.array([math.fsum(values) if values else math.nan for values in known], float)

    def mean(self, key: str) -> np.ndarray:
        """The mean of a metric for each of `x`; NaN where no line has it."""
        count = [sum(row.get(key) is not None for row in rows) for rows in self.rows]
        return self.total(key) / np.maximum(count, 1)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read every run folder in `paths` or below them, each once."""
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        found = [path] if (path / "run.json").is_file() else sorted(p.parent for p in path.rglob("run.json"))
        if not found:
            raise ValueError(f"{path}: no run found; expected a folder with run.json in it or below it")
        for folder in found:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise ValueError("no runs given; expected at least one run folder")
    return [_read_run(folder) for folder in folders.values()]


def _read_run(folder: Path) -> Run:
    info, config = _read(folder / "run.json", json.loads), _read(folder / "config.yaml", yaml.safe_load)
    kinds = {"label": str, "seed": int, "finished": bool, "learning_rate": (int, float, type(None))}
    for key, kind in kinds.items():
        if key not in info or not isinstance(info[key], kind):
            raise ValueError(
                f"{folder / 'run.json'}: {key!r} is {info.get(key, 'missing')!r}; expected as a run writes it"
            )
    if "trust_region" not in config:
        raise ValueError(f"{folder / 'config.yaml'}: 'trust_region' is missing; expected the resolved config of a run")
    path = folder / "metrics.jsonl"
    rows, cut_off = _read_metrics(path)
    if info["finished"] and not rows:
        raise ValueError(f"{path}: empty; expected a line a round, as run.json says that the run finished")
    axis = "round" if all(row.get("round") is not None for row in rows) else "step"
    if any(row.get(axis) is None for row in rows):
        raise ValueError(f"{path}: expected 'round' or 'step' in every line")
    by_x = groupby(sorted(rows, key=lambda row: row[axis]), key=lambda row: row[axis])
    grouped = {x: list(lines) for x, lines in by_x}
    return Run(folder, info, config, axis, np.array([*grouped], float), [*grouped.values()], cut_off)


def _read(path: Path, parse: Callable[[bytes], Any], kind: type = dict) -> Any:
    try:
        content = parse(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; expected in every run folder") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: corrupt: {' '.join(str(error).split())}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path}: corrupt: expected names and values, got {content!r:.40}")
    return content


def _read_metrics(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The lines, and whether the last one is cut off, as a run leaves it that is killed while it writes."""
    rows = []
    lines = _read(path, lambda content: content.split(b"\n"), list)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = dict(json.loads(line).items())
        except (ValueError, AttributeError) as error:
            if number == len(lines):  # no newline behind it
                return rows, True
            raise ValueError(f"{path}, line {number}: corrupt: expected one JSON object a line") from error
        for key in USED_KEYS & row.keys():
            if row[key] is not None and type(row[key]) not in (int, float):
                raise ValueError(f"{path}, line {number}: {key!r} is {row[key]!r}; expected a number or null")
            row[key] = None if row[key] is None or not math.isfinite(row[key]) else row[key]
        rows.append(row)
    return rows, False


# ---------------------------------------------------------------------------------------------- what is shown of a run
CLIP_RATE = ("clip/count", "tokens")
TAIL_SHARE = ("clip/tail_high_count", "clip/count")
GOOD_TAIL_CUT = ("cut/good_tail_count", "clip/good_tail_tokens")


@dataclass(frozen=True)
class Panel:
    """A curve: the metric `key`, or the ratio of two sums (`parts`) where those were logged."""

    key: str
    title: str
    unit: str
    meaning: str
    parts: tuple[str, str] | None = None
    top: float | None = None

    def curve(self, run: Run) -> np.ndarray:
        scale = 100 if self.unit.startswith("%") else 1
        if self.parts and np.isfinite(run.total(self.parts[0])).any():
            below = run.total(self.parts[1])
            return scale * run.total(self.parts[0]) / np.where(below > 0, below, np.nan)
        return scale * run.mean(self.key)


PANELS = (
    Panel("lab/work", "P(work)", "share of completions",
          "Completions that work step by step / all completions. Dotted: half of them.", top=1),
    Panel("reward", "Reward", "mean per completion", "Σ reward / number of completions."),
    Panel("entropy", "Entropy (paper, Fig. 4c)", "nats per token", "−Σ π log π over the vocabulary, mean over tokens."),
    Panel("clip/fraction", "Overall clip rate (Fig. 4a)", "% of tokens",
          "Clipped tokens (ratio out of bounds) / all tokens.", CLIP_RATE),
    Panel("clip/tail_high_share", "Tail share of the clips (Fig. 4b)", "% of clipped tokens",
          "Clipped tokens above the upper bound with old p ≤ 0.2 / all clipped tokens.", TAIL_SHARE, top=100),
)  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A row of the tables: `of` computes it from a run; {x} in the texts stands for "round" or "step"."""

    name: str
    meaning: str
    digits: int
    of: Callable[[Run], Value]
    whole: bool = False  # a count: the value of one seed has no decimals


def exact(value: float) -> Value:
    return float(value), float(value)


def average(values: np.ndarray, last: int = 0) -> Value:
    """The mean of what is known, or of the last of it."""
    known = values[np.isfinite(values)][-last:]
    return exact(known.mean() if known.size else math.nan)


def first_round(run: Run, key: str) -> Value:
    """The first round with the metric at 0.5 or more; if there is none, "more than the last round" (censored)."""
    y = run.mean(key)
    if not np.isfinite(y).any():
        return exact(math.nan)
    return next((exact(x) for x in run.x[y >= 0.5]), (float(run.x[-1]), math.inf))


def share(run: Run, parts: tuple[str, str], key: str = "", where: Any = slice(None)) -> Value:
    """Percent over the run, as a ratio of sums: a mean of ratios would count a quiet round like a busy one.

    Where the counts were not logged it is the mean of the metric `key` after all.
    """
    top, bottom = (run.total(part)[where] for part in parts)
    known = np.isfinite(top) & np.isfinite(bottom)
    if key and not known.any():
        return average(100 * run.mean(key))
    below = bottom[known].sum()
    return exact(100 * top[known].sum() / below if below > 0 else math.nan)


def entropy_at_half(run: Run) -> Value:
    return exact(next(iter(run.mean("entropy")[run.mean("reward") >= 0.5]), math.nan))


NUMBERS = (
    Number("First {x} in which half work", "P(work) ≥ 0.5", 1, lambda r: first_round(r, "lab/work"), whole=True),
    Number("First {x} with reward 0.5", "mean reward ≥ 0.5", 1, lambda r: first_round(r, "reward"), whole=True),
    Number("Reward over the run", "mean over all {x}s", 3, lambda r: average(r.mean("reward"))),
    Number("Reward at the end", "mean over the last 3 {x}s", 3, lambda r: average(r.mean("reward"), last=3)),
    Number("Entropy at the end", "nats per token, last {x}", 2, lambda r: average(r.mean("entropy"), last=1)),
    Number("Entropy at reward 0.5", "nats per token, in the first {x} with reward ≥ 0.5", 2, entropy_at_half),
    Number("Clip rate, %", "clipped tokens / all tokens, sums over the run", 2,
           lambda r: share(r, CLIP_RATE, "clip/fraction")),
    Number("Early tail share, %", "clipped above the upper bound with old p ≤ 0.2 / all clipped tokens, sums over the "
           "{x}s with P(work) < 0.05", 1, lambda r: share(r, TAIL_SHARE, where=r.mean("lab/work") < 0.05)),
    Number("Good tail cut, %", "tokens with old p ≤ 0.2 and positive advantage that lose their gradient / all such "
           "tokens", 1, lambda r: share(r, GOOD_TAIL_CUT, "cut/good_tail")),
)  # fmt: skip
USED_KEYS = {"round", "step", "cut/good_tail", *CLIP_RATE, *TAIL_SHARE, *GOOD_TAIL_CUT, *(p.key for p in PANELS)}


# --------------------------------------------------------------------------------------------------------- arithmetic
def subtract(a: Value, b: Value) -> Value:
    """a - b as far as it is known: 12 minus "more than 30" is "less than -18"."""
    return a[0] - b[1], a[1] - b[0]


def show(value: Value, digits: int, sign: str = "") -> str:
    """12.0, "> 30", "< −18", "12 to 30", "unknown"; "–" for what is undefined."""
    low, high = (f"{v:{sign}.{digits}f}".replace("-", "−") for v in value)
    if low == high:
        return low if math.isfinite(value[0]) else "–"
    low, high = low.removesuffix(".0"), high.removesuffix(".0")
    if math.isinf(value[0]):
        return "unknown" if math.isinf(value[1]) else f"< {high}"
    return f"> {low}" if math.isinf(value[1]) else f"{low} to {high}"


def summarize(values: Sequence[Value], digits: int, sign: str = "", noun: str = "") -> str:
    """Mean ± standard deviation over seeds, or a median as soon as a seed is censored.

    A mean would need the values that nobody saw. The median often does not; where it does, a limit of it is known.
    """
    known = np.array([value for value in values if not math.isnan(value[0])]).reshape(-1, 2)
    if not len(known):
        return "–"
    censored = int((known[:, 0] != known[:, 1]).sum())
    if censored:
        low, high = (float(limit) for limit in np.median(known, axis=0))
        text = f"{show((low, high), digits, sign).removesuffix('.0')} ({censored} of {len(known)} {noun}not reached)"
        text = f"median {text}" if math.isfinite(low) and math.isfinite(high) else text
    else:
        text = show(exact(known[:, 0].mean()), digits, sign)
        text += f" ± {known[:, 0].std(ddof=1):.{digits}f}" if len(known) >= MIN_SEEDS else ""
    return text if len(known) == len(values) else f"{text} (defined in {len(known)} of {len(values)})"


def mean_curve(curves: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The mean over the seeds that have a value, up to the last round that every seed reached."""
    curves = list(curves)
    end = min(x[-1] if x.size else -math.inf for x, _ in curves)
    values: dict[float, list[float]] = {}
    for x, y in curves:
        for position, value in zip(x, y, strict=True):
            if position <= end and np.isfinite(value):
                values.setdefault(float(position), []).append(float(value))
    points = sorted((x, sum(v) / len(v)) for x, v in values.items())
    return np.array([x for x, _ in points]), np.array([y for _, y in points])


@dataclass(frozen=True, eq=False)
class Section:
    """The runs of one scene and learning rate: each method's by seed, the baseline first."""

    scene: str | None
    learning_rate: float | None
    axis: str
    methods: dict[str, dict[int, Run]]
    baseline: str | None  # None: it did not run here

    @property
    def title(self) -> str:
        name = f"The {self.scene} scene" if self.scene else "Training"
        if self.learning_rate is None:
            return name
        return f"{name}, learning rate {np.format_float_scientific(self.learning_rate, trim='-', exp_digits=1)}"

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.methods.values() for run in runs.values()]

    @property
    def panels(self) -> list[Panel]:
        return [panel for panel in PANELS if any(np.isfinite(panel.curve(run)).any() for run in self.runs)]


def make_sections(runs: Sequence[Run], baseline: str | None = None) -> list[Section]:
    """Group the runs; refuse two runs of one method and seed, and one label for two trust regions."""
    labels = sorted({run.label for run in runs})
    if baseline is not None and baseline not in labels:
        raise ValueError(f"baseline {baseline!r}: no such run; expected one of {', '.join(labels)}")
    rules: dict[str, Run] = {}
    groups: dict[tuple, dict[str, dict[int, Run]]] = {}
    for run in runs:
        other = rules.setdefault(run.label, run)
        if other.config["trust_region"] != run.config["trust_region"]:
            raise ValueError(f"{run.folder}: label {run.label!r} stands for another trust region in {other.folder}")
        key = run.info.get("scene"), run.info["learning_rate"], run.axis
        twin = groups.setdefault(key, {}).setdefault(run.label, {}).setdefault(run.info["seed"], run)
        if twin is not run:
            raise ValueError(f"{run.folder}: same label and seed as {twin.folder}; expected only one of them")
    sections = []
    for key, methods in groups.items():
        first = baseline or next((label for label in methods if label.startswith("GRPO")), next(iter(methods)))
        order = sorted(methods, key=lambda label, first=first: label != first)
        by_seed = {label: dict(sorted(methods[label].items())) for label in order}
        scene, rate, axis = key
        sections.append(Section(scene, rate, axis, by_seed, first if first in methods else None))
    # The tail goes before the storm, which answers the question that the tail leaves.
    return sorted(sections, key=lambda s: (s.scene is None, s.scene != "tail", str(s.scene), s.learning_rate or 0))


# ------------------------------------------------------------------------------------------------------------ drawing
# The colours of Okabe and Ito without yellow, which vanishes on white; DARK: the same hues for dark paper.
LIGHT = ("#0072b2", "#d55e00", "#008f68", "#b5558c", "#b97f00", "#2f93cc", "#6b6b6b")
DARK = ("#4aa8e8", "#ff8a4c", "#2cc79b", "#e79ac6", "#f2b632", "#8fd0f5", "#b5b5b5")
DASHES = ("-", (0, (5, 1.6)), (0, (1.5, 1.2)), (0, (6, 1.6, 1.5, 1.6)))
DOTTED: dict[str, Any] = {"linestyle": (0, (1, 3)), "linewidth": 0.8}
INK, RULE = "#000001", "#000002"  # stand in for two colours of the page, see `_svg`
Styles = dict[str, dict[str, Any]]


def method_styles(sections: Sequence[Section]) -> Styles:
    """Colour, dash and marker of each method, the same all over the page: colour is never the only sign."""
    labels = dict.fromkeys(label for section in sections for label in section.methods)
    looks = (
        {"color": LIGHT[i % 7], "linestyle": DASHES[i % 4], "marker": "osD^vPX"[i % 7]} for i in range(len(labels))
    )
    return dict(zip(labels, looks, strict=True))


def draw_panel(ax: Axes, panel: Panel, section: Section, styles: Styles) -> None:
    """Seeds as thin lines, their mean as a thick one."""
    for index, (label, runs) in enumerate(section.methods.items()):
        for run in runs.values() if len(runs) > 1 else []:
            y = panel.curve(run)
            known = np.isfinite(y)  # gaps are bridged: a point between two gaps would not be seen
            # No line without a point: unclipped, it would count as one in the corner of the figure for the layout.
            if known.any():
                ax.plot(run.x[known], y[known], color=styles[label]["color"], linewidth=0.8, alpha=0.45, clip_on=False)
        finished = [run for run in runs.values() if run.finished]
        x, y = mean_curve((run.x, panel.curve(run)) for run in finished or runs.values())
        every = max(1, len(x) // 5)
        start = min(index * every // len(styles), max(0, len(x) - 1))  # markers of two methods do not coincide
        if len(x):
            ax.plot(x, y, **styles[label], markevery=(start, every), clip_on=False)
    if panel.key == "lab/work":
        ax.axhline(0.5, color=matplotlib.rcParams["axes.edgecolor"], **DOTTED)
    ax.set_title(panel.unit, loc="left")
    ax.set_xlabel(section.axis, loc="right")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.margins(x=0.015)
    top = 1.03 * panel.top if panel.top else ax.get_ylim()[1]
    ax.set_ylim(min(0, ax.dataLim.ymin), top)


def ratio_bounds(run: Run, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest ratio that the run's trust region allows a token of old probability p."""
    try:
        bounds = bandpo.trust_region(run.config["trust_region"]).bounds(torch.from_numpy(p).log())
    except ValueError as error:
        raise ValueError(f"{run.folder / 'config.yaml'}: trust_region: {error}") from error
    return bounds.log_low.double().exp().numpy(), bounds.log_high.double().exp().numpy()


def draw_bounds(ax: Axes, rules: dict[str, Run], styles: Styles) -> None:
    """Both bounds of the ratio by p. A bound of 0 or infinity leaves the picture."""
    p, highest = np.logspace(-4, 0, 161), 10.0
    for index, (label, run) in enumerate(rules.items()):
        for bound in ratio_bounds(run, p):
            highest = max([highest, *bound[np.isfinite(bound)]])
            ax.plot(p, bound, **styles[label], markevery=(10 + 40 * index // len(rules), 40))
    ax.plot(p, 1 / p, color=matplotlib.rcParams["axes.edgecolor"], **DOTTED)
    ax.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(0.05, min(2 * highest, 1e4)))
    ax.set_title("new / old probability", loc="left")
    ax.set_xlabel("old probability p", loc="right")
    for axis in ax.xaxis, ax.yaxis:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())


def _look(size: float, ink: str, rule: str, salt: str = "") -> dict[Any, Any]:
    inked = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
    sized = ("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize")
    return dict.fromkeys(inked, ink) | dict.fromkeys(sized, size) | {
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "ytick.major.size": 0,
        "axes.grid": True, "axes.grid.axis": "y", "grid.color": rule, "axes.axisbelow": True, "axes.titlepad": 8,
        "lines.linewidth": size / 6, "lines.markersize": size * 0.4, "svg.fonttype": "none", "svg.hashsalt": salt,
        "text.parse_math": False,  # a label is a name, whatever dollars are in it
    }  # fmt: skip


def _svg(draw: Callable[[Axes], Any], name: str, height: int = 240, bare: bool = False) -> str:
    """A drawing as inline SVG that takes colours and font from the page; 360 px wide like a phone, `bare` for a key."""
    width = 48 if bare else 360
    # "default" first: a user's matplotlibrc must not change a byte. The name salts ids that must differ on the page.
    with matplotlib.style.context("default"), matplotlib.rc_context(_look(12, INK, RULE, name)):
        figure = Figure(figsize=(width / 72, height / 72))
        draw(figure.add_axes((0, 0, 1, 1) if bare else (46 / 360, 38 / height, 306 / 360, 1 - 66 / height)))
        file, no_dates = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_dates)
    body = file.getvalue().split("</defs>", 1)[1]  # before that: a style sheet that would hold for the whole page
    # Drop ids that only count (nothing refers to them, the next figure has them too), matplotlib's font, and no-ops.
    body = re.sub(r' id="[a-zA-Z.]+\w*_\d+"| font-family: [^;]*;| transform="rotate\(-0 [^"]*"|\n', " ", body)
    for colour, variable in zip((*LIGHT, RULE, INK), (*(f"--c{i}" for i in range(7)), "--rule", "--ink"), strict=True):
        body = body.replace(colour, f"var({variable})")
    role = 'aria-hidden="true"' if bare else f'role="img" aria-label="{escape(name)}"'
    return f'<svg class="plot" viewBox="0 0 {width} {height}" {role}>{body}'


def draw_png(sections: Sequence[Section]) -> bytes:
    """The panels and the bounds of every section as one picture on white, 1600 px wide."""
    styles = method_styles(sections)
    rows = [math.ceil((len(section.panels) + 1) / 3) for section in sections]
    with matplotlib.style.context("default"), matplotlib.rc_context(_look(8, "#24292f", "#e6e6e2")):
        figure = Figure(figsize=(8, sum(0.5 + 2 * n for n in rows)), dpi=200, layout="constrained")
        parts = figure.subfigures(len(sections), 1, squeeze=False, height_ratios=[0.5 + 2 * n for n in rows])[:, 0]
        for part, section, n in zip(parts, sections, rows, strict=True):
            axes = list(part.subplots(n, 3, squeeze=False).flat)
            for ax, panel in zip(axes, section.panels, strict=False):
                draw_panel(ax, panel, section, styles)
                ax.set_title(f"{panel.title}\n{panel.unit}", loc="left")
            draw_bounds(axes[len(section.panels)], {run.label: run for run in section.runs}, styles)
            axes[len(section.panels)].set_title("Bounds of the ratio\nnew / old probability", loc="left")
            for ax in axes[len(section.panels) + 1 :]:
                ax.set_axis_off()
            key = [axes[0].plot([], [], **styles[label])[0] for label in section.methods]
            part.legend(key, section.methods, title=section.title, loc="outside upper left", alignment="left",
                        ncols=4, frameon=False, handlelength=4)  # fmt: skip
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


# ----------------------------------------------------------------------------------------------------------- the page
SCENES = {
    "tail": "A tiny model can work step by step but almost never does. Does reward teach it that working pays? The "
    "trust region decides how fast a rare first token may grow.",
    "storm": "A tiny model that has the skill trains on small, noisy batches, each used many times. Does it keep it?",
}
HONEST = {
    "tail": "<b>The tail scene shows what a clip costs a rare strategy, not what it protects.</b> Entropy falls sooner "
    "under a rule that solves the task sooner: compare it at equal reward, not at equal rounds. Other rules with a "
    "wide upper side, a plain Clip(0.2, 1.0) among them, do about the same here, and no clip at all is fine here; what "
    "a clip is good for is the storm’s question. The early tail share says where a rule clips; it does not predict "
    "speed.",
    "storm": "<b>The storm scene asks what a clip protects.</b> In a hand-written loop of these settings, training "
    "without a clip lost a skill that was there; through this trainer it need not. A few seeds on one small task can "
    "show that a clip matters; they do not rank the clips.",
}


def join(words: Iterable[object]) -> str:
    *most, last = [str(word) for word in words]
    return f"{', '.join(most)} and {last}" if most else last


def _cell(text: str) -> str:
    """Text as HTML, with what it has in brackets as small print."""
    text = escape(text).replace("± ", "±&nbsp;").replace("t; ", "t;&nbsp;")  # "> 30" and "± 2" do not break
    return re.sub(r" (\(.*\))$", r"<small>\1</small>", text)


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of ready cells; it scrolls by itself where the window is narrow, so that the page never does."""
    heads = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = ""
    for name, *cells in rows:
        body += f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    return (
        f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0"><table class="{kind}">'
        f"<caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _figure(title: str, svg: str, meaning: str) -> str:
    return f"<figure><h3>{escape(title)}</h3>{svg}<figcaption>{escape(meaning)}</figcaption></figure>"


def _notes(notes: Iterable[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def _section(section: Section, styles: Styles) -> str:
    key = figures = ""
    for label in section.methods:
        swatch = _svg(lambda ax, look=styles[label]: _draw_swatch(ax, look), f"{section.title} {label}", 14, bare=True)
        key += f"<li>{swatch}{escape(label)}</li>"
    for panel in section.panels:
        name = f"{section.title}: {panel.title}, {panel.unit}, by {section.axis}, for {join(section.methods)}"
        svg = _svg(lambda ax, panel=panel: draw_panel(ax, panel, section, styles), name)
        figures += _figure(panel.title, svg, panel.meaning)
    notes = []
    for run in section.runs:
        if not run.finished:
            of = f" of {run.info['rounds']}" if section.axis == "round" and run.info.get("rounds") else ""
            why = " (the last line of metrics.jsonl is cut off)" if run.cut_off else ""
            length = f"{len(run.x)}{of} {section.axis}s{why}"
            notes.append(
                f"Unfinished: {run.label}, seed {run.info['seed']}, {length}. It is drawn, but not in the tables, "
                "nor in the thick line if other seeds of it finished."
            )
    if missing := [panel.title for panel in PANELS[1:] if panel not in section.panels]:
        notes.append(f"Not logged by these runs: {join(missing)}.")
    return (
        f'<section><div class="panels"><header><h2>{escape(section.title)}</h2>'
        f"<p>{SCENES.get(section.scene or '', '')} <span>Thin lines: seeds. Thick lines: their mean.</span></p>"
        f'<ul class="key">{key}</ul></header>{figures}</div>{_notes(notes)}{_tables(section)}</section>'
    )


def _draw_swatch(ax: Axes, look: dict[str, Any]) -> None:
    ax.plot([0, 1, 2], [0, 0, 0], **look, markevery=[1])
    ax.set_axis_off()


def _tables(section: Section) -> str:
    """The final numbers of the finished runs and, below them, the paired differences to the baseline."""
    done = {label: {s: r for s, r in runs.items() if r.finished} for label, runs in section.methods.items()}
    base, twins = section.baseline, done.get(section.baseline or "", {})
    others = [label for label in done if base and label != base]
    pairs = {label: [(run, twins[seed]) for seed, run in done[label].items() if seed in twins] for label in others}
    rows, gaps = [], []
    for number in NUMBERS:
        values = {run: number.of(run) for runs in done.values() for run in runs.values()}
        if all(math.isnan(low) for low, _ in values.values()):
            continue
        name, meaning = (escape(text.format(x=section.axis)) for text in (number.name, number.meaning))
        cells = [_cell(summarize([values[r] for r in runs.values()], number.digits)) for runs in done.values()]
        rows.append([name, *cells, meaning])
        gaps.append([name])
        for label in others:
            each = [subtract(values[run], values[twin]) for run, twin in pairs[label]]
            small = " &ensp;".join(_cell(show(gap, 0 if number.whole else number.digits, "+")) for gap in each)
            small = f"<small>{small}</small>" if len(each) > 1 else ""
            gaps[-1].append(_cell(summarize(each, number.digits, "+", "pairs ")) + small)
    if not rows:
        return _notes(["No run of this section is finished, so there are no final numbers yet."])
    few = [label for label, runs in done.items() if len(runs) < MIN_SEEDS]
    notes = [f"{join(few)}: spread not estimated (fewer than {MIN_SEEDS} seeds)."] if few else []
    if any("not reached" in cell for row in rows for cell in row):
        notes.append("Not reached: it would need more rounds than were run, so no mean; a median, or a limit of it.")
    if len(lengths := sorted({int(run.x[-1]) for runs in done.values() for run in runs.values()})) > 1:
        notes.append(f"Runs end at {section.axis} {join(lengths)}: numbers over the whole run do not compare.")
    if base is None:
        notes.append("The baseline did not run here, so there are no differences.")
    spread = "mean over seeds" if len(few) == len(done) else "mean ± standard deviation over seeds"
    head = [f"{escape(label)}<small>n = {len(runs)}</small>" for label, runs in done.items()]
    page = _table(f"Final numbers, {spread}", ["measure", *head, "definition"], rows, "defined") + _notes(notes)
    if others:
        head = [f"{escape(m)}<small>seeds {' '.join(str(r.info['seed']) for r, _ in pairs[m])}</small>" for m in others]
        page += _table(
            f"Minus {escape(str(base))} with the same seed; in small print each pair", ["measure", *head], gaps
        )
        if few := [label for label in others if len(pairs[label]) < MIN_SEEDS]:
            page += _notes([f"{join(few)}: spread not estimated (fewer than {MIN_SEEDS} pairs)."])
    return page


def _bounds(sections: Sequence[Section], styles: Styles) -> str:
    rules = {run.label: run for section in sections for run in section.runs}
    p, rows = np.array([0.01, 0.1, 0.8]), []
    for label, run in rules.items():
        low, high = (np.minimum(bound * p, 1) for bound in ratio_bounds(run, p))
        rows.append([escape(label), *(f"{a:.3f}–{b:.3f}" for a, b in zip(low, high, strict=True))])
    name = f"Bounds of the probability ratio by old probability, for {join(rules)}; numbers in the table"
    svg = _svg(lambda ax: draw_bounds(ax, rules, styles), name, 300)
    meaning = "lower ≤ π(a) / π_old(a) ≤ upper, for p = π_old(a). Dotted: 1/p, where the new probability is 1. "
    meaning += "A line that leaves the picture goes to 0 or to infinity."
    table = _table("Where the probability p of a token may go", ["method", *(f"p = {x:g}" for x in p)], rows)
    return (
        "<section><h2>The trust regions</h2><p>A token outside its interval that would move further out gets no "
        "gradient. How far a rare token may rise is where rules differ most.</p>"
        f'<div class="pair">{_figure("Bounds of the ratio", svg, meaning)}{table}</div></section>'
    )


def flatten(node: Any, prefix: str = "") -> dict[str, str]:
    """{"a": {"b": 1}} -> {"a.b": "1"}"""
    if not isinstance(node, dict):
        return {prefix: str(node)}
    parts = (flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in node.items())
    return {key: value for part in parts for key, value in part.items()}


def differing(runs: Sequence[Run]) -> dict[str, dict[Run, str]]:
    """The settings that differ between runs, except seeds, labels and where the output goes."""
    flat = {run: flatten(run.config) for run in runs}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    keys = [key for key in keys if not re.search(r"(^|\.)(seed|label|out|output|\w*_?dir)$", key)]
    table = {key: {run: settings.get(key, "–") for run, settings in flat.items()} for key in keys}
    return {key: values for key, values in table.items() if len(set(values.values())) > 1}


def commands(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each command; commands that differ only where each has its own seed are one, with SEED there."""
    words = {run: re.split(r"(\d+)", str(run.info.get("command") or "(not recorded)")) for run in runs}
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            first, own = group[0], (str(group[0].info["seed"]), str(run.info["seed"]))
            pairs = list(zip(words[first], words[run], strict=False))
            if len(words[first]) == len(words[run]) and all(a == b or (a, b) == own for a, b in pairs):
                group.append(run)
                break
        else:
            groups.append([run])
    merged = ((zip(*(words[run] for run in group), strict=True), group) for group in groups)
    return {"".join(w[0] if len(set(w)) == 1 else "SEED" for w in columns): group for columns, group in merged}


def _origin(sections: Sequence[Section]) -> str:
    """Settings, versions and commands: what it takes to get these numbers again."""
    runs = [run for section in sections for run in section.runs]
    columns = [(label, section) for section in sections for label in section.methods]
    where = {s: f"<small>{escape(s.title)}</small>".replace("-", "\u2011") if sections[1:] else "" for s in sections}
    heads = [escape(label) + where[section] for label, section in columns]
    settings = differing(runs)
    rows = []
    for key, values in settings.items():
        cells = (dict.fromkeys(values[run] for run in s.methods[label].values()) for label, s in columns)
        rows.append([escape(key), *(escape(", ".join(cell)) for cell in cells)])
    facts: dict[str, set[str]] = {}
    for run in runs:
        known = {key: run.info.get(key) for key in ("versions", "commit", "hardware", "started")}
        known["seconds a run"] = None if (seconds := run.info.get("wall_seconds")) is None else f"{seconds:.0f}"
        for key, value in flatten(known).items():
            if value != "None":
                facts.setdefault(re.sub(r"^(versions|hardware)\.", "", key), set()).add(value)
    told = []
    for key, found in facts.items():
        values = sorted(found, key=lambda value: (len(value), value))
        ranged = len(values) > 1 and key in ("started", "seconds a run")
        told.append(f"{key} {values[0]} to {values[-1]}" if ranged else f"{key} {join(values)}")
    lines = ""
    for command, group in commands(runs).items():
        seeds = sorted({run.info["seed"] for run in group})
        who = f"{join(dict.fromkeys(run.label for run in group))}, seed {join(seeds)}"
        lines += f'<p class="note">{escape(who)}</p><pre><code>{escape(command)}</code></pre>'
    return (
        f"<section><h2>Where this comes from</h2>{_table('Settings that differ', ['setting', *heads], rows)}"
        f"{_notes(['; '.join(told) + '.'])}<h3>To repeat the runs</h3>{lines}</section>"
    )


CSS = """
:root{color-scheme:light dark;--paper:#fcfcfa;--ink:#1d2125;--soft:#59616a;--rule:#e2e1db;LIGHT;
--sans:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
@media(prefers-color-scheme:dark){:root{--paper:#15181b;--ink:#e4e4df;--soft:#a2a9b0;--rule:#33383d;DARK}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);-webkit-text-size-adjust:100%;
font:1.0625rem/1.55 Charter,"Bitstream Charter","Iowan Old Style",Palatino,Georgia,serif}
main{max-width:72rem;margin:0 auto;padding:clamp(1.5rem,4vw,3.5rem) clamp(1rem,4vw,2.5rem) 4rem}
h1{font-size:clamp(1.75rem,1.2rem + 2vw,2.5rem);line-height:1.15;font-weight:600;margin:0 0 1rem}
h2{font-size:1.5rem;line-height:1.2;font-weight:600;margin:0 0 .75rem;text-wrap:balance}
h3{font:600 .9375rem/1.3 var(--sans);margin:0 0 .35rem}
p{max-width:40rem;margin:0 0 1rem}
section{border-top:1px solid var(--rule);margin-top:2.5rem;padding-top:2.25rem}
.panels,.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr));gap:2rem 2.5rem}
.panels{margin-bottom:1.5rem}
.pair{align-items:center}
.pair :is(th,td):first-child{min-width:6rem}
figure{margin:0;min-width:0}
figcaption,.note,table,.key,header span{font:.8125rem/1.45 var(--sans)}
figcaption,.note,caption,small,header span,.defined td:last-child{color:var(--soft)}
.plot{display:block;width:100%;height:auto;overflow:visible;font-family:var(--sans);stroke-linejoin:round}
.key{list-style:none;margin:0;padding:.5rem 0;background:var(--paper);font-size:.875rem}
.key li{display:flex;align-items:center;gap:.6rem}
.key .plot{width:3rem;flex:none}
.scroll{overflow-x:auto;margin:1.5rem 0 1rem;min-width:0}
table{border-spacing:0;font-variant-numeric:tabular-nums lining-nums}
caption{text-align:left;padding-bottom:.4rem}
th,td{padding:.45rem 0 .45rem 1.75rem;text-align:right;vertical-align:top;font-weight:400;white-space:nowrap;
border-bottom:1px solid var(--rule)}
thead th{font-weight:600;vertical-align:bottom}
th:first-child{padding-left:0;min-width:clamp(6rem,20vw,14rem);position:sticky;left:0;background:var(--paper)}
th:first-child,.defined :is(th,td):last-child{text-align:left}
.defined td:last-child{white-space:normal;min-width:18rem}
.pair .plot{max-width:28rem}
thead small{white-space:normal}
small{display:block;font-size:.75rem;font-weight:400}
pre{margin:0 0 1.25rem;white-space:pre-wrap;overflow-wrap:anywhere;font:.8125rem/1.5 ui-monospace,Menlo,monospace}
@media(max-width:42rem){th,td{padding-left:.75rem;white-space:normal}
.panels{display:block}.panels header{display:contents}.panels figure{margin-top:2rem}
.key{position:sticky;top:0;max-height:25vh;overflow:auto;display:flex;flex-wrap:wrap;gap:0 1.25rem;
border-bottom:1px solid var(--rule)}}
"""


def render(sections: Sequence[Section]) -> str:
    """The whole page, with nothing in it that is fetched from elsewhere."""
    styles = method_styles(sections)
    runs = [run for section in sections for run in section.runs]
    lengths = {(run.info.get("rounds"), run.info.get("steps_per_round")) for run in runs}
    rounds, steps = lengths.pop() if len(lengths) == 1 else (None, None)
    length = f" for {rounds} rounds" if rounds else ""
    length += f" of {steps} optimizer steps" if rounds and steps else ""
    seeds = sorted({run.info["seed"] for run in runs})
    names = escape(join(styles))
    lead = (
        "A trust region is the rule that says how far a token’s probability may move before it gets no more gradient. "
        f"This page {'compares' if len(styles) > 1 else 'shows'} {names}, trained with "
        f"{'seeds' if len(seeds) > 1 else 'seed'} {join(seeds)}{length}."
    )
    if len(styles) > 1:
        baselines = escape(join(dict.fromkeys(section.baseline for section in sections if section.baseline)))
        lead += f" Runs with the same seed begin alike, so each is compared with its twin under {baselines}."
    honest = [
        f"<p>{HONEST[scene]}</p>" for scene in dict.fromkeys(section.scene for section in sections) if scene in HONEST
    ]
    css = CSS
    for name, colours in ("LIGHT", LIGHT), ("DARK", DARK):
        css = css.replace(name, ";".join(f"--c{i}:{colour}" for i, colour in enumerate(colours)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Trust regions compared: {names}</title><style>{css}</style></head>\n"
        f"<body><main><h1>Trust regions compared</h1><p>{lead}</p>\n"
        + "\n".join(_section(section, styles) for section in sections)
        + _bounds(sections, styles)
        + _origin(sections)
        + (f"<section><h2>What this does not show</h2>{''.join(honest)}</section>" if honest else "")
        + "</main></body></html>\n"
    )


def write_report(runs: Sequence[Path], output: Path, *, png: Path | None = None, baseline: str | None = None) -> Path:
    """Write the page, and the picture if `png` is given, about run folders or folders that have such below them.

    `baseline` is the label that the others are compared with; by default the first that starts with "GRPO". Raises
    ValueError, one line that names the path and what was expected, if a run is missing, corrupt or ambiguous. Then
    nothing is written: an older report is better than half a new one.
    """
    sections = make_sections(read_runs(runs), baseline)
    content = {Path(output): render(sections).encode()} | ({Path(png): draw_png(sections)} if png else {})
    for path in content:
        if path.is_dir():
            raise ValueError(f"{path}: is a folder; expected the name of a file to write")
    for path, data in content.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            part.write_bytes(data)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return Path(output)
