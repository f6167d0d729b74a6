"""The site: `python -m sphinx -W --keep-going docs site` writes it to site/, without a network; a warning is an error.

The pages are Markdown that also reads well where the repository is browsed. docs/_site/ has what Sphinx does not bring:
formulas as MathML, a page for every file of the repository that a page links to, and what the theme lacks.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_site"), str(HERE)]

import explorer  # noqa: E402

project = "bandpo"
author = "the authors of bandpo"
release = re.findall(r'__version__ = "(.*)"', (HERE.parent / "src/bandpo/__init__.py").read_text(encoding="utf-8"))[0]

extensions = ["myst_parser", "sphinx.ext.napoleon", "autoapi.extension", "sphinx_copybutton"]
extensions += ["formulas", "repository", "docstrings", "pictures", "rows", "sidebar", "whole", "promises"]  # of _site
exclude_patterns = ["_site"]

# An unknown reference is an error, in docstrings too. What is not bandpo's own has no page, nor have names of types.
nitpicky = True
types = "Aggregation|Generator|Interval|KLPenalty|Level|MetricSet|Radius|Surrogate"
nitpick_ignore_regex = [("py:.*", rf"(?!bandpo(_runs)?\.).*|.*\.({types})")]

myst_enable_extensions = ["dollarmath", "attrs_inline"]
myst_heading_anchors = 4

# Docstrings are read from the source: neither torch nor bandpo needs to be installed.
autoapi_dirs = ["../src/bandpo", "../src/bandpo_runs"]
autoapi_ignore = [*(f"*/bandpo/{part}" for part in ("files.py", "explain.py", "rewards/*"))]
autoapi_ignore += [
    f"*/bandpo_runs/{part}/*" for part in ("cli", "config", "data", "doctor", "evals", "files", "reports", "training")
]
autoapi_generate_api_docs = False
autoapi_options = ["members", "show-inheritance"]
autoapi_python_class_content = "class"
autoapi_member_order = "bysource"
suppress_warnings = ["autoapi.python_import_resolution"]  # constants, which have no page
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "code"
add_module_names = False

# Nothing is fetched: the theme uses the reader's own fonts.
html_theme = "furo"
html_title = "bandpo"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_use_index = False  # of names; the page API has them in order
explorer.write()
# As they are: pictures of <picture>, which Sphinx does not read, and pages that are whole in themselves.
html_extra_path = [path.name for suffix in ("svg", "html") for path in HERE.glob(f"*.{suffix}")]
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
