"""docs/report: what it says is what its rows say."""

from __future__ import annotations

import functools
import itertools
import json
import re

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, spearmanr

from research.bench.cells import cell, row_of
from research.bench.labs import is_lab
from research.report import __main__ as report
from research.report import rows
from research.report import tables as report_tables

TEXT = report.text()


def test_every_number_of_the_text_is_that_of_its_rows():
    found = rows.statements(TEXT)
    assert len(found) >= 20
    for said, name, one in found:
        assert said in rows.forms(one), f"{name}: the report says {said!r}, its rows say {rows.forms(one)}"


def cells(table):
    """Of a table in Markdown: for each of its cells the first of its line, the head of its column, and its text."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    head, _, *lines = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
    named = [(line[0].strip("*"), zip(head[1:], line[1:], strict=True)) for line in lines]
    return [(first, name.strip("*"), text) for first, each in named for name, text in each]


def names(row, kind, places):
    """What the first cell of a line and the head of a column may say of a row, in a table of a kind and of places."""
    if isinstance(row, rows.Measured):
        told = dict(row.row)
        if row.name == "tuning.csv":
            return {told["family"], f"best of {told['settings']}"}
        if row.name.startswith("smollm2"):
            over = {"right after": "mean", "right after, minus Clip 0.02/1.0": "minus Clip 0.02/1.0"}[told["measure"]]
            return {told["rule"], f"seed {told['seed']}" if row.name == "smollm2.csv" else over}
        return {told["what"], f"{told['rule']}, {told['scene']}, rate {told['learning_rate']}"}
    found = [one for one in rows.kept() if one.id == row.id]
    if kind == "overview":
        found = [one for one in found if f"{one.place[0]}: {one.place[1]}" in places and one.place[2] == places[0]]
    elif kind == "kinds":
        found = [one for one in found if one.place == tuple(places[:3])]
    elif kind != "bands":  # which has all places
        found = [one for one in found if set(places) <= set(one.place) or set(one.place) <= set(places)]
    families = {one.told["family"] for one in found}
    of_all = {"reward at the end", *(said for one in found for said in one.place[1:])}
    of_all |= {f"{world} ({contest})" for contest, world, _ in (one.place for one in found)}
    if kind == "widths":  # whose families are named by a rule and a number
        of_all |= {word for family in families for word in family.split()}
    return of_all | families | {f"{family} itself" for family in families}


def test_every_linked_number_of_a_table_is_that_of_its_line_and_column():
    tables = list(rows.TABLE.finditer(TEXT))
    assert len(tables) >= 20
    for match in tables:
        kind, *places = (part.strip() for part in match[2].split(";"))
        found = cells(match[0].split("-->\n", 1)[1].rsplit("<!--", 1)[0])
        linked = [(first, name, *link) for first, name, text in found for link in rows.LINK.findall(text)]
        assert found if kind == "fits" else linked, f"{match[2]}: an empty table"
        for first, name, said, *ids in linked:
            row = rows.of_link(*ids)
            assert said in rows.forms(row), f"{match[2]}: {first}, {name}: {said}, not {rows.forms(row)}"
            assert {first, name} <= names(row, kind, places), f"{match[2]}: {first}, {name}: {said}"


def holm(values):
    """By its definition, of as many p as there are."""
    order, out, last = sorted(range(len(values)), key=values.__getitem__), [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        out[i] = last = max(last, min(1.0, (len(values) - rank) * values[i]))
    return out


@functools.cache
def against(place, pairs, of):
    """By family, of pairs (family, other family of the contest `of`): differences on the seeds of the first, and Holm's
    p of signs drawn anew."""
    some, others = report_tables.at(*place), report_tables.at(of, *place[1:])
    gaps = {}
    for name, base in pairs:
        (first, count), (its_first, its_count) = some[name].row["seeds"], others[base].row["seeds"]
        assert first == its_first
        assert count <= its_count
        gaps[name] = np.array(some[name].row["final"]) - np.array(others[base].row["final"][:count])
    of_all = np.stack(list(gaps.values()))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (10000, of_all.shape[1]))
    as_far = np.abs(signs @ of_all.T) >= np.abs(of_all.sum(1)) - 1e-9
    found = holm(((1 + as_far.sum(0)) / (1 + len(signs))).tolist())
    return {name: (gap, p) for (name, gap), p in zip(gaps.items(), found, strict=True)}


def agrees(text, column, one, pairs, of):
    """Whether a cell that is no link says of a row what its runs do."""
    work, half = (np.array(one.row[name], float) for name in ("work", "half"))
    if column == "lost":
        return text == f"{100 * np.mean(work < 0.05):.1f} %"
    if column == "half":
        return text == f"{np.mean(half):.0f}"
    if column == "better":
        some = [np.array(each.row["final"], float) for each in (one, report_tables.at(*one.place)["fixed clip"])]
        return text == f"{100 * mannwhitneyu(*some).statistic / some[0].size / some[1].size:.1f} %"
    gap, p = against(one.place, pairs, of)[one.told["family"]]
    if column == "p (Holm)":
        return p < 0.01 if text == "< 0.001" else float(text) == pytest.approx(p, rel=0.3, abs=0.01)
    said = [float(x) for x in re.findall(r"[+-][0-9.]+", text)]
    error = gap.std() / len(gap) ** 0.5
    wanted = [gap.mean(), gap.mean() - 1.96 * error, gap.mean() + 1.96 * error]
    if len(said) == 3:  # with an interval, by another method than here
        return said[0] == pytest.approx(wanted[0], abs=6e-4) and said == pytest.approx(wanted, abs=6e-4 + error / 2)
    return said == pytest.approx(wanted[:1], abs=6e-4) and (0.03 < p < 0.08 or text.startswith("**") == (p < 0.05))


def place_of(kind, told, first, column):
    """Contest, world and control of a cell, and its family, from the table's arguments, its line and its column."""
    if kind == "overview":
        world, contest = re.fullmatch(r"(.*) \((.*)\)", first).groups()
        return (contest, world, told[0]), column
    place = {"controls": (*told, column), "worlds": (told[0], column, told[-1])}.get(kind, tuple(told[:3]))
    return place, first


