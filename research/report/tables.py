"""The tables of the report, from its rows: see __main__.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from re import Match

import numpy as np
from scipy.stats import rankdata

from research.statistics import Estimate, SigmoidFit, bootstrap, holm, sigmoid_fit, swap_test

from .rows import TABLE, Kept, Measured, Pair, chance, kept, measured, number, share, with_interval


def fit_of(one: Kept) -> SigmoidFit:
    """ScaleRL's sigmoid of its course, in rounds."""
    return sigmoid_fit(one.told["course"][1:])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown: the first column to the left, the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def at(contest: str, world: str, control: str) -> dict[str, Kept]:
    """By family."""
    return {one.told["family"]: one for one in kept() if one.place == (contest, world, control)}


def link(said: str, one: Kept | Measured) -> str:
    """Say a number of a row, with a link to the rows and its id."""
    return f"[{said}](../../research/contests#{one.id})"


def baseline_of(some: Mapping[str, Kept]) -> Kept:
    return some["fixed clip"]


def main_table(contest: str, world: str, control: str) -> str:
    """Every family beside the best fixed clip, the best first."""
    some = at(contest, world, control)
    base, lines = baseline_of(some), []
    for one in sorted(some.values(), key=lambda one: -one.value.value):
        pair = Pair(one, base)
        p = one.told["p_adjusted"]
        lines.append([
            f"{one.told['family']}{'*' if one.told['edges'] else ''}", one.setting,
            link(with_interval(one.value), one),
            "" if one is base else with_interval(pair.difference, "+"),
            "" if p is None else chance(p, bare=True),
            "" if one is base else share(pair.better), share(one.lost.value), f"{one.half:.0f}",
        ])  # fmt: skip
    head = ["rule", "chosen setting", "reward at the end", "minus best fixed clip", "p (Holm)"]
    return table([*head, "better", "lost", "half"], lines)


def kinds_table(contest: str, world: str, control: str, of: str, *kinds: str) -> str:
    """Families beside a fixed rule that each varies, as the contest `of` chose it, on the seeds of both; a kind
    is `fixed rule: family, family`. p is by Holm's method over all families of the table."""
    some, fixed = at(contest, world, control), at(of, world, control)
    lists = [(base, [name.strip() for name in names.split(",")]) for base, names in (x.split(":") for x in kinds)]
    pairs = [(base, Pair(some[name], fixed[base.strip()])) for base, names in lists for name in names]
    lines = []
    for (base, pair), p in zip(pairs, holm([pair.p for _, pair in pairs]).tolist(), strict=True):
        one = pair.one
        lines.append([
            one.told["family"], one.setting, link(with_interval(one.value), one), base,
            with_interval(pair.difference, "+"), chance(p, bare=True),
        ])  # fmt: skip
    head = ["rule", "chosen setting", "reward at the end", "fixed rule", "minus fixed rule", "p (Holm)"]
    return table(head, lines)


def control_table(contest: str, world: str) -> str:
    """For every family, under each control, its reward minus that of the best fixed clip under the same control."""
    controls = dict.fromkeys(one.told["control"] for one in kept() if one.place[:2] == (contest, world))
    return differences({control: at(contest, world, control) for control in controls})


def worlds_table(contest: str, control: str) -> str:
    """For every family and world its reward minus that of the best fixed clip there."""
    worlds = dict.fromkeys(one.told["world"] for one in kept() if one.told["contest"] == contest)
    return differences({world: at(contest, world, control) for world in worlds})


def differences(columns: Mapping[str, Mapping[str, Kept]]) -> str:
    """Every family minus the best fixed clip of its column, ordered by the first."""
    lines = [["**fixed clip itself**", *(itself(some) for some in columns.values())]]
    first = sorted(next(iter(columns.values())).values(), key=lambda one: -one.value.value)
    for family in (one.told["family"] for one in first if one.told["family"] != "fixed clip"):
        lines.append([family, *(difference(some, family) for some in columns.values())])
    return table(["rule", *columns], lines)


def itself(some: Mapping[str, Kept]) -> str:
    """A cell: the reward of the best fixed clip."""
    base = baseline_of(some)
    return link(number(base.value.value), base) + ("*" if base.told["edges"] else "")


def difference(some: Mapping[str, Kept], family: str) -> str:
    """A cell: a family minus the best fixed clip; bold where p < 0.05 after Holm, with a star as in `main_table`."""
    if (one := some.get(family)) is None:
        return ""
    text = number(Pair(one, baseline_of(some)).difference.value, "+")
    return (f"**{text}**" if one.told["p_adjusted"] < 0.05 else text) + ("*" if one.told["edges"] else "")


