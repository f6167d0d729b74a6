"""docs/report: what it says is what its rows say, and says where it was seen."""

import csv
import io
import json
import re
import shutil
import statistics
import subprocess
import sys

import numpy as np
import pytest

import bandpo
from research import grid
from research.bench.cells import cell, row_of
from research.bench.labs import is_lab
from research.report import __main__ as report
from research.report import matter, rows
from research.worlds import Learner, train

PAGE = (report.PAGES / "index.md").read_text(encoding="utf-8")
LEARNING_RATE = report.ROOT / "research" / "measurements" / "learning_rate.csv"


def words(text):
    """What a reader reads: no addresses of links, pictures, code or lines of tables."""
    text = re.sub(r"```.*?```|!\[[^\]]*\]\([^)]*\)|<[^>]*>", " ", text, flags=re.DOTALL)
    return re.sub(r"\|[-|]*", " ", re.sub(r"\]\([^)]*\)", "]", text)).split()


def numbers(text):
    """Results: numbers with a decimal point or a percent sign; settings are code."""
    return re.findall(r"[+-]?\d*\.\d+(?: %)?|\d+ %", re.sub(r"`[^`]*`", " ", " ".join(words(text))))


def test_every_number_of_a_page_is_that_of_its_rows():
    statements = rows.statements(report.text())
    assert len(statements) >= 20
    for words, name, one in statements:
        assert words in rows.forms(one), f"{name}: the page says {words!r}, its rows say {rows.forms(one)}"


def test_every_result_of_the_readme_stands_on_a_page_with_its_row():
    """The README links to no row; what its table says is on a page with its rows, or of the demo."""
    text = (report.ROOT / "README.md").read_text(encoding="utf-8")
    assert "rows.csv#" not in text
    table = text.partition("## Should you use it?")[2].partition("[The idea]")[0]
    pages = ("docs/choose.md", "docs/report/index.md", "research/pages/smollm2.md")
    there = " ".join((report.ROOT / page).read_text(encoding="utf-8") for page in pages)
    demo = {"9.0", "6.4", "6.3", "5.9"}  # which tests/test_pages.py compares with their rows
    gains = {"0.15", "0.23", "0.05", "0.16"}  # of the table at four times the best rate, rounded
    assert len(numbers(table)) >= 15
    assert all(number in there for number in {*numbers(table)} - demo - gains)
    by_world = matter.at_rates(4)
    for rule, told in (("Band-KL .05", (0.15, 0.23)), ("GRPO", (0.05, 0.16))):
        rows_of_rule = [by_world[world][rule] for world in ("calibrated, 4 x 4", "calibrated, 8 x 2")]
        assert [float(row["final_minus_first"]) for row in rows_of_rule] == pytest.approx(told, abs=0.0051)


def test_what_is_said_of_bands_and_clips_is_true_of_the_figure():
    differences = [pair.difference for pair in report.against_clips()]
    ahead, behind = ([x.value for x in differences if x.low > 0], [x.value for x in differences if x.high < 0])
    assert statistics.median(ahead) < 0.01
    assert statistics.median(behind) < -0.02
    assert (
        f"ahead in {len(ahead)} of {len(differences)} comparisons, mostly by less than a hundredth. "
        f"It is behind in {len(behind)}, mostly by more than two hundredths."
    ) in PAGE
    gaps = [pair.difference.value for pair in report.against_clips() if not pair.one.place[0].startswith("lab")]
    assert (len(gaps), sum(gap > 0.02 for gap in gaps), sum(gap < -0.02 for gap in gaps)) == (34, 2, 7)


def test_what_is_said_of_fifteen_rules_is_true_of_each():
    """Within .02 at one use; later no gain beyond about a hundredth, and in fork no loss either."""
    gaps = {}
    with report.ROWS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (
                row["contest"] in ("reuse once", "reuse more", "reuse eight", "reuse others", "reuse relaxed")
                and row["from"] == "no clip"
            ):
                place = (row["world"].partition(",")[0], int(row["uses"]), int(row["mini-batches"]))
                gaps.setdefault(place, []).append([float(row[f"difference{end}"]) for end in ("", " low", " high")])
    gaps = {place: np.array(ends) for place, ends in gaps.items() if place[0] in ("calibrated", "fork")}
    assert {len(ends) for ends in gaps.values()} == {15}
    for (world, uses, _), ends in gaps.items():
        if world == "calibrated" and uses == 1:
            assert (abs(ends) < 0.02).all()
        assert (ends[:, 0] < 0.0115).all()
        assert (ends[:, 2] < 0.02).all()
        if world == "fork":
            assert (ends[:, 0] > -0.0115).all()
    assert (gaps["fork", 4, 4][:, 1] > 0).all()
    assert gaps["fork", 4, 4][:, 0].max() == pytest.approx(0.01, abs=0.0015)


