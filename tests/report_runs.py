"""Run folders, and the pages made of them, for tests of the report."""

import base64
import hashlib
import shutil
import subprocess
from html import escape
from pathlib import Path

from disk import write

from bandpo_runs.reports.report import make_report
from bandpo_runs.reports.sections import read_sections

CLIP = {"type": "clip", "eps_low": 0.2, "eps_high": 0.2}
BAND = {"type": "band", "divergence": "kl", "delta": 0.05}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def write_run(root: Path, label="GRPO", seed=0, rows=(), config=None, **info) -> Path:
    folder = root / f"{label}-{info.get('learning_rate', 0)}-{seed}".replace(" ", "-").replace("/", "")
    facts = {
        "label": label, "method": "m", "seed": seed, "scene": "tail", "learning_rate": 5e-6, "rounds": len(rows),
        "steps_per_round": 64, "finished": True,
        "command": f"bandpo lab --rule '{label}' --rounds 10 --seed {seed} --output runs/{label}-{seed}",
        "versions": {"bandpo": "0.1.0", "torch": "2.13.0"},
        "hardware": "x86_64, 2 cores",
        "commit": "abc1234",
        "started": "2026-11-21T14:00:00+00:00",
        "wall_seconds": 88.1,
        **info,
    }  # fmt: skip
    settings = {"seed": seed, "output": str(folder), "trust_region": BAND if "Band" in label else CLIP}
    write(folder / "run.json", facts)
    write(folder / "config.yaml", {**settings, **(config or {})})
    write(folder / "metrics.jsonl", rows)
    return folder


def make_rows(work, **more):
    """A line a round: P(work) as given, reward 0.8 P(work), entropy 1 - P(work), counts that differ by round."""
    rows = []
    for index, p in enumerate(work):
        row = {"step": 64 * (index + 1), "round": index + 1, "lab/work": p, "reward": 0.8 * p, "entropy": 1 - p}
        row |= {"tokens": 1000 * (index + 1), "clip/count": 10 + index, "clip/tail_high_count": 5}
        row |= {"clip/fraction": 0.999, "clip/tail_high_share": 0.999}  # must lose against the counts
        row |= {"clip/good_tail_tokens": 50, "cut/good_tail_count": 4 + index, "cut/good_tail": 0.999}
        rows.append(row | {key: values[index] for key, values in more.items()})
    return rows


def ramp(half: int, rounds: int = 12):
    """P(work) is 0.01 until it is 0.75 from round `half` on."""
    return [0.01 if r < half else 0.75 for r in range(1, rounds + 1)]


def write_state(folder, rows, *, most=None, now=None):
    """What TRL leaves in its output_dir."""
    state = {"log_history": rows, "global_step": now} | ({} if most is None else {"max_steps": most})
    write(folder / f"checkpoint-{now}" / "trainer_state.json", state)
    return folder


def trls(step, reward=0.5, **more):
    """A row of TRL's GRPOTrainer."""
    row = {"step": step, "epoch": step / 100, "reward": reward, "entropy": 1.0, "reward_std": 0.1, "kl": 0.01}
    return row | {"clip_ratio/region_mean": 0.02, "clip_ratio/high_mean": 0.01, "clip_ratio/low_mean": 0.01} | more


def report_of(*sources, **options):
    """The report on runs, as data."""
    return make_report(read_sections(list(map(str, sources)), **options))


def cells(report, caption: str, part: int = 0):
    """The table whose caption begins so, as {row: {column: text}}; small print stands behind " | "."""
    found = [*report.parts[part].tables, *filter(None, [report.settings])]
    (table,) = [each for each in found if each.caption.startswith(caption) and each.rows]
    heads = [head for head, _ in table.head[1:]]
    texts = {name: [" ".join(" | ".join(cell).split()) for cell in row] for name, row in table.rows}
    return {name: dict(zip(heads, row, strict=True)) for name, row in texts.items()}


def browse(page: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The page in a frame as wide as a phone, as a window of chromium is at least 500 px wide; what comes out is the
    document around it, in which the page's script may have filled `measured`."""
    copy = write(
        folder / "copy.html",
        '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f'<pre id="measured"></pre><iframe width="375" height="800" style="border:0" srcdoc="{escape(page)}"></iframe>',
    )
    general = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
               "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
               f"--user-data-dir={folder / 'profile'}", "--hide-scrollbars"]  # fmt: skip
    command = [str(CHROMIUM), *general, *options, "--dump-dom", copy.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def with_script(page: str, script: str) -> str:
    """The page with one more script, which its policy takes by its hash as it takes the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    return page.replace("</body>", f"<script>{script}</script></body>")