def test_the_other_numbers_of_tables_are_those_of_their_runs():
    """Differences from the best fixed clip or fixed rule, what is bold, p, lost, half, and how many were tried."""
    seen = dict.fromkeys(("main", "kinds", "controls", "worlds", "overview"), 0)
    for match in rows.TABLE.finditer(TEXT):
        kind, *told = (part.strip() for part in match[2].split(";"))
        found = cells(match[0]) if kind in seen else []
        bases = tuple((first, text) for first, column, text in found if column == "fixed rule")
        for first, column, text in found:
            if column in ("chosen setting", "fixed rule") or not text or rows.LINK.search(text):
                continue
            place, family = place_of(kind, told, first, column)
            some = report_tables.at(*place)
            if column in ("settings", "seeds"):
                base = some["fixed clip"]
                assert int(text) == {"settings": base.told["searched"], "seeds": len(base.row["final"])}[column]
                continue
            pairs = bases or tuple((name, "fixed clip") for name in some if name != "fixed clip")
            if kind not in ("main", "kinds"):  # where the star stands at the family's name
                has_star = (len(text) - len(text.rstrip("*"))) % 2 == 1
                assert has_star == bool(some[family].told["edges"]), f"{place}: {first}, {column}: {text}"
                text = text.removesuffix("*") if has_star else text
            of = told[3] if kind == "kinds" else place[0]
            assert agrees(text, column, some[family], pairs, of), f"{place}: {first}, {column}: {text}"
            seen[kind] += 1
    assert seen.pop("kinds") >= 18
    assert min(seen.values()) > 30, seen


def test_of_widths_that_is_bold_which_the_seeds_of_the_choice_prefer():
    tables = [match for match in rows.TABLE.finditer(TEXT) if match[2].startswith("widths")]
    assert len(tables) == 2
    for match in tables:
        some = report_tables.at(*(part.strip() for part in match[2].split(";")[1:]))
        bold = {f"{rule} {width}" for rule, width, text in cells(match[0]) if text.startswith("**")}
        scores = {}
        for family, one in some.items():
            scores.setdefault(family.split()[0], {})[family] = one.told["chosen_with"]
        assert bold == {max(each, key=each.get) for each in scores.values()}


def of_signs(gap, thousands):
    """The p of differences whose signs are drawn anew."""
    draw = np.random.default_rng(0)
    sums = [draw.choice([-1.0, 1.0], (1000, len(gap))) @ gap for _ in range(thousands)]
    far = np.abs(np.concatenate(sums)) >= abs(gap.sum()) - 1e-9
    return (1 + far.sum()) / (1 + len(far))


