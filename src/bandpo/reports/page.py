"""Run folders as one HTML page that needs no network and, if asked, as one picture."""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..files import POLICY, blanked, write_atomically
from ..statistics.collapse import find_collapse
from .charts import DARK, LIGHT, Styles, draw_bounds, draw_panel, draw_png, draw_swatch, method_styles, svg
from .runs import MIN_SEEDS, PANELS, Row, Run, Section, make_sections, ratio_bounds, read_runs

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
    "storm": "<b>The storm scene asks what a clip protects.</b> Over five seeds (benchmarks/lab.csv), training without "
    "a clip mostly lost a skill that was there, and every clip mostly kept it; an unlucky seed was lost under all. A "
    "few seeds on one small task show that a clip matters; they do not rank the clips.",
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
    key, figures, panels = "", "", section.panels
    for label in section.methods:
        swatch = svg(lambda ax, look=styles[label]: draw_swatch(ax, look), f"{section.title} {label}", 14, bare=True)
        key += f"<li>{swatch}{escape(label)}</li>"
    for panel in panels:
        name = f"{section.title}: {panel.title}, {panel.unit}, by {section.axis}, for {join(section.methods)}"
        drawing = svg(lambda ax, panel=panel: draw_panel(ax, panel, section, styles), name)
        figures += _figure(panel.title, drawing, panel.meaning)
    notes = []
    for run in section.runs:
        if not run.finished:
            rounds = run.info.get("rounds")
            of = f" of {rounds}" if section.axis == "round" and rounds else ""
            why = " (the last line of metrics.jsonl is cut off)" if run.cut_off else ""
            length = f"{int(run.x[-1]) if len(run.x) else 0}{of} {section.axis}s{why}"
            notes.append(
                f"Unfinished: {run.label}, seed {run.info['seed']}, {length}. It is drawn, but not in the tables, "
                "nor in the thick line if other seeds of it finished."
            )
        collapse = find_collapse(run.mean("reward"), run.mean("entropy"), run.x, axis=section.axis)
        if collapse is not None:
            notes.append(f"{run.label}, seed {run.info['seed']}: {collapse}.")
    if missing := [panel.title for panel in PANELS if panel not in panels and not panel.optional]:
        notes.append(f"Not logged by these runs: {join(missing)}.")
    return (
        f'<section><div class="panels"><header><h2>{escape(section.title)}</h2>'
        f"<p>{SCENES.get(section.scene or '', '')} <span>Thin lines: seeds. Thick lines: their mean.</span></p>"
        f'<ul class="key">{key}</ul></header>{figures}</div>{_notes(notes)}{_tables(section)}</section>'
    )


def _tables(section: Section) -> str:
    """The final numbers of the finished runs and, below them, the paired differences to the baseline."""
    rows, done, pairs = section.table(), section.finished, section.pairs
    if not rows:
        return _notes(["No run of this section is finished, so there are no final numbers yet."])
    few = [label for label, runs in done.items() if len(runs) < MIN_SEEDS]
    notes = [f"{join(few)}: spread not estimated (fewer than {MIN_SEEDS} seeds)."] if few else []
    if any("not reached" in text for row in rows for text in row.summaries.values()):
        notes.append("Not reached: it would need more rounds than were run, so no mean; a median, or a limit of it.")
    if len(lengths := sorted({int(run.x[-1]) for runs in done.values() for run in runs.values()})) > 1:
        notes.append(f"Runs end at {section.axis} {join(lengths)}: numbers over the whole run do not compare.")
    if section.baseline is None:
        notes.append("The baseline did not run here, so there are no differences.")
    spread = "mean over seeds" if len(few) == len(done) else "mean ± standard deviation over seeds"
    head = [f"{escape(label)}<small>n = {len(runs)}</small>" for label, runs in done.items()]
    body = [[escape(row.name), *map(_cell, row.summaries.values()), escape(row.meaning)] for row in rows]
    page = _table(f"Final numbers, {spread}", ["measure", *head, "definition"], body, "defined") + _notes(notes)
    if pairs:
        caption = f"Minus {escape(str(section.baseline))} with the same seed; in small print each pair"
        seeds = {m: escape(" ".join(str(run.info["seed"]) for run, _ in pairs[m])) for m in pairs}
        head = [f"{escape(m)}<small>seeds {seeds[m]}</small>" for m in pairs]
        body = [[escape(row.name), *(_difference(row, label) for label in pairs)] for row in rows]
        page += _table(caption, ["measure", *head], body)
        if few := [label for label in pairs if len(pairs[label]) < MIN_SEEDS]:
            page += _notes([f"{join(few)}: spread not estimated (fewer than {MIN_SEEDS} pairs)."])
    return page


