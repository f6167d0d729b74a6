"""Layers point down only, importing bandpo costs nothing but torch, and the public names are what they were."""

import ast
import copy
import importlib
import inspect
import io
import itertools
import pickle
import pydoc
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from types import ModuleType

import grimp
import pytest

import bandpo
from bandpo.losses.surrogates import SurrogateWeight
from bandpo.trust_regions.base import Region

SOURCE = Path(bandpo.__file__).parent
ROOT = Path(__file__).parent.parent

CORE = {"errors", "numerics", "bounds", "band", "trust_regions", "losses"}
HEAVY = {
    "trl", "verl", "torchrl", "liger_kernel", "skyrl", "transformers", "tokenizers", "datasets", "reasoning_gym",
    "matplotlib", "filelock", "rich", "pydantic", "math_verify", "openai", "vllm", "yaml", "triton", "ray",
    "accelerate", "sympy", "numpy", "scipy", "typer", "numba",
}  # fmt: skip


def printed(code, *arguments):
    """What a program of its own prints, line by line."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_importing_bandpo_loads_torch_and_no_framework():
    def loaded(code):
        return [set(line.split()) for line in printed(code)]

    made = "import bandpo; bandpo.Band('kl'); bandpo.Objective()"
    torch_alone, both = loaded(f"import torch, sys; print(*sys.modules); {made}; print(*sys.modules)")
    new = both - torch_alone
    assert not {name.split(".")[0] for name in new} & HEAVY
    # Two that hold the modes which are off while a divergence is checked; the compiler would be hundreds.
    assert sum(name.startswith("torch.") for name in new) <= 4, sorted(new)
    assert {name.split(".")[1] for name in new if name.startswith("bandpo.")} <= CORE
    lazy, both = loaded("import bandpo, sys; dir(bandpo); print(*sys.modules); import torch; print(*sys.modules)")
    assert not {"torch"} & lazy | both & {f"bandpo.{name}" for name in CORE}


def test_rewards_and_statistics_load_no_torch():
    code = "import sys, bandpo.rewards, bandpo_runs.statistics.calibration"
    code += ", bandpo_runs.statistics.comparison, bandpo_runs.statistics.collapse"
    assert printed(f"{code}; print('torch' in sys.modules, 'pydantic' in sys.modules)") == ["False False"]


def test_one_module_of_the_core_may_be_imported_alone():
    code = "import sys; from bandpo.trust_regions import trust_region; print('bandpo.losses' in sys.modules)"
    code += "; print(trust_region({'type': 'ripo', 'delta': 0.1})); from bandpo import *; print(Band('kl').delta)"
    assert printed(code) == ["False", "RIPO(delta=0.1)", "0.05"]


def test_public_paths_hand_on_their_names():
    promised = {
        "bandpo.band": "Divergence band_bounds divergence divergence_at register_divergence",
        "bandpo.trust_regions": "Band Capped Clip Context Region Relaxed trust_region",
        "bandpo.losses": "Metrics aggregate group_advantages kl_penalty policy_loss surrogate token_logps",
        "bandpo.testing": "check_divergence check_trust_region",
        "bandpo_runs.toy": "SCENES SYMBOLS fresh_model prompts reward tokenizer warm_start",
        "bandpo.explain": "explain",
        "bandpo_runs.doctor": "Finding",
        "bandpo.rewards": "compute_score compute_score_dapo compute_score_dapo_strict dapo dapo_strict exact "
        "last_number math_reward",
        "bandpo_runs.cli": "main",
    }
    for path, names in promised.items():
        module = importlib.import_module(path)
        assert not [name for name in names.split() if isinstance(getattr(module, name), ModuleType)]


def test_the_core_imports_torch_and_nothing_else():
    """Contracts name what is forbidden; this is what is allowed."""
    graph = grimp.build_graph("bandpo", include_external_packages=True)
    parts = [name.split(".") for name in graph.modules]
    core = [".".join(each) for each in parts if each[:1] == ["bandpo"] and each[1:2] and each[1] in CORE]
    assert len(core) > 20
    for module in core:
        foreign = {name.split(".")[0] for name in graph.find_modules_directly_imported_by(module)}
        more = {"yaml"} if module == "bandpo.losses.nodes" else set()  # a config node is YAML anyway
        assert foreign - sys.stdlib_module_names <= {"bandpo", "torch"} | more, module


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"], ["lab", "--help"], []])
def test_help_and_version_load_no_torch(arguments):
    lines = printed(
        "import sys\n"
        "from bandpo_runs.cli import main\n"
        "main()\n"
        "heavy = ('torch', 'numpy', 'scipy', 'jinja2', 'trl', 'rich')\n"
        "print(len(sys.modules), *(name for name in heavy if name in sys.modules))",
        *arguments,
    )
    assert int(lines[-1]) < 320
    assert lines[0].startswith("bandpo 0." if arguments == ["--version"] else "Usage: bandpo")


def test_every_name_comes_from_its_module():
    """What type checkers read, by the lists of the modules, is what is found."""
    for name, module in bandpo._NAMES.items():
        home = importlib.import_module(f"bandpo.{module}")
        assert getattr(bandpo, name) is getattr(home, name)
        assert module in ("bounds", "trust_regions") or name in home.__all__


LIBRARY = [
    "band",
    "trust_regions",
    "losses",
    "integrations",
    "testing.py",
    "explain.py",
    SOURCE.parent / "bandpo_runs" / "doctor",
]


def test_a_rule_answers_for_itself():
    """How often the library asks which class a rule or an application is of; a new rule should add nothing."""

    def below(cls):
        return {cls.__name__ for cls in cls.__subclasses__()}.union(*map(below, cls.__subclasses__()))

    classes, asked, files = below(Region) | below(SurrogateWeight), [], within(*LIBRARY)
    for file, node in ((each, node) for each in files for node in ast.walk(TREES[each])):
        names: list[str] = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            names = [each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)]
        elif isinstance(node, ast.MatchClass):
            names = [getattr(node.cls, "id", "")]
        asked += [f"{file.name}:{node.lineno} {name}" for name in names if name in classes]
    assert len(files) > 40
    assert len(asked) <= 15, "\n".join(asked)


NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


TREES = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(SOURCE.parent.rglob("*.py"))}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def within(*folders):
    """The files of parts of the library."""
    return [file for file in TREES if any(file.is_relative_to(SOURCE / folder) for folder in folders)]


def documented(*kinds):
    """The file, the node and its docstring of everything that has one."""
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, kinds) and ast.get_docstring(node) is not None:
                yield file, node, ast.get_docstring(node)


def measured(files):
    """Statements without docstrings, and of a line of code tokens and of a thousand walruses."""
    statements, code = 0, []
    for file in files:
        nodes = list(ast.walk(TREES[file]))
        said = [node.body[0] for node in nodes if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None]
        statements += sum(isinstance(node, ast.stmt) for node in nodes) - len(said)
        of_docstrings = {line for each in said for line in range(each.lineno, each.end_lineno + 1)}
        tokens = tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline)
        code += [(file, x) for x in tokens if x.type not in NO_CODE and x.start[0] not in of_docstrings]
    lines = len({(file, x.start[0]) for file, x in code})
    return statements, len(code) / lines, 1000 * sum(x.string == ":=" for _, x in code) / lines


LIBRARY_FILES = [file for file in within("") if "rewards" not in file.parts]


@pytest.mark.parametrize(
    ("files", "most"),
    [(within("band", "trust_regions", "losses"), 1450), (LIBRARY_FILES, 3150)],
    ids=["core", "library"],
)
def test_the_library_is_small_and_its_lines_are_plain(files, most):
    """A limit of lines would be met by longer lines, so statements and the density of lines are limited."""
    statements, tokens, walruses = measured(files)
    assert len(files) > 20
    assert statements <= most, f"{statements} statements, at most {most}: delete some, or raise the limit and say why"
    assert tokens <= 10.2, f"{tokens:.2f} tokens a line, at most 10.2: shorter lines"
    assert walruses <= 4, f"{walruses:.1f} walruses a thousand lines, at most 4"


def test_a_name_says_what_it_holds():
    empty = ("found", "known", "given", "said", "kept", "asked")
    nodes = [(file, node) for file in LIBRARY_FILES for node in ast.walk(TREES[file])]
    named = [(file, node.lineno) for file, node in nodes if (getattr(node, "id", getattr(node, "arg", None))) in empty]
    assert named == []


def test_a_docstring_begins_with_a_short_sentence():
    """Under 80 characters to its first full stop, as CONTRIBUTING says."""
    heads = [(file, " ".join(text.partition("\n\n")[0].split())) for file, _, text in documented(DOCUMENTED)]
    assert [each for each in heads if len(each[1].partition(". ")[0].rstrip(".")) >= 80] == []


def test_lazy_names_are_like_others():
    assert not [name for name in dir(bandpo) if name not in bandpo.__all__ and not hasattr(bandpo, name)]
    assert pickle.loads(pickle.dumps(bandpo.policy_loss)) is bandpo.policy_loss
    assert copy.deepcopy(bandpo.Band("kl")) == bandpo.Band("kl")
    assert "Controller" in pydoc.render_doc(bandpo)
    with pytest.raises(AttributeError, match="no attribute 'band_bound', did you mean 'band_bounds'"):
        bandpo.band_bound  # noqa: B018


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
    """Those that sphinx does not read, too."""
    folders = (ROOT / "docs").rglob("*.md"), (ROOT / "research").rglob("*.md")
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *itertools.chain(*folders)):
        links = re.findall(r"\]\((?!https://|explorer\.html)([^)#\s]+)\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name


NOT_A_VERB = re.compile(
    r"(of|in|with|where|what|whether|how|those|that|see|from|for|by|who|which|when|as|at|on|to|the|an?|its|it)\b", re.I
)


def test_docstrings_of_functions_begin_with_a_verb():
    """Refuse first words such as "of", "what" and "the" in functions; help texts of commands may have them."""
    functions = [
        (file, node.lineno, text)
        for file, node, text in documented(ast.FunctionDef, ast.AsyncFunctionDef)
        if not any(".command(" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert len(functions) > 500
    assert [each for each in functions if NOT_A_VERB.match(each[2])] == []