def test_bands_that_are_sure_are_so_among_all_comparisons_of_a_band():
    (match,) = [match for match in rows.TABLE.finditer(TEXT) if match[2].startswith("bands")]
    names = [name.strip() for name in match[2].split(";")[1].split(",")]
    fixed = [one for one in rows.kept() if one.told["family"] == "fixed clip"]
    places = {one.place for one in fixed if not one.told["contest"].startswith("reuse")}  # which compare with no clip
    ps, gaps = {}, {}
    for place in places:
        some = report_tables.at(*place)
        for name in names:
            if name in some:
                gaps[name, place] = np.array(some[name].row["final"]) - np.array(some["fixed clip"].row["final"])
                ps[name, place] = of_signs(gaps[name, place], 20)
                if ps[name, place] < 0.001:  # which is multiplied by the number of comparisons
                    ps[name, place] = of_signs(gaps[name, place], 200)
    adjusted = dict(zip(ps, holm(list(ps.values())), strict=True))
    wanted = {key: gap.mean() for key, gap in gaps.items() if gap.mean() > 0 and adjusted[key] < 0.05}
    lines = [line[1:-1].split(" | ") for line in match[0].splitlines() if line.startswith("| Band")]
    told = {}
    for rule, of, control, _, gap, p in lines:
        world, contest = re.fullmatch(r"(.*) \((.*)\)", of).groups()
        told[rule.strip(), (contest, world, control)] = float(gap.split(" ")[0])
        assert float(p.strip(" <")) == pytest.approx(
            adjusted[rule.strip(), (contest, world, control)], rel=0.3, abs=0.01
        )
    assert told == pytest.approx(wanted, abs=0.0006)
    assert f"Holm, {len(ps)} comparisons" in match[0]


def test_the_rank_correlation_is_scipys_and_its_interval_that_of_runs_drawn_anew():
    draw = np.random.default_rng(0)
    level = np.arange(6)[:, None] / 4
    x, y = level + draw.normal(size=(6, 40)), level + draw.normal(size=(6, 12))
    y[2] = y[4]  # a tie, in every draw
    found, p = report_tables.rank_correlation(x, y)
    wanted = spearmanr(x.mean(1), y.mean(1)).statistic
    assert found.value == pytest.approx(wanted)
    orders = [spearmanr(order, y.mean(1)).statistic for order in itertools.permutations(x.mean(1))]
    assert p == np.mean(np.abs(orders) >= abs(wanted) - 1e-9)
    drawn = [
        spearmanr(x[:, draw.integers(40, size=40)].mean(1), y[:, draw.integers(12, size=12)].mean(1)).statistic
        for _ in range(2000)
    ]
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.05)


def test_tables_are_those_of_the_rows():
    """If not: `python -m research.report`."""
    assert report.filled(TEXT) == TEXT


def split(path):
    """A drawing without its numbers, and these."""
    decimal, text = re.compile(r"-?\d+\.\d+"), path.read_text(encoding="utf-8")
    return decimal.sub("x", text), [float(x) for x in decimal.findall(text)]


