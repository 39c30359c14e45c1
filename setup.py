"""The packages of the wheel: those under posttrain/, and the folders that pyproject.toml puts inside the pipeline.

pyproject.toml can find packages or list them, but it cannot do both.
"""

from setuptools import find_namespace_packages, setup

MOVED = ["posttrain.pipeline.stages", "posttrain.pipeline.flows"]

setup(packages=[*find_namespace_packages(include=["posttrain*"]), *MOVED])
