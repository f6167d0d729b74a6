"""Make the report as a plain value. It has all numbers, sentences and curves of a comparison; `page` renders it."""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..config.recipe import leaves
from ..config.trust import blanked
from .panels import NUMBERS, PANELS, Figure, last_of
from .sections import Run, Section
from .templates import Table, cell
from .texts import MIN_SEEDS, join, show, summarize
from .verdicts import LIMITS, SCENES, verdicts


@dataclass(frozen=True)
class Part:
    """One section of the page."""

    title: str
    scene: str
    labels: list[str]
    figures: list[Figure]
    notes: list[str]
    tables: list[Table]


@dataclass(frozen=True)
class Report:
    """What the page says."""

    labels: list[str]  # of all methods
    lead: str
    verdicts: list[tuple[str, list[str]]]  # sentences on each part, under its title if there are several
    parts: list[Part]
    settings: Table | None  # that differ between runs
    facts: list[str]
    commands: list[str]
    limits: list[str]  # what the scenes do not show


def make_report(sections: Sequence[Section]) -> Report:
    """Compute everything that the page says, once."""
    runs = [run for section in sections for run in section.runs]
    labels = list(dict.fromkeys(label for section in sections for label in section.methods))
    return Report(
        labels=labels,
        lead=_lead(sections, runs, labels),
        verdicts=[(section.title if sections[1:] else "", verdicts(section)) for section in sections],
        parts=[_part(section) for section in sections],
        settings=_settings(sections, runs),
        facts=[*_facts(runs)],
        commands=list(
            dict.fromkeys(
                blanked(run.info.get("command") or "(not recorded)")
                for run in runs
                if run.info is not None
            )
        ),
        limits=[
            LIMITS[scene]
            for scene in dict.fromkeys(section.scene for section in sections)
            if scene in LIMITS
        ],
    )


def _lead(sections: Sequence[Section], runs: Sequence[Run], labels: Sequence[str]) -> str:
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    lead = (
        "A trust region is the rule that says how far a token’s probability may move before it gets no more gradient. "
        f"This page {'compares' if len(labels) > 1 else 'shows'} {join(labels)}"
    )
    lead += f", trained with seed{'s' * (len(seeds) > 1)} {join(seeds)}." if seeds else "."
    if any(pairs for section in sections for pairs in section.pairs.values()):
        baselines = join(dict.fromkeys(section.baseline for section in sections if section.baseline))
        lead += (
            f" Runs with the same seed begin alike, so each is compared with its twin under {baselines}."
        )
    return lead


# ---------------------------------------------------------------------------------------------------------- one section
def _part(section: Section) -> Part:
    notes = []
    for run in section.runs:
        if not run.finished:
            rounds = (run.info or {}).get("rounds") if section.axis == "round" else None
            length = f"{int(run.x[-1]) if len(run.x) else 0}{f' of {rounds}' if rounds else ''} {section.axis}s"
            notes.append(
                f"Unfinished: {run.name}, {length}{''.join(f' ({note})' for note in run.notes)}. It is drawn, but not "
                "in the tables, nor in the thick line if other seeds finished."
            )
        elif run.notes:
            notes.append(f"{run.name}: {join(run.notes)}.")
        if run.collapse is not None:
            notes.append(f"{run.name}: {run.collapse}.")
    by_label = {label: [*runs.values()] for label, runs in section.methods.items()}
    return Part(
        section.title,
        SCENES.get(section.scene or "", ""),
        [*by_label],
        [panel.figure(section.axis, by_label) for panel in section.panels],
        [*notes, *_missing(section)],
        [*_tables(section)],
    )


def _missing(section: Section) -> Iterator[str]:
    """Name the curves of the paper that are not in the logs."""
    for name in ("reward", "entropy", "clipped", "tail share"):
        if section.lacking(name):
            yield f"{PANELS[name].title}: no value in the log of {join(section.lacking(name))}."