def test_the_figures_are_those_of_the_rows(tmp_path):
    """If not: `python -m research.report`. To a hundredth of a point: another processor rounds a fit in its own way."""
    report.draw(tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(path.name for path in report.PAGES.glob("*.svg"))
    for name in drawn:
        (words, places), (wanted, wanted_places) = map(split, (tmp_path / name, report.PAGES / name))
        assert words == wanted, name
        np.testing.assert_allclose(places, wanted_places, rtol=0, atol=0.01, err_msg=name)


def test_a_number_that_is_not_its_rows_is_seen():
    one = rows.kept()[0]
    ((said, name, of),) = rows.statements(f"It ends at [9.999](../../research/contests#{one.id}).")
    assert (name, of) == (one.id, one)
    assert said not in rows.forms(of)
    with pytest.raises(KeyError):
        rows.statements("It ends at [0.9](../../research/contests#zzzzzz).".replace("z", "0"))


def test_some_rows_are_those_of_a_new_run():
    """The first seeds of a few cells, trained again; not of the lab, which another machine rounds in its own way."""
    kept = [one for one in rows.kept() if not is_lab(one.row["world"])]
    for one in kept[:: max(1, len(kept) // 6)]:
        seeds = range(one.row["seeds"][0], one.row["seeds"][0] + 3)
        again = rows.train(one.row["world"], [rows.Learner(**one.row["learner"])], seeds)["final"][0]
        np.testing.assert_allclose(again, one.final[:3], rtol=0, atol=5.1e-5)  # four digits are kept


TOLD = {"metric": "final", "lost_below": 0.05}


def test_what_is_kept_of_a_contest_is_what_it_says(tmp_path, monkeypatch):
    one = next(each for each in rows.kept() if each.told["control"] == "none")
    monkeypatch.setattr(rows, "KEPT", tmp_path)
    rows.kept.cache_clear()
    first, count = one.row["seeds"]
    made = cell(one.row["world"], one.row["learner"], range(first, first + count), one.told["numbers"])
    given = row_of(made, dict.fromkeys(one.told["numbers"], [0.123456] * count))
    point, key = one.told["point"], one.row["key"]
    family = {
        "family": "fixed clip", "point": point, "searched": 4, "more": 0, "edges": [], "chosen_with": 0.5,
        "p_adjusted": None, "keys": [key],
    }  # fmt: skip
    table = {"worlds": ["both"], "control": "plain", "families": [family]}
    results = {"contest": {"name": "a try", **TOLD}, "commit": "abc", "tables": [table]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "rows.jsonl").write_text(json.dumps(given) + "\n")
    assert rows.take(tmp_path).name == "a-try.jsonl.xz"
    (found,) = rows.kept()
    assert found.row == {**one.row, **dict.fromkeys(rows.NUMBERS, [0.1235] * count)}
    assert found.place == ("a try", "both", "plain")
    rows.kept.cache_clear()
    for other in ({"metric": "mean"}, {"lost_below": 0.1}):  # of which the tables would tell something else
        (tmp_path / "results.json").write_text(json.dumps({**results, "contest": {"name": "a try", **TOLD, **other}}))
        with pytest.raises(ValueError, match=r"metric: final and lost_below: 0\.05"):
            rows.take(tmp_path)


IN_TORCH = {"type": "objective", "trust_region": {"type": "clip"}, "apply": "quadratic"}


@pytest.mark.parametrize(
    ("world", "rule"), [({"lab": "both", "start_seed": 0}, {"type": "clip"}), ("both", IN_TORCH)], ids=["lab", "torch"]
)
def test_of_what_takes_seconds_a_run_none_is_trained_again(world, rule, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "KEPT", tmp_path)
    learner = {"objective": rule, "learning_rate": 1e-4}
    values = {"final": [0.8, 0.1], "half": [20.0, 65.0], "work": [0.9, 0.001]}
    row = row_of(cell(world, learner, range(2), ("final", "half", "work")), values)
    family = {
        "family": "fixed clip", "point": {"learning_rate": 1e-4}, "searched": 4, "more": 0, "edges": [],
        "chosen_with": 0.5, "p_adjusted": None, "keys": [row["key"]],
    }  # fmt: skip
    table = {"worlds": ["lab both, start seed 0"], "control": "none", "families": [family]}
    results = {"contest": {"name": "lab", **TOLD}, "commit": "abc", "tables": [table]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    rows.kept.cache_clear()
    assert rows.take(tmp_path).name == "lab.jsonl.xz"
    (found,) = rows.kept()
    assert (found.row, "course" in found.told) == (row, False)
    rows.kept.cache_clear()


def test_a_difference_of_rows_of_other_seeds_is_refused():
    one = rows.kept()[0]
    other = rows.Kept(one.told, {**one.row, "seeds": [0, len(one.final)]})
    with pytest.raises(ValueError, match="rows that share no seed"):
        _ = rows.Pair(one, other).difference


def test_a_difference_of_rows_is_of_the_seeds_that_both_have():
    told = rows.kept()[0].told
    one = rows.Kept(told, {"key": "a" * 22, "seeds": [100, 4], "final": [0.5, 0.6, 0.7, 0.9]})
    other = rows.Kept(told, {"key": "b" * 22, "seeds": [98, 5], "final": [9.0, 9.0, 0.1, 0.2, 0.3]})
    pair = rows.Pair(one, other)
    assert [x.tolist() for x in pair.runs] == [[0.5, 0.6, 0.7], [0.1, 0.2, 0.3]]
    assert pair.difference.value == pytest.approx(0.4)


def test_a_row_of_another_table_is_told_by_what_it_is_of():
    one = next(each for each in rows.measured() if each.row["low"])
    value, low, high = (f"{float(one.row[name]):.3f}" for name in ("value", "low", "high"))
    ((said, _, found),) = rows.statements(f"It is [{value} [{low}, {high}]](../../research/contests#{one.id}).")
    assert found is one
    assert said in rows.forms(found)
    assert one.about in report.rows_page(f"[{value}](../../research/contests#{one.id})")
    assert all(one.row[name] in one.about for name in ("part", "rule", "learning_rate", "what", "measure"))
    again = rows.Measured(one.file, {**one.row, "value": "0.5"})
    assert (again.id, rows.Measured("other.csv", one.row).id == one.id) == (one.id, False)