def _difference(row: Row, label: str) -> str:
    each = " &ensp;".join(map(_cell, row.pairs[label])) if len(row.pairs[label]) > 1 else ""
    return _cell(row.differences[label]) + (f"<small>{each}</small>" if each else "")


def _bounds(sections: Sequence[Section], styles: Styles) -> str:
    rules = {run.label: run.region for section in sections for run in section.runs}
    p, rows = np.array([0.01, 0.1, 0.8]), []
    for label, region in rules.items():
        low, high = (np.minimum(bound * p, 1) for bound in ratio_bounds(region, p))
        rows.append([escape(label), *(f"{a:.3f}–{b:.3f}" for a, b in zip(low, high, strict=True))])
    name = f"Bounds of the probability ratio by old probability, for {join(rules)}; numbers in the table"
    drawing = svg(lambda ax: draw_bounds(ax, rules, styles), name, 300)
    meaning = "lower ≤ π(a) / π_old(a) ≤ upper, for p = π_old(a). Dotted: 1/p, where the new probability is 1. "
    meaning += "A line that leaves the picture goes to 0 or to infinity."
    table = _table("Where the probability p of a token may go", ["method", *(f"p = {x:g}" for x in p)], rows)
    return (
        "<section><h2>The trust regions</h2><p>A token outside its interval that would move further out gets no "
        "gradient. How far a rare token may rise is where rules differ most.</p>"
        f'<div class="pair">{_figure("Bounds of the ratio", drawing, meaning)}{table}</div></section>'
    )


def flatten(node: Any, prefix: str = "") -> dict[str, str]:
    """{"a": {"b": 1}} -> {"a.b": "1"}"""
    if not isinstance(node, dict):
        return {prefix: str(node)}
    parts = (flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in node.items())
    return {key: value for part in parts for key, value in part.items()}


def differing(runs: Sequence[Run]) -> dict[str, dict[Run, str]]:
    """The settings that differ between runs, except the seed, the label and where the output goes."""
    flat = {run: flatten(blanked(run.config)) for run in runs}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    keys = [key for key in keys if not re.search(r"^(seed|label|output)$|_dir$", key)]
    table = {key: {run: settings.get(key, "–") for run, settings in flat.items()} for key in keys}
    return {key: values for key, values in table.items() if len(set(values.values())) > 1}


def commands(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each command; commands that differ only where each has its own seed are one, with SEED there."""
    words = {run: re.split(r"(\d+)", blanked(run.info.get("command") or "(not recorded)")) for run in runs}
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
    length = f" for {escape(str(rounds))} rounds" if rounds else ""
    length += f" of {escape(str(steps))} optimizer steps" if rounds and steps else ""
    seeds = sorted({run.info["seed"] for run in runs})
    names = escape(join(styles))
    lead = (
        "A trust region is the rule that says how far a token’s probability may move before it gets no more gradient. "
        f"This page {'compares' if len(styles) > 1 else 'shows'} {names}, trained with "
        f"{'seeds' if len(seeds) > 1 else 'seed'} {escape(join(seeds))}{length}."
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
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{POLICY}'
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
    UserError, one line that names the path and what was expected, if a run is missing, corrupt or ambiguous. Then
    nothing is written: an older report is better than half a new one.
    """
    sections = make_sections(read_runs(runs), baseline)
    content = {Path(output): render(sections).encode()} | ({Path(png): draw_png(sections)} if png else {})
    for path in content:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; expected the name of a file to write")
    for path, data in content.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    return Path(output)
