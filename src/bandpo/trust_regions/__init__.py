"""Regions: rules that make bounds of old log-probabilities, and are YAML nodes.

Read in this order: base, rules, combinators; nodes reads a region from a config node, a short word
or a text.
"""

from .base import *
from .combinators import *
from .nodes import *
from .rules import *
