"""The estimators of `bandpo_runs.statistics` under the name that was promised for them."""

from .statistics import estimators, intervals, summary
from .statistics.estimators import *  # noqa: F403
from .statistics.intervals import *  # noqa: F403
from .statistics.summary import *  # noqa: F403

__all__: list[str] = []
__all__ += estimators.__all__
__all__ += intervals.__all__
__all__ += summary.__all__