def test_half_the_best_learning_rate_costs_more_than_any_rule():
    once = [one for one in rows.all_rows() if one.told["contest"] == "reuse once"]
    costs = {row["learning_rate"]: -float(row["difference"]) for row in rows.read_rows(LEARNING_RATE)}
    furthest = max(abs(rows.Pair(one, base).difference.value) for one in once if (base := rows.baseline_of(one)))
    assert costs["0.0314"] > furthest
    assert "Training at half the best learning rate lowered the score more than any rule did." in PAGE


def test_weight_and_bonus_keep_a_rare_way_alive_without_a_clip_and_under_three_rules():
    seen = {}
    for ((contest, world, control), family), one in rows.judged().items():
        if contest in ("reuse rare controls", "reuse others controls") and world.startswith("rare"):
            plain = rows.judged()[("reuse others", world, "none"), family]
            assert rows.Pair(one, plain).difference.low > 0, (world, control, family)
            seen.setdefault((control, rows.shape(one)[0]), set()).add(family)
    assert {uses for _, uses in seen} == {1, 2, 4, 8}
    for control in ("positives x .85", "entropy bonus"):
        for uses in (1, 8):
            assert seen[control, uses] == {"no clip", "GRPO .2/.2", "fixed clip", "Band-KL .05"}


def test_the_page_has_at_most_900_words_beside_its_tables():
    assert len(words(re.sub(r"^\|.*", "", PAGE, flags=re.MULTILINE))) <= 900


def test_the_tables_are_those_of_the_rows():
    """If not: `python -m research.report` prints them."""
    assert all(table in PAGE for table in (matter.sides(), matter.forgiven()))


def test_what_is_said_of_one_epoch_is_true_of_eleven_rules():
    once = [row for row in rows.read_rows(matter.GRIDS / "ways_rates.csv") if row["world"] == "1 use x 4"]
    clips = [row for row in once if row["rule"] != "no clip" and not re.search("bonus|x .85|two levels", row["rule"])]
    assert len(clips) == 10
    furthest = {name: max(abs(float(row[f"{name}_minus_first"])) for row in clips) for name in ("final", "harder")}
    assert furthest["final"] < 0.005
    assert furthest["harder"] < 0.01
    assert "ten clips and bands stayed within 0.005 in pass@1 and within 0.01 in coverage" in PAGE


def test_what_is_said_of_tuned_rules_at_one_epoch_is_true_of_fifteen():
    once = rows.read_rows(matter.GRIDS / "tuned_once.csv")
    base = {row["learning_rate"]: row for row in once if row["rule"] == "no clip"}
    for name, most in {"final": 0.006, "pass16": 0.006, "entropy": 0.003}.items():
        assert max(abs(float(row[name]) - float(base[row["learning_rate"]][name])) for row in once) < most + 5e-5
    claims = rows.read_rows(matter.GRIDS / "tuned_once_claims.csv")
    lost = sorted(-float(claim["difference"]) for claim in claims if claim["verdict"] == "open")
    assert (len(lost), lost[0], lost[-1]) == pytest.approx((4, 0.016, 0.020), abs=5e-4)


def test_what_is_said_of_a_rate_that_is_too_high_is_true_of_all_worlds():
    """Which rules gain over no clip at four times its best rate, and what they cost at the best one."""
    gained, cost, once = {}, {}, []
    for world, by_rule in matter.at_rates(4).items():
        for rule, row in by_rule.items():
            gap, half = float(row["final_minus_first"]), float(row["final_half_width"])
            if ", 1 x" in world:
                once.append(gap)
            else:
                gained.setdefault(rule, []).append(gap > half)
                cost[rule] = min(float(each[rule]["final_minus_first"]) for each in matter.at_rates(1).values())
    assert {rule: sum(won) for rule, won in gained.items() if sum(won) >= 10} == {
        "Band-KL .05": 11, "Band-KL .005": 10, "Clip .2/1": 10,
    }  # fmt: skip
    assert cost["Band-KL .05"] > -0.01
    assert min(cost["Band-KL .005"], cost["Clip .2/1"]) > -0.015
    assert cost["GRPO"] == pytest.approx(-0.066, abs=5e-4)
    assert max(once) == pytest.approx(0.06, abs=5e-4)


