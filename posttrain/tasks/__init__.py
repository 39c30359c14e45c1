"""Tasks: tables of prompts and the turns of an episode.

For your own task: `from posttrain.tasks import Generator, Task`.
"""

from posttrain.settings.params import Params
from posttrain.tasks.step import Step
from posttrain.tasks.task import Generator, Task

__all__ = ["Generator", "Params", "Step", "Task"]
