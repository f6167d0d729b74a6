"""Runs as one HTML page that needs no network and, if asked, as one picture. What the page says is put together
here as plain text; page.html.jinja has its form, and escapes it."""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bandpo.errors import UserError
from bandpo.trust_regions.notation import not_loaded

from ..config.secrets import blanked
from ..files.writing import write_atomically
from .charts import (
    DARK,
    LIGHT,
    Styles,
    draw_bounds,
    draw_panel,
    draw_png,
    draw_swatch,
    end_names,
    method_styles,
    svg,
    thick_line,
)
from .clip_map import of_sections
from .content_security import policy
from .reading import Run
from .runs import MIN_SEEDS, PANELS, Panel, Section, number, ratio_bounds, read_sections
from .words import in_short, join

SCENES = {
    "tail": "A tiny model can work step by step but almost never does. Does reward teach it that working pays? The "
    "trust region decides how fast a rare first token may grow.",
    "both": "A tiny model that almost never works step by step trains on small, noisy batches, each used many times. "
    "Does the rare strategy live long enough to be learned?",
    "storm": "A tiny model that has the skill trains on small, noisy batches, each used many times. Does it keep it?",
}
HONEST = {
    "tail": "<b>The tail scene shows what a clip costs a rare strategy, not what it protects.</b> Entropy falls sooner "
    "under a rule that solves the task sooner: compare it at equal reward, not at equal rounds. Other rules with a "
    "wide upper side, a plain Clip(0.2, 1.0) among them, do about the same here, and no clip at all is fine here; what "
    "a clip is good for is the storm’s question. The early tail share says where a rule clips; it does not predict "
    "speed.",
    "storm": "<b>The storm scene asks what a clip protects.</b> Over five seeds (benchmarks/lab.csv), training without "
    "a clip mostly lost a skill that was there, and every clip mostly kept it; an unlucky seed was lost under all. A "
    "few seeds on one small task show that a clip matters; they do not rank the clips.",
    "both": "<b>The scene both asks whether a rare strategy lives until it has been learned.</b> A few rewards are "
    "inverted. Under GRPO’s clip about a third of the runs lost it for good (5 of 16, "
    "research/measurements/fast_lab_search.csv): what counts is how many runs are lost, and it takes dozens of seeds "
    "to compare that. The scene was made to have "
    "this property; it does not say how often real runs have it.",
}


def _in_two(text: str) -> tuple[str, str]:
    """Split off the brackets at the end of a text."""
    text = re.sub("([<>±]) ", "\\1\xa0", text)  # "> 30" and "± 2" do not break
    main, bracket = re.fullmatch(r"(.*?)(?: (\(.*\)))?", text, re.DOTALL).groups("")  # type: ignore[union-attr]
    return main, bracket


def _section(section: Section, styles: Styles) -> dict[str, Any]:
    key, figures, panels = [], [], section.panels
    for label in section.methods:
        key.append(
            (
                label,
                svg(lambda ax, look=styles[label]: draw_swatch(ax, look), f"{section.title} {label}", 14, bare=True),
            )
        )
    room = max([8, *(14 + 7 * len(name) for name in end_names(styles).values())])
    for panel in panels:
        name = f"{section.title}: {panel.title}, {panel.unit}, by {section.axis}, for {join(section.methods)}"
        limits: list[tuple[float, float]] = []

        def draw(ax: Any, panel: Panel = panel, limits: list[tuple[float, float]] = limits) -> None:
            draw_panel(ax, panel, section, styles, ends=True)
            limits.append(ax.get_xlim())

        drawing = svg(draw, name, right=room)
        figures.append((panel.title, drawing, panel.meaning, _read(panel, section, styles, limits, room)))
    notes = []
    for run in section.runs:
        if run.info is not None and not run.finished:
            rounds = run.info.get("rounds")
            of = f" of {rounds}" if section.axis == "round" and rounds else ""
            why = "".join(f" ({note})" for note in run.notes)
            length = f"{int(run.x[-1]) if len(run.x) else 0}{of} {section.axis}s{why}"
            notes.append(f"Unfinished: {run.name}, {length}. {_UNFINISHED}")
        elif not run.finished:
            notes.append(f"Unfinished: {run.name}, {int(run.x[-1])} {section.axis}s. {_UNFINISHED}")
        if run.info is None and run.notes:
            notes.append(f"The log of {run.name}: {join(run.notes)}.")
        elif run.finished and run.notes:
            notes.append(f"{run.name}: {join(run.notes)}.")
        if run.collapse is not None:
            notes.append(f"{run.name}: {run.collapse}.")
    notes += _missing(section, panels)
    about = {"title": section.title, "scene": SCENES.get(section.scene or "", "")}
    return {**about, "key": key, "figures": figures, "notes": notes, **_tables(section)}


