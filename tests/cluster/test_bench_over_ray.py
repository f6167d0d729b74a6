"""`python -m research.bench --ray` on a Ray of this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from contests import node_of

pytestmark = pytest.mark.slow


def test_the_rows_and_numbers_over_ray_are_those_of_this_process(tmp_path):
    controls = [{"name": "none"}, {"name": "chance", "by_chance": True}]
    node = node_of(worlds=[{"base": "rare and noisy", "rounds": 3}], controls=controls)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(node))
    rows, found = [], []
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for name, options in (("here", []), ("over", ["--ray"])):
        command = [sys.executable, "-m", "research.bench", "small.yaml", "-o", name, "--json", *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=600
        )
        assert ("Started a local Ray instance" in done.stderr) == bool(options)
        assert "ray.init() again" not in done.stderr
        rows.append(sorted((tmp_path / name / "rows.jsonl").read_text().splitlines()))
        found.append(json.loads(done.stdout))
    assert len(rows[0]) > 90
    assert rows[1] == rows[0]
    assert found[1]["tables"] == found[0]["tables"]
