"""Render pages, tables and words about what ran elsewhere. Nothing is computed twice, or run."""