def _read(
    panel: Panel, section: Section, styles: Styles, limits: Sequence[tuple[float, float]], room: int
) -> dict[str, Any]:
    """Return the thick lines in numbers, for page.js.

    They have values at places across the drawing, as shares of its width.
    """
    lines = {label: thick_line(panel, runs.values()) for label, runs in section.methods.items()}
    at = np.unique(np.concatenate([x for x, _ in lines.values()]))
    at = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), _MOST_READ)).astype(int))]
    read = {label: dict(zip(x[there := np.isin(x, at)], y[there], strict=True)) for label, (x, y) in lines.items()}
    if not limits or not len(at):
        return {}
    low, high = limits[0]
    percent = " %" if panel.unit.startswith("%") else ""
    return {
        "at": [round((46 + (314 - room) * (x - low) / (high - low)) / 360, 4) for x in at],
        "x": [f"{section.axis} {x:g}" for x in at],
        "lines": [
            (
                label,
                LIGHT.index(styles[label]["color"]),
                [f"{number(known[p])}{percent}" if p in known else None for p in at],
            )
            for label, known in read.items()
        ],
    }


_MOST_READ = 200  # places at which a curve is read
_UNFINISHED = "It is drawn, but not in the tables, nor in the thick line if other seeds of it finished."


def _missing(section: Section, panels: Sequence[Panel]) -> Iterator[str]:
    """Name the curves that are not in the logs, and the steps to have them next time."""
    wanted = {panel: [m for m in section.methods if not section.has(panel, m)] for panel in PANELS if panel.needs}
    none = [panel for panel in wanted if panel not in panels and not _nothing_clipped(panel, section)]
    if none:
        yield f"Not logged by these runs: {join(panel.title for panel in none)}."
    for panel, labels in wanted.items():
        if panel in panels and labels:
            yield f"{panel.title}: not in the log of {join(labels)}, or without a value there."
        elif panel not in none and labels:
            yield f"{panel.title}: without a value, as no token was clipped."
    lacking: dict[str, list[str]] = {}
    for panel, labels in wanted.items():
        if any(run.info is None for label in labels for run in section.methods[label].values()):
            lacking.setdefault(panel.needs, []).append(panel.title)
    for needs, titles in lacking.items():
        yield f"To have {join(titles)} next time: {needs}."


def _nothing_clipped(panel: Panel, section: Section) -> bool:
    """Check that a share of the clipped tokens has no value because none was clipped."""
    rates = [_CLIP_RATE.curve(run) for run in section.runs] if panel.key == "clip/tail_high_share" else []
    return any(np.isfinite(y).any() for y in rates) and all(np.nansum(y) == 0 for y in rates)


_CLIP_RATE = next(panel for panel in PANELS if panel.key == "clip/fraction")


def _tables(section: Section) -> dict[str, Any]:
    """Return the final numbers of the finished runs and, below them, the paired differences to the baseline."""
    rows, done, pairs = section.table(), section.finished, {m: each for m, each in section.pairs.items() if each}
    if not rows:
        none = "No run of this section is finished, so there are no final numbers yet."
        return {"rows": rows, "table_notes": [none], "pairs": None}
    few = [label for label, runs in done.items() if len(runs) < MIN_SEEDS]
    notes = [f"{join(few)}: spread not estimated (fewer than {MIN_SEEDS} seeds)."] if few else []
    if any("not reached" in text for row in rows for text in row.summaries.values()):
        notes.append("Not reached: it would need more rounds than were run, so no mean; a median, or a limit of it.")
    if len(lengths := sorted({int(run.x[-1]) for runs in done.values() for run in runs.values()})) > 1:
        notes.append(f"Runs end at {section.axis} {join(lengths)}: numbers over the whole run do not compare.")
    if section.baseline is None:
        notes.append("The baseline did not run here, so there are no differences.")
    if section.methods.keys() - {section.baseline} and any(run.seed is None for run in section.runs):
        notes.append("A log does not say the seed of its run, so that such a run has no twin and no paired difference.")
    spread = "mean over seeds" if len(few) == len(done) else "mean ± standard deviation over seeds"
    counts = [(label, f"n = {len(runs)}") for label, runs in done.items()]
    seeds = [(m, f"seeds {' '.join(str(run.seed) for run, _ in pairs[m])}") for m in pairs]
    few = [label for label in pairs if len(pairs[label]) < MIN_SEEDS]
    return {
        "caption": f"Final numbers, {spread}",
        "head": [("measure", ""), *counts, ("definition", "")],
        "rows": [(row.name, row) for row in rows],
        "table_notes": notes,
        "pairs": pairs and {
            "caption": f"Minus {section.baseline} with the same seed; in small print each pair",
            "head": [("measure", ""), *seeds],
            "rows": [(row.name, [(row.differences[m], row.pairs[m]) for m in pairs]) for row in rows],
            "notes": [f"{join(few)}: spread not estimated (fewer than {MIN_SEEDS} pairs)."] if few else [],
        },
    }  # fmt: skip


