"""Worlds: small tasks with exact expected reward, in which a thousand training runs take seconds, for any rule.

Read in this order: scenes, draws, world, learner, reference (the engine in torch), kernel (the one in numba), training.
Numba is loaded where its engine is used.
"""

from .learner import Learner
from .scenes import SCENES, Scene, scene
from .training import train, why_not_numba
from .world import Exact, World, make_world

__all__ = ["SCENES", "Exact", "Learner", "Scene", "World", "make_world", "scene", "train", "why_not_numba"]
