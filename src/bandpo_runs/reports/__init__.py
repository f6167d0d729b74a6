"""Everything rendered: pages, tables, figures and words about what ran elsewhere. Nothing is computed twice, or run."""

from ..faces import lazily

__getattr__ = lazily(__name__, {"write_figures": "figures", "write_report": "page"})