def _bounds(sections: Sequence[Section], styles: Styles) -> dict[str, Any]:
    runs = [run for section in sections for run in section.runs]
    rules = {run.label: run.region for run in runs if run.region is not None}
    own = {run.label: run.own for run in runs if run.own is not None}
    logs = sorted({run.label for run in runs if run.objective is None} - {*rules, *own})
    others = sorted({run.label for run in runs} - {*rules, *logs, *own})
    notes = [f"{label}: {not_loaded(kind)}." for label, kind in own.items()]
    notes += [f"One ratio for a whole response, and so no interval per token: {join(others)}."] if others else []
    if logs:
        notes.append(f"A log does not say the rule of its run, so that no interval is shown of {join(logs)}.")
    p, rows = np.array([0.01, 0.1, 0.8]), []
    if not rules:
        return {"rows": rows, "notes": notes}
    found = {label: bounds for label, region in rules.items() if (bounds := ratio_bounds(region, p)) is not None}
    if unknown := sorted(rules.keys() - found.keys()):
        notes.append(f"Bounds that depend on more than the old probability, and so no line: {join(unknown)}.")
    if not found:
        return {"rows": rows, "notes": notes}
    rules = {label: region for label, region in rules.items() if label in found}
    for label, bounds in found.items():
        low, high = (np.minimum(bound * p, 1) for bound in bounds)
        rows.append((label, [f"{a:.3f}–{b:.3f}" for a, b in zip(low, high, strict=True)]))
    name = f"Bounds of the probability ratio by old probability, for {join(rules)}; numbers in the table"
    meaning = "lower ≤ π(a) / π_old(a) ≤ upper, for p = π_old(a). Dotted: 1/p, where the new probability is 1. "
    meaning += "A line that leaves the picture goes to 0 or to infinity."
    figure = "Bounds of the ratio", svg(lambda ax: draw_bounds(ax, rules, styles), name, 300), meaning
    return {"figure": figure, "head": [("method", ""), *((f"p = {x:g}", "") for x in p)], "rows": rows, "notes": notes}


def flatten(node: Any, prefix: str = "") -> dict[str, str]:
    """Flatten {"a": {"b": 1}} -> {"a.b": "1"}"""
    if not isinstance(node, dict):
        return {prefix: str(node)}
    parts = (flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in node.items())
    return {key: value for part in parts for key, value in part.items()}


def differing(runs: Sequence[Run]) -> dict[str, dict[Run, str]]:
    """List the settings that differ between runs, except the seed, the label and the output folder."""
    flat = {run: flatten(blanked(run.config)) for run in runs if run.config is not None}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    keys = [key for key in keys if not re.search(r"^(seed|label|output)$|_dir$", key)]
    table = {key: {run: settings.get(key, "–") for run, settings in flat.items()} for key in keys}
    return {key: values for key, values in table.items() if len(set(values.values())) > 1}


