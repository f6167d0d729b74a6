"""research/measurements/gpu.py, whole on a CPU with tiny sizes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from scripts import ROOT

from research.csv_rows import read_rows


@pytest.mark.slow
def test_every_part_gives_its_rows(tmp_path):
    out = tmp_path / "gpu.csv"
    command = [sys.executable, "-m", "research.measurements.gpu", "--device", "cpu", "--tiny", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_rows(out)
    assert list(dict.fromkeys(row["part"] for row in rows)) == ["loss", "compiled", "memory"]
    assert all(float(row["value"]) > 0 for row in rows)
