"""Configure runs. A recipe in YAML, with bases and overrides, becomes a checked description of a run."""

from .recipe import DataConfig, RunConfig, build, load

__all__ = ["DataConfig", "RunConfig", "build", "load"]