def test_what_is_said_of_the_labs_transformer_is_its_claims():
    first, *_ = rows.read_rows(rows.ROOT / "research" / "grids" / "lab_claims.csv")
    said = f"{float(first['difference']):.2f} ± {float(first['half_width']):.2f}"
    assert f"Band-KL `0.05` gained [{said}](../../research/grids/lab_claims.csv)" in PAGE
    assert (first["a"], first["b"], first["rate"], first["verdict"]) == ("Band-KL .05", "no clip", "4", "holds")
    assert float(first["b_mean"]) < 0.05


def test_shares_outside_are_of_settings_that_were_judged():
    judged = {(*one.place, one.told["family"], one.setting): one for one in rows.all_rows()}
    assert rows.measured().keys() <= judged.keys()
    assert all(judged[key].outside == share for key, share in rows.measured().items())


def test_the_table_of_rows_is_that_of_the_contests():
    """If not: `python -m research.report`. One row in eight is computed again, and its difference in another way."""
    with report.ROWS.open(encoding="utf-8", newline="") as file:
        header, *written = csv.reader(file)
    some = rows.all_rows()[::8]
    assert len(written) == len(rows.all_rows())
    assert [header, *written[::8]] == [*csv.reader(io.StringIO(rows.as_csv(some)))]
    for one, line in zip(some, written[::8], strict=True):
        told = dict(zip(header, line, strict=True))
        if told["from"]:
            gap = one.final - rows.judged()[one.place, told["from"]].final
            error = gap.std() / len(gap) ** 0.5
            assert float(told["difference"]) == pytest.approx(gap.mean(), abs=6e-4)
            ends = [float(told[f"difference {end}"]) for end in ("low", "high")]
            normal = [gap.mean() - 1.96 * error, gap.mean() + 1.96 * error]  # it is skewed where few differ
            assert ends == pytest.approx(normal, abs=6e-4 + 0.6 * error)
        assert float(told["lost %"]) == pytest.approx(100 * one.row["lost"] / len(one.final), abs=0.051)


def split(path):
    """A drawing without its numbers, and these."""
    decimal, text = re.compile(r"-?\d+\.\d+"), path.read_text(encoding="utf-8")
    return decimal.sub("x", text), [float(x) for x in decimal.findall(text)]


def test_the_figure_is_that_of_the_rows(tmp_path):
    """If not: `python -m research.report`. To a hundredth of a point, as processors round."""
    matter.save(tmp_path / "matter.svg", matter.points())
    (words, places), (wanted, wanted_places) = map(split, (tmp_path / "matter.svg", report.PAGES / "matter.svg"))
    assert words == wanted
    np.testing.assert_allclose(places, wanted_places, rtol=0, atol=0.01)


def test_the_points_are_those_of_the_rows(tmp_path):
    """If not: `python -m research.report`."""
    grid.write(tmp_path / "points.csv", matter.points())
    assert (tmp_path / "points.csv").read_text() == report.POINTS.read_text()


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome found")
@pytest.mark.parametrize("query", ["?rows={first}-{last}", "?rule=GRPO+.2/.2&uses=8", ""])
def test_the_page_of_rows_shows_those_that_were_asked_for(query, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(report.ROOT / "docs" / "_site"), *sys.path])
    import rows as site  # of docs/_site

    with report.ROWS.open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    ids = [line["id"] for line in written]
    pair = {ids[0], ids[-1]}
    wanted = {
        "?rows={first}-{last}": [line for line in written if line["id"] in pair],
        "?rule=GRPO+.2/.2&uses=8": [line for line in written if (line["rule"], line["uses"]) == ("GRPO .2/.2", "8")],
        "": written,
    }[query]
    path = tmp_path / "rows.html"
    path.write_text(site.page(), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    address = path.as_uri() + query.format(first=ids[0], last=ids[-1])
    page = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=120).stdout
    lines = re.search(r'<tbody id="body">(.*?)</tbody>', page, re.DOTALL)[1].split("<tr>")[1:]
    shown = [re.findall(r"<td[^>]*>([^<]*)</td>", line)[-1] for line in lines]
    assert shown == [line["id"] for line in wanted][:200]
    assert f"{len(wanted)} of {len(written)} rows" in page


