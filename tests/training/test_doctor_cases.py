"""The doctor on setups as people keep them: scripts, settings and logs of every trainer (doctor_cases.yaml)."""

from pathlib import Path

import pytest
import yaml

from bandpo.errors import UserError
from bandpo_runs.training.doctor import examine

CASES = yaml.safe_load(Path(__file__).with_name("doctor_cases.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["is"])
def test_a_setup_has_these_findings(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in case.get("files", {}).items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    try:
        examined = [finding for finding in examine(case["arguments"]) if "says when a clip matters" not in finding.cure]
        findings = [f"{finding.level}: {finding.what}" for finding in examined]
    except UserError as error:
        findings = [f"UserError: {error}"]
    beginnings = [finding[: len(begin)] for finding, begin in zip(findings, case["findings"], strict=False)]
    assert (len(findings), beginnings) == (len(case["findings"]), case["findings"])
