"""The estimators of `bandpo.statistics` under the name that was promised for them."""

from .statistics.estimators import *  # noqa: F403
from .statistics.estimators import __all__ as __all__
