"""Render pages, tables and words about what ran elsewhere. Nothing is computed twice, or run."""

from ..faces import lazily

__getattr__ = lazily(__name__, {"write_report": "page"})
