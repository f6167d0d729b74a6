"""A rule of one's own in a config file: `{type: module:Class, ...}`, with the module imported where it is read."""

import json
import re
import subprocess
import sys
import textwrap

import pytest
import recipe
import yaml
from test_trl import train

import bandpo
import tiny
from bandpo import Capped, Objective, objective
from bandpo.errors import UserError
from bandpo.integrations.trl import BandPOConfig, BandPOTrainer
from bandpo.testing import check_trust_region
from bandpo.trust_regions import trust_region
from bandpo_runs.config import build
from bandpo_runs.doctor.hosts import own_type
from bandpo_runs.doctor.scripts import of_grpo
from bandpo_runs.reports.sections import read_runs
from bandpo_runs.training import on_trl

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar

import bandpo

NUMBER = 3


class Plain:
    def __init__(self, eps=0.2):
        self.eps = eps


class Bare(bandpo.Region):
    kind: ClassVar[str] = "bare_{name}"

    def bounds(self, old_logps, context=None): ...


@dataclass(frozen=True)
class Evened(bandpo.Region):
    \"\"\"The same factor up and down.\"\"\"

    kind: ClassVar[str] = "evened_{name}"
    factor: float = 1.25

    def bounds(self, old_logps, context=None):
        return bandpo.Clip(1 - 1 / self.factor, self.factor - 1).bounds(old_logps)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that has not been imported, where Python looks for modules; forgotten afterwards."""
    name = f"rules_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE.replace("{name}", name))
    (tmp_path / f"{name}_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for known in [known for known in sys.modules if known.startswith(name)]:
        del sys.modules[known]
    for kind in (f"evened_{name}", f"bare_{name}"):
        bandpo.trust_regions.base.Region.kinds.pop(kind, None)


def test_a_node_imports_its_rule_and_the_rule_writes_that_node(module):
    node = {"type": f"{module}:Evened", "factor": 2.0}
    region = trust_region(yaml.safe_load(yaml.safe_dump(node)))
    assert (region, region.to_config()) == (sys.modules[module].Evened(2.0), node)
    assert trust_region({"type": f"evened_{module}", "factor": 2.0}) == region  # the short name, from now on
    inside = Objective(Capped(region, 1.5), surrogate="mask")
    assert (inside.to_config()["trust_region"]["region"], objective(inside.to_config())) == (node, inside)
    check_trust_region(region)


def test_what_a_rule_writes_is_read_by_a_process_that_has_not_heard_of_it(module, tmp_path):
    """And a rule that no other process could import keeps its kind, which is seen where there is a script."""
    code = textwrap.dedent(
        f"""
        import dataclasses, sys, typing, bandpo
        sys.path.insert(0, {str(tmp_path)!r})
        print(bandpo.trust_regions.trust_region({trust_region({"type": f"{module}:Evened"}).to_config()!r}))
        @dataclasses.dataclass(frozen=True)
        class Mine(bandpo.Region):
            kind: typing.ClassVar[str] = "mine"
            def bounds(self, old_logps, context=None): ...
        def local():
            @dataclasses.dataclass(frozen=True)
            class Mine(bandpo.Region):
                kind: typing.ClassVar[str] = "local"
                def bounds(self, old_logps, context=None): ...
            Mine.__module__ = "somewhere"
            return Mine()
        print(Mine().to_config(), local().to_config(), bandpo.Clip().to_config())
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kinds = "{'type': 'mine'} {'type': 'local'} {'type': 'clip', 'eps_low': 0.2, 'eps_high': 0.2}"
    assert done.stdout == f"Evened(factor=1.25)\n{kinds}\n"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no_such_module:Evened", "'no_such_module' cannot be imported: ModuleNotFoundError: .*PYTHONPATH=. before"),
        ("{module}_broken:Evened", "'{module}_broken' cannot be imported: ZeroDivisionError: division by zero$"),
        ("{module}:Evend", "'{module}' has no Region 'Evend', a frozen dataclass"),
        ("{module}:Plain", "'{module}' has no Region 'Plain', a frozen dataclass"),
        ("{module}:NUMBER", "'{module}' has no Region 'NUMBER'"),
        ("{module}:Bare", "'{module}' has no Region 'Bare', a frozen dataclass$"),
        ("{module}:bandpo", "'{module}' has no Region 'bandpo'"),
        ("bandpo:Region", "'bandpo' has no Region 'Region'"),
        *((kind, None) for kind in ("a:b:c", ":Evened", "module:", "a b:c", "../module:Evened")),  # no class's name
    ],
)
def test_what_is_no_rule_is_named(module, kind, message, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    kind = kind.replace("{module}", module)
    why = f"trust region type {kind!r}: {message}" if message else f"no trust region type is called '{re.escape(kind)}'"
    with pytest.raises(ValueError, match="^" + why.replace("{module}", module)):
        trust_region({"type": kind})


EVIL, ONE = '{"type": "evilmod:X"}', {"type": "a.b:C"}
NODE = {"type": "objective", "trust_region": {"type": "intersect", "first": {"type": "clip"}}}
DEEP = (ONE, [{"type": "clip"}, ONE], {"x": [{"y": ONE}]}, {"type": (ONE,)})
TEXTS = ('{type: "evilmod:X"}', EVIL, "{type: capped, region: {type: evilmod:X}}")
TYPES = [
    *((each, None) for each in (NODE, "module:Class", None, {"name": "a:B"}, "band:kl:0.05", 'Band("kl", 0.05)', "{")),
    *((NODE | {"surrogate": each}, "a.b:C") for each in DEEP),
    *((each, "evilmod:X") for text in TEXTS for each in (text, {"trust_region": text})),
]  # fmt: skip


@pytest.mark.parametrize(("node", "kind"), TYPES)
def test_a_type_of_ones_own_is_found_at_any_depth_and_in_a_text_without_an_import(node, kind):
    assert own_type(node) == kind


@pytest.mark.parametrize("surrogate", ["clip", "mask"])
def test_it_trains_through_the_trainers_config(module, tmp_path, surrogate):
    rule = {"type": f"{module}:Evened", "factor": 1.05}
    node = rule if surrogate == "clip" else {"type": "objective", "trust_region": rule, "surrogate": surrogate}
    args = tiny.settings(tmp_path, BandPOConfig, trust_region=json.dumps(node), max_steps=2)
    trainer = train(BandPOTrainer, args)
    assert trainer.trust_region == sys.modules[module].Evened(1.05)
    assert objective(trainer.args.trust_region) == trainer.objective
    assert trainer.state.log_history[1]["bandpo/clip/high_fraction"] > 0


def test_bandpo_train_runs_an_objective_with_it(module, tmp_path):
    recipe.make(tmp_path)
    node = {
        "type": "objective",
        "trust_region": {"type": f"{module}:Evened", "factor": 1.05},
        "surrogate": ["mask", {"type": "preserve", "low": 0.5, "high": 1.0}],
    }
    for kind, why in (
        ("Evend", f"trust_region: trust region type '{module}:Evend': "),
        ("Evened", "unknown key 'facto'"),
    ):
        with pytest.raises(UserError, match=why):
            build({"trust_region": {"type": f"{module}:{kind}", "facto": 2.0}})
    settings = recipe.node(tmp_path, tmp_path / "run", rounds=2, trust_region=node)
    folder = on_trl.run(build(settings))
    (run,) = read_runs([folder])
    assert (run.rule, run.total("clip/count").sum() > 0) == (node, True)
    assert build(settings).objective.trust_region == sys.modules[module].Evened(1.05)
    assert yaml.safe_load((folder / "config.yaml").read_text())["trust_region"] == node
    settings = recipe.node(tmp_path, tmp_path / "other", trust_region=node, trainer={"delta": 2.0})
    with pytest.raises(UserError, match=r"^trainer: delta must not be set with .*dual_clip"):
        on_trl.run(build(settings))


@pytest.mark.parametrize(
    "code",
    [
        f"trust_region({EVIL})",
        f"trust_region(node={EVIL})",
        "trust_region(\"{type: 'evilmod:X'}\")",
        f"Objective(bandpo.trust_regions.trust_region({EVIL}))",
        f"Objective({EVIL})",
        f"Capped({EVIL}, 2.0)",
    ],
)
def test_a_script_with_a_type_of_ones_own_is_not_run(tmp_path, monkeypatch, code):
    (tmp_path / "evilmod.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "train.py").write_text(f"BandPOTrainer(args=GRPOConfig(), trust_region={code})\n")
    assert of_grpo([tmp_path / "train.py"])["trust_region"] is ...
