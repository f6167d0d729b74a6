"""Regions: rules that make bounds of old log-probabilities, and are YAML nodes.

Read in this order: base, rules, control, combinators, adaptive; nodes reads a region from a config node, a short word
or a text.
"""

from .adaptive import *
from .base import *
from .combinators import *
from .control import *
from .nodes import *
from .rules import *
