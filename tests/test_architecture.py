"""Layers point down only, importing bandpo costs nothing but torch, and the public names are what they were."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bandpo

SOURCE = Path(bandpo.__file__).parent
ROOT = Path(__file__).parent.parent

# A module may import modules of its own layer that stand before it, and all of the layers below.
LAYERS = [
    ["numerics", "bounds", "solver", "tables", "closed_forms", "divergences", "band"],  # maths
    # policy
    [
        "trust_regions",
        "rules",
        "combinators",
        "metrics",
        "aggregation",
        "penalties",
        "surrogates",
        "losses",
        "linear",
        "advantages",
    ],
    ["testing"],  # for users' own divergences and rules
    # one framework each, never each other
    [
        "integrations.trl",
        "integrations.verl",
        "integrations.torchrl",
        "integrations.liger",
        "integrations.skyrl",
        "integrations.tinker",
        "integrations.prime_rl",
    ],
    # application
    [
        "provenance",
        "words",
        "explain",
        "lab",
        "runs",
        "charts",
        "collapse",
        "report",
        "figures",
        "config",
        "workers",
        "equivalence",
        "quantities",
        "answers",
        "grading",
        "rewards",
        "sources",
        "leaks",
        "preparation",
        "data",
        "evaluation",
        "differences",
        "samples",
        "standing",
        "questions",
        "backends",
        "scores",
        "evaluate",
        "validation",
        "train",
        "compare",
        "show",
        "doctor",
        "cluster",
        "cli",
    ],
]
TORCH_ONLY = {*LAYERS[0], *LAYERS[1]}
# Every heavy library is at home in the modules that need it.
HOMES = {
    "trl": {"integrations.trl", "config"},
    "verl": {"integrations.verl"},
    "torchrl": {"integrations.torchrl"},
    "liger_kernel": {"integrations.liger"},
    "skyrl": {"integrations.skyrl"},
    "transformers": {"lab", "train", "preparation", "backends"},
    "tokenizers": {"lab"},
    "datasets": {"data", "sources", "validation"},
    "reasoning_gym": {"sources"},
    "matplotlib": {"charts", "figures"},
    "rich": {"show", "scores", "evaluate"},
    "pydantic": {"config"},
    "math_verify": {"equivalence"},
    "openai": {"backends"},
    "vllm": {"backends"},
}


def name_of(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(p): p for p in SOURCE.rglob("*.py") if p.name != "__init__.py"}
PLACE = {module: (layer, i) for layer, modules in enumerate(LAYERS) for i, module in enumerate(modules)}


def imports(module):
    """(our modules, foreign packages) that a module imports, anywhere in its text."""
    ours, foreign = set(), set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            foreign |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            foreign.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level]
            base = ".".join([*package, *([node.module] if node.module else [])])
            targets = [base] if base in MODULES else [".".join(filter(None, [base, a.name])) for a in node.names]
            ours |= {t for t in targets if t in MODULES}
    return ours, foreign - {"__future__", "bandpo"}


def test_every_module_has_its_layer():
    assert set(PLACE) == set(MODULES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down_only(module):
    ours, foreign = imports(module)
    layer, place = PLACE[module]
    for other in ours:
        assert PLACE[other] < (layer, place), f"{module} imports {other}"
        assert not (module.startswith("integrations.") and other.startswith("integrations."))
    stdlib = set(sys.stdlib_module_names)
    if module in TORCH_ONLY:
        assert foreign - stdlib <= {"torch"}
    for package in foreign & set(HOMES):
        assert module in HOMES[package], f"{module} imports {package}"


def test_importing_bandpo_loads_torch_and_no_framework():
    heavy = [*HOMES, "yaml", "triton", "ray", "verl", "vllm", "accelerate"]
    code = "import torch, sys; before = set(sys.modules); import bandpo; print(*(set(sys.modules) - before))"
    new = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    roots = {name.split(".")[0] for name in new}
    assert not roots & set(heavy)
    assert not [name for name in new if name.startswith("bandpo.") and name.removeprefix("bandpo.") not in TORCH_ONLY]


def test_the_public_names_and_signatures_are_the_recorded_ones():
    """A change here is a change for every user: record it on purpose, and in CHANGELOG.md."""
    lines = []
    for name in sorted(bandpo.__all__):
        thing = getattr(bandpo, name)
        signature = re.sub(r"<(\w+) object at 0x\w+>", r"<\1>", str(inspect.signature(thing)))
        lines.append(f"{name}{signature}")
        if inspect.isclass(thing):
            methods = {k: v for k, v in vars(thing).items() if not k.startswith("_")}
            for method, value in sorted(methods.items()):
                value = getattr(value, "__func__", value)
                lines.append(f"    {name}.{method}{inspect.signature(value) if inspect.isfunction(value) else ''}")
    recorded = (ROOT / "tests" / "api.txt").read_text(encoding="utf-8")
    assert "\n".join(lines) + "\n" == recorded


def test_links_of_the_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("https://"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