def _tables(section: Section) -> Iterator[Table]:
    """Yield the final numbers, and the paired differences to the baseline."""
    finished, pairs = (
        section.finished,
        {label: each for label, each in section.pairs.items() if each},
    )
    finals, gaps = [], []
    for number in (*NUMBERS, *map(last_of, section.validated)):
        values = {run: number.of(run) for runs in finished.values() for run in runs.values()}
        if all(map(math.isnan, values.values())):
            continue
        name = number.name.format(x=section.axis)
        cells = [
            cell(summarize([values[run] for run in runs.values()], number.digits))
            for runs in finished.values()
        ]
        finals.append((name, [*cells, (number.meaning.format(x=section.axis),)]))
        row = []
        for each in pairs.values():
            differences = [values[run] - values[twin] for run, twin in each]
            seeds = " \u2002".join(
                show(gap, 0 if number.whole else number.digits, "+") for gap in differences
            )
            seeds = re.sub("([<>]) ", "\\1\u00a0", seeds)
            row.append(
                cell(
                    summarize(differences, number.digits, "+", "pairs "),
                    *([seeds] if each[1:] else []),
                )
            )
        gaps.append((name, row))
    if not finals:
        yield Table(
            "", [], [], ["No run of this section is finished, so there are no final numbers yet."]
        )
        return
    few = [label for label, runs in finished.items() if len(runs) < MIN_SEEDS]
    lengths = sorted({int(run.x[-1]) for runs in finished.values() for run in runs.values()})
    notes = {
        f"{join(few or [''])}: spread not estimated (fewer than {MIN_SEEDS} seeds).": bool(few),
        "Not reached: it would need more rounds than were run, so there is a median and no mean.": any(
            "not reached" in line for _, cells in finals for each in cells for line in each
        ),
        f"Runs end at {section.axis} {join(lengths)}: numbers over the whole run do not compare.": len(
            lengths
        )
        > 1,
        "The baseline did not run here, so there are no differences.": section.baseline is None,
        "A log does not say the seed of its run, so it has no paired difference.": bool(
            section.methods.keys() - {section.baseline} and any(run.seed is None for run in section.runs)
        ),
    }
    yield Table(
        f"Final numbers, mean {'' if len(few) == len(finished) else '± standard deviation '}over seeds",
        [
            ("measure", ""),
            *((label, f"n = {len(runs)}") for label, runs in finished.items()),
            ("definition", ""),
        ],
        finals,
        [note for note in notes if notes[note]],
        defined=True,
    )
    if pairs:
        few = [label for label in pairs if len(pairs[label]) < MIN_SEEDS]
        yield Table(
            f"Minus {section.baseline} with the same seed; in small print each pair",
            [
                ("measure", ""),
                *[
                    (label, f"seeds {' '.join(str(run.seed) for run, _ in each)}")
                    for label, each in pairs.items()
                ],
            ],
            gaps,
            [f"{join(few)}: spread not estimated (fewer than {MIN_SEEDS} pairs)."] if few else [],
        )


# ---------------------------------------------------------------------------------------------------------- all of them
def _settings(sections: Sequence[Section], runs: Sequence[Run]) -> Table | None:
    """List the settings that differ, except seed, label and output folders."""
    settings = {
        run: {key: str(value) for key, value in leaves(blanked(run.config)) if value != {}}
        for run in runs
        if run.config is not None
    }
    columns = [(label, section) for section in sections for label in section.methods]
    rows = []
    for key in dict.fromkeys(key for each in settings.values() for key in each):
        values = {run: each.get(key, "–") for run, each in settings.items()}
        if len(set(values.values())) > 1 and not re.search(r"^(seed|label|output)$|_dir$", key):
            cells = (
                dict.fromkeys(values.get(run, "–") for run in s.methods[label].values())
                for label, s in columns
            )
            rows.append((key, [(", ".join(each),) for each in cells]))
    return (
        Table(
            "Settings that differ",
            [
                ("setting", ""),
                *[
                    (label, section.title.replace("-", "\u2011") if sections[1:] else "")
                    for label, section in columns
                ],
            ],
            rows,
        )
        if rows
        else None
    )


def _facts(runs: Sequence[Run]) -> Iterator[str]:
    """Say with what the runs were made, and which of them are logs."""
    facts: dict[str, dict[str, None]] = {}
    for info in [run.info for run in runs if run.info is not None]:
        for key, value in leaves(
            {key: info.get(key) for key in ("versions", "commit", "hardware", "started")}
        ):
            if value not in ({}, None):
                facts.setdefault(re.sub(r"^(versions|hardware)\.", "", key), {})[str(value)] = None
    if facts:
        yield f"{'; '.join(f'{key} {join(values)}' for key, values in facts.items())}."
    logs = [f"{run.label} from {run.folder}" for run in runs if run.info is None]
    if logs:
        yield f"Read from logs, which hold no settings, versions or commands: {join(logs)}."