def commands(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group the runs by command; commands that differ only by their seeds are one, with SEED there."""
    infos = {run: run.info for run in runs if run.info is not None}
    words = {run: re.split(r"(\d+)", blanked(info.get("command") or "(not recorded)")) for run, info in infos.items()}
    groups: list[list[Run]] = []
    for run in infos:
        for group in groups:
            first, own = group[0], (str(group[0].seed), str(run.seed))
            pairs = list(zip(words[first], words[run], strict=False))
            if len(words[first]) == len(words[run]) and all(a == b or (a, b) == own for a, b in pairs):
                group.append(run)
                break
        else:
            groups.append([run])
    merged = ((zip(*(words[run] for run in group), strict=True), group) for group in groups)
    return {"".join(w[0] if len(set(w)) == 1 else "SEED" for w in columns): group for columns, group in merged}


def _origin(sections: Sequence[Section]) -> dict[str, Any]:
    """Return settings, versions and commands: what it takes to get these numbers again."""
    runs = [run for section in sections for run in section.runs]
    columns = [(label, section) for section in sections for label in section.methods]
    where = {s: s.title.replace("-", "\u2011") if sections[1:] else "" for s in sections}
    heads = [(label, where[section]) for label, section in columns]
    settings = differing(runs)
    rows = []
    for key, values in settings.items():
        cells = (dict.fromkeys(values.get(run, "–") for run in s.methods[label].values()) for label, s in columns)
        rows.append((key, [", ".join(cell) for cell in cells]))
    facts: dict[str, set[str]] = {}
    for info in [run.info for run in runs if run.info is not None]:
        known = {key: info.get(key) for key in ("versions", "commit", "hardware", "started")}
        known["seconds a run"] = None if (seconds := info.get("wall_seconds")) is None else f"{seconds:.0f}"
        for key, value in flatten(known).items():
            if value != "None":
                facts.setdefault(re.sub(r"^(versions|hardware)\.", "", key), set()).add(value)
    told = []
    for key, found in facts.items():
        values = sorted(found, key=lambda value: (len(value), value))
        ranged = len(values) > 1 and key in ("started", "seconds a run")
        told.append(f"{key} {values[0]} to {values[-1]}" if ranged else f"{key} {join(values)}")
    lines = []
    for command, group in commands(runs).items():
        seeds = sorted({run.seed for run in group if run.seed is not None})
        lines.append((f"{join(dict.fromkeys(run.label for run in group))}, seed {join(seeds)}", command))
    logs = [f"{run.label} from {run.folder}" for run in runs if run.info is None]
    facts_of = ["; ".join(told) + "."] if told else []
    if logs:
        facts_of.append(f"Read from logs, which hold no settings, versions or commands: {join(logs)}.")
    return {"head": [("setting", ""), *heads], "rows": rows, "facts": facts_of, "commands": lines}


PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
PAGES.filters["in_two"] = _in_two
_SCRIPT = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")


def render(sections: Sequence[Section]) -> str:
    """Render the whole page, which fetches nothing from elsewhere."""
    styles = method_styles(sections)
    runs = [run for section in sections for run in section.runs]
    lengths = {(info.get("rounds"), info.get("steps_per_round")) for info in (run.info or {} for run in runs)}
    rounds, steps = lengths.pop() if len(lengths) == 1 else (None, None)
    length = f" for {rounds} rounds" if rounds else ""
    length += f" of {steps} optimizer steps" if rounds and steps else ""
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    names = join(styles)
    lead = (
        "A trust region is the rule that says how far a token’s probability may move before it gets no more gradient. "
        f"This page {'compares' if len(styles) > 1 else 'shows'} {names}"
        f"{', trained with seed' + 's' * (len(seeds) > 1) + f' {join(seeds)}' if seeds else ''}{length}."
    )
    if any(each for section in sections for each in section.pairs.values()):
        baselines = join(dict.fromkeys(section.baseline for section in sections if section.baseline))
        lead += f" Runs with the same seed begin alike, so each is compared with its twin under {baselines}."
    scenes = dict.fromkeys(section.scene for section in sections)
    return PAGES.get_template("page.html.jinja").render(
        policy=Markup(policy(_SCRIPT)),
        script=Markup(_SCRIPT),
        light=LIGHT,
        dark=DARK,
        names=names,
        short=[(section.title if sections[1:] else "", in_short(section)) for section in sections],
        lead=lead,
        parts=[_section(section, styles) for section in sections],
        bounds=_bounds(sections, styles),
        maps=of_sections(sections),
        origin=_origin(sections),
        honest=[Markup(HONEST[scene]) for scene in scenes if scene in HONEST],
    )


def write_report(
    runs: Sequence[Path | str],
    output: Path,
    *,
    png: Path | None = None,
    baseline: str | None = None,
    trust: bool = False,
) -> Path:
    """Write the page, and the picture if `png` is given, about runs: each is PATH or LABEL=PATH of a run folder, of a
    folder that has such below it, or of a log of TRL or verl.

    `baseline` is the label that the others are compared with; by default the first that starts with "GRPO". With
    `trust`, the module of a user's rule is imported; without, the page names the rule and draws no bounds. Raises
    UserError, one line that names the path and what was expected, if a run is missing, corrupt or ambiguous. Then
    nothing is written: an older report is better than half a new one.
    """
    sections = read_sections(runs, baseline, trust=trust)
    content = {Path(output): render(sections).encode()} | ({Path(png): draw_png(sections)} if png else {})
    for path in content:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; expected the name of a file to write")
    for path, data in content.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    return Path(output)