def overview_table(control: str, families: str, *places: str) -> str:
    """Some families minus the best fixed clip, in worlds of several contests: `contest: world`, a line each."""
    names, lines = [name.strip() for name in families.split(",")], []
    for contest, world in (place.split(": ") for place in places):
        some = at(contest, world, control)
        base = baseline_of(some)
        lines.append([
            f"{world} ({contest})", str(base.told["searched"]), str(base.row["seeds"][1]), itself(some),
            *(difference(some, name) for name in names),
        ])  # fmt: skip
    return table(["world (contest)", "settings", "seeds", "fixed clip itself", *names], lines)


def bands_table(families: str) -> str:
    """Where one of these families ends above the best fixed clip, after Holm over all comparisons of them with it, in
    every world and under every control of the contests whose baseline it is."""
    names = [name.strip() for name in families.split(",")]
    places = [at(*place) for place in dict.fromkeys(one.place for one in kept())]
    contests = [some for some in places if "fixed clip" in some and some["fixed clip"].told["p_adjusted"] is None]
    pairs = [Pair(some[name], baseline_of(some)) for some in contests for name in names if name in some]
    # a small p is multiplied by so many that chance in it would show
    ps = [swap_test(*pair.runs, draws=200_000) if pair.p < 0.001 else pair.p for pair in pairs]
    adjusted = zip(pairs, holm(ps).tolist(), strict=True)
    above = [(pair, p) for pair, p in adjusted if pair.difference.value > 0 and p < 0.05]
    lines = []
    for pair, p in sorted(above, key=lambda each: -each[0].difference.value):
        (contest, world, control), one = pair.one.place, pair.one
        lines.append([
            one.told["family"], f"{world} ({contest})", control, link(number(one.value.value), one),
            with_interval(pair.difference, "+"), chance(p, bare=True),
        ])  # fmt: skip
    told = f"p (Holm, {len(pairs)} comparisons)"
    return table(["rule", "world (contest)", "control", "reward at the end", "minus best fixed clip", told], lines)


def fits_table(contest: str, world: str) -> str:
    """ScaleRL's sigmoid of each family's mean reward, or why it has none."""
    lines = []
    for family, one in at(contest, world, "none").items():
        fit = fit_of(one)
        numbers = [number(fit.asymptote), f"{fit.middle:.1f}", f"{fit.exponent:.1f}"] if not fit.why_not else [""] * 3
        lines.append([family, *numbers, number(fit.residual), fit.why_not])
    return table(
        ["rule", "asymptote A", "half of the gain (rounds)", "steepness B", "residual", "no fit, because"], lines
    )


def freezes_table(*columns: str) -> str:
    """The share of lost runs by what is frozen; a column is scene, rule and learning rate, with : between them."""
    head = [column.split(":") for column in columns]
    found = {
        (row["what"], row["scene"], row["rule"], row["learning_rate"]): one
        for one in measured()
        if one.name == "extinction.csv" and (row := one.row)["part"] == "freeze" and row["measure"] == "lost"
    }
    lines = []
    for what in dict.fromkeys(what for what, *place in found if place in head):
        cells = [found.get((what, *place)) for place in head]
        lines.append([what, *("" if one is None else link(share(one.value.value), one) for one in cells)])
    return table(["frozen", *(f"{rule}, {scene}, rate {rate}" for scene, rule, rate in head)], lines)


def tuning_table() -> str:
    """The expected reward of the best of so many settings, drawn at random."""
    rewards = [one for one in measured() if one.name == "tuning.csv" and one.row["measure"] == "reward"]
    rewards = [one for one in rewards if one.row["control"] == "none"]
    found = {(one.row["family"], one.row["settings"]): one for one in rewards}
    counts = list(dict.fromkeys(count for _, count in found))
    lines = []
    for family in dict.fromkeys(family for family, _ in found):
        cells = [found[family, count] for count in counts]
        lines.append([family, *(link(number(one.value.value), one) for one in cells)])
    return table(["rule", *(f"best of {count}" for count in counts)], lines)


def radii_table(contest: str, control: str) -> str:
    """The reward of families that are named by their number, such as "KL 0.05", with the learning rate of each."""
    worlds = dict.fromkeys(one.told["world"] for one in kept() if one.told["contest"] == contest)
    columns = {world: at(contest, world, control) for world in worlds}
    lines = []
    names = sorted(next(iter(columns.values())), key=lambda name: (name.split()[0], float(name.split()[-1])))
    for family in names:
        cells = [some[family] for some in columns.values()]
        told = [(link(with_interval(x.value), x), f"{x.told['point']['learning_rate']:.2g}") for x in cells]
        lines.append([family, *(text for pair in told for text in pair)])
    return table(["rule", *(text for world in worlds for text in (world, "rate"))], lines)