def test_a_number_that_is_not_its_rows_is_seen():
    one = rows.all_rows()[0]
    ((words, name, of),) = rows.statements(f"It ends at [9.999](../report/rows.csv#{one.id}).")
    assert (name, of) == (one.id, one)
    assert words not in rows.forms(of)
    with pytest.raises(KeyError):
        rows.statements("It ends at [0.9](rows.csv#000000).")


def test_some_rows_are_those_of_a_new_run():
    """The first seeds of a few cells, trained again; not of the lab, which another machine rounds in its own way."""
    of_worlds = [one for one in rows.all_rows() if not is_lab(one.row["world"])]
    for one in of_worlds[:: max(1, len(of_worlds) // 6)]:
        seeds = range(one.row["seeds"][0], one.row["seeds"][0] + 3)
        again = train(one.row["world"], [Learner(**one.row["learner"])], seeds)["final"][0]
        np.testing.assert_allclose(again, one.final[:3], rtol=0, atol=5.1e-5)  # four digits are kept


def test_the_rule_of_every_row_can_be_read():
    for one in rows.all_rows():
        bandpo.objective(one.row["learner"]["objective"])


TOLD = {"metric": "final", "lost_below": 0.05}


def test_what_is_kept_of_a_contest_is_what_it_says(tmp_path, monkeypatch):
    one = next(each for each in rows.all_rows() if each.told["control"] == "none")
    monkeypatch.setattr(rows, "KEPT", tmp_path)
    rows.all_rows.cache_clear()
    first, count = one.row["seeds"]
    made = cell(one.row["world"], one.row["learner"], range(first, first + count), one.told["numbers"])
    row = row_of(made, {name: [0.123456] + [0.01] * (count - 1) for name in one.told["numbers"]})
    point, key = one.told["point"], one.row["key"]
    family = {
        "family": "fixed clip", "point": point, "searched": 4, "more": 0, "edges": [], "chosen_with": 0.5,
        "p_adjusted": None, "keys": [key],
    }  # fmt: skip
    table = {"worlds": ["rare and noisy"], "control": "plain", "families": [family]}
    results = {"contest": {"name": "a try", **TOLD}, "commit": "abc", "tables": [table]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert rows.take(tmp_path).name == "a-try.jsonl.xz"
    (one_row,) = rows.all_rows()
    numbers = {
        "final": [0.1235, *[0.01] * (count - 1)],
        "lost": count - 1,
        "half": round((0.123456 - 0.01) / count + 0.01, 4),
    }
    assert one_row.row == {**one.row, **numbers}
    assert one_row.place == ("a try", "rare and noisy", "plain")
    rows.all_rows.cache_clear()
    for other in ({"metric": "mean"}, {"lost_below": 0.1}):  # of which the tables would tell something else
        (tmp_path / "results.json").write_text(json.dumps({**results, "contest": {"name": "a try", **TOLD, **other}}))
        with pytest.raises(ValueError, match=r"metric: final and lost_below: 0\.05"):
            rows.take(tmp_path)


def test_a_difference_of_rows_of_other_seeds_is_refused():
    one = rows.all_rows()[0]
    other = rows.Kept(one.told, {**one.row, "seeds": [0, len(one.final)]})
    with pytest.raises(ValueError, match="rows that share no seed"):
        _ = rows.Pair(one, other).difference


def test_a_difference_of_rows_is_of_the_seeds_that_both_have():
    told = rows.all_rows()[0].told
    one = rows.Kept(told, {"key": "a" * 22, "seeds": [100, 4], "final": [0.5, 0.6, 0.7, 0.9]})
    other = rows.Kept(told, {"key": "b" * 22, "seeds": [98, 5], "final": [9.0, 9.0, 0.1, 0.2, 0.3]})
    pair = rows.Pair(one, other)
    assert [x.tolist() for x in pair.runs] == [[0.5, 0.6, 0.7], [0.1, 0.2, 0.3]]
    assert pair.difference.value == pytest.approx(0.4)