def widths_table(contest: str, world: str, control: str) -> str:
    """The reward of families that are named by a rule and a number, a line for each rule; bold is the number that the
    seeds of the choice prefer."""
    some = at(contest, world, control)
    names = [name.split() for name in some]
    widths = sorted({width for _, width in names}, key=float)
    lines = []
    for rule in dict.fromkeys(rule for rule, _ in names):
        found = [some[f"{rule} {width}"] for width in widths]
        best = max(found, key=lambda one: one.told["chosen_with"])
        texts = [link(number(one.value.value), one) for one in found]
        lines.append([rule, *(f"**{text}**" if one is best else text for text, one in zip(texts, found, strict=True))])
    return table(["rule", *widths], lines)


def sides_table(contest: str, control: str) -> str:
    """The reward in every world, a line each, of families that are named by their number; bold as in `differences`."""
    some = [one for one in kept() if (one.told["contest"], one.told["control"]) == (contest, control)]
    names = sorted({one.told["family"] for one in some}, key=lambda name: float(name.split()[-1]))
    lines = []
    for world in dict.fromkeys(one.told["world"] for one in some):
        found = at(contest, world, control)
        texts = [link(number(found[name].value.value), found[name]) for name in names]
        sure = [(found[name].told["p_adjusted"] or 1) < 0.05 for name in names]
        lines.append([world, *(f"**{text}**" if bold else text for text, bold in zip(texts, sure, strict=True))])
    return table(["world", *names], lines)


def carried_table(contest: str, world: str, other: str, other_world: str, control: str) -> str:
    """The reward of the families that two contests have, in a world of each, and the rank correlation of the two."""
    first, second = at(contest, world, control), at(other, other_world, control)
    both = sorted(first.keys() & second.keys(), key=lambda name: -first[name].value.value)
    lines = [[name, *(link(with_interval(one.value), one) for one in (first[name], second[name]))] for name in both]
    x, y = (np.stack([some[name].final for name in both]) for some in (first, second))
    found, p = rank_correlation(x, y)
    said = f"rank correlation {with_interval(found)} over seeds, for these rules; over rules {chance(p)}"
    return f"{table(['rule', world, other_world], lines)}\nOf the two columns: {said}.\n"


def pretrained_table(baseline: str, settings: str) -> str:
    """The share of right answers of a pretrained model after each run, and over runs; settings is their digest."""
    found: dict[str, dict[str, str]] = {}
    names = {"right after": "mean", f"right after, minus {baseline}": f"minus {baseline}"}
    for one in measured():
        row = one.row
        if row.get("settings") != settings or row["measure"] not in names:
            continue
        single = one.name == "smollm2.csv"
        column = f"seed {row['seed']}" if single else names[row["measure"]]
        sign = "+" if row["measure"] != "right after" else ""
        text = number(one.value.value) if single else with_interval(one.value, sign)
        found.setdefault(row["rule"], {})[column] = link(text, one)
    seeds = sorted({name for cells in found.values() for name in cells if name.startswith("seed")})
    columns = [*seeds, *names.values()]
    order = sorted(found, key=lambda rule: (rule != baseline, rule))
    return table(["rule", *columns], ([rule, *(found[rule].get(name, "") for name in columns)] for rule in order))


def rank_correlation(x: np.ndarray, y: np.ndarray) -> tuple[Estimate, float]:
    """Spearman's, of the means of [rules, seeds], and how often the rules in another order give one as far from 0.

    For the interval seeds are drawn anew, for x and y apart; the rules stay.
    """

    def of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b = (rankdata(z.mean(-1), axis=-1) for z in (x, y))
        a, b = (z - z.mean(-1, keepdims=True) for z in (a, b))
        return (a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1))

    orders = np.array(list(itertools.permutations(range(len(x)))))
    by_chance = np.abs(of(x.mean(-1, keepdims=True)[orders], y.mean(-1, keepdims=True)[None]))
    found = bootstrap(of, x, y, paired=False, groups=[0] * len(x))
    return found, float((by_chance >= abs(found.value) - 1e-9).mean())


TABLES: dict[str, Callable[..., str]] = {
    "fits": fits_table,
    "main": main_table,
    "kinds": kinds_table,
    "controls": control_table,
    "worlds": worlds_table,
    "overview": overview_table,
    "bands": bands_table,
    "freezes": freezes_table,
    "tuning": tuning_table,
    "radii": radii_table,
    "widths": widths_table,
    "sides": sides_table,
    "carried": carried_table,
    "pretrained": pretrained_table,
}


def filled(text: str) -> str:
    """The text with its tables anew: `<!-- table: kind; argument; ... -->` to `<!-- end -->`."""

    def anew(match: Match[str]) -> str:
        kind, *arguments = (part.strip() for part in match[2].split(";"))
        return f"{match[1]}\n{TABLES[kind](*arguments)}\n{match[3]}"

    return TABLE.sub(anew, text)
