"""Plugins: objects that installed distributions register as entry points, found by group and name.

For example, the group `posttrain.rewards` extends the table of rewards. The value of an entry point is `MODULE:NAME`,
where NAME is the object, or a mapping that has the object under the entry point's name. A command may be a whole
MODULE. A plugin is imported only when its name is looked up. docs/plugins.md shows how to publish one.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Final

from posttrain.errors import PluginError, shortened
from posttrain.isolation.library import LIBRARY

PREFIX: Final = "posttrain."
OURS: Final = "posttrain"
"""The distribution and package of this library."""
GROUPS: Final = {
    "rewards": "rewards",
    "tasks": "tasks",
    "algorithms.advantages": "advantages of online training",
    "algorithms.surrogates": "policy losses of online training",
    "algorithms.losses": "losses of preference training",
    "trackers": "trackers of posttrain track",
    "commands": "commands of posttrain",
    "engines": "engines that sample",
    "engines.hosts": "ways to start a server of an engine on another host",
    "readers": "readers of other people's rollouts",
    "evaluators": "measurements of a policy",
    "exporters": "formats that posttrain push writes",
}
"""Group -> the kind of its plugins. The entry point group's name starts with `posttrain.`."""


@dataclass(frozen=True)
class Plugin:
    """One registered name."""

    group: str
    name: str
    value: str
    """MODULE:NAME."""
    distribution: str
    version: str

    @property
    def module(self) -> str:
        """Return the module that defines the object."""
        return self.value.partition(":")[0].strip()

    @property
    def variable(self) -> str:
        """Return the name of the object in its module."""
        return self.value.partition(":")[2].partition("[")[0].strip()

    @property
    def where(self) -> str:
        """Return the entry point's name for errors."""
        return f"plugin '{self.name}' of {PREFIX}{self.group}"

    @property
    def is_ours(self) -> bool:
        """Tell whether the plugin belongs to the library itself."""
        return self.module.partition(".")[0] == OURS

    @property
    def is_gone(self) -> bool:
        """Tell whether it is registered but its module is missing. Nothing is imported."""
        if self.is_ours:
            place = LIBRARY.joinpath(*self.module.split("."))
            return not (place.with_suffix(".py").is_file() or (place / "__init__.py").is_file())
        return find_spec(self.module.partition(".")[0]) is None

    @property
    def gone_fix(self) -> str:
        """Return the fix for the missing module of a plugin."""
        if self.is_ours:
            return f"Restore {'/'.join(self.module.split('.')[:3])}, e.g. with git checkout"
        return f"Install it again: python -m pip install --force-reinstall {self.distribution}=={self.version}"

    def load(self) -> Any:
        """Import the object. If that fails, raise a PluginError with the distribution's name."""
        from posttrain.settings.user_code import UnfinishedImport, ending_import

        try:
            with ending_import():
                module = importlib.import_module(self.module)
        except KeyboardInterrupt:
            raise
        except (UnfinishedImport, SystemExit) as error:
            why = str(error) if isinstance(error, UnfinishedImport) else f"it calls sys.exit({error}) at import"
            raise self.fault(why) from error
        except BaseException as error:  # whatever the plugin's file raises
            why = f"{self.module} cannot be imported ({type(error).__name__}: {shortened(str(error), 300)})"
            raise self.fault(why) from error
        if not self.variable:
            return module
        if not hasattr(module, self.variable):
            raise self.fault(f"the module {self.module} has no '{self.variable}'")
        loaded = getattr(module, self.variable)
        if isinstance(loaded, Mapping):
            if self.name not in loaded:
                raise self.fault(f"{self.value} is a mapping without the key '{self.name}'")
            return loaded[self.name]
        return loaded

    def fault(self, why: str) -> PluginError:
        """Return the error for a plugin that cannot be used."""
        fix = f"Install another version, or uninstall it: python -m pip uninstall {self.distribution}"
        if self.is_ours:
            fix = "Install posttrain again"
        what = f"the package {f'{self.distribution} {self.version}'.strip()} is broken: {why}"
        return PluginError(what=what, where=self.where, fix=f"{fix}. POSTTRAIN_TRACEBACK=1 shows the cause")


def registered(group: str) -> Mapping[str, list[Plugin]]:
    """Return the plugins of a group by name, including missing ones. Two distributions may use the same name."""
    return _all().get(group, {})


def names(group: str) -> list[str]:
    """Return the registered names of a group, without missing plugins."""
    return [name for name, plugins in registered(group).items() if any(not plugin.is_gone for plugin in plugins)]


def find(group: str, name: str) -> Plugin:
    """Return the plugin with this name. Raise KeyError if there is none, PluginError if two packages register it.

    Our own takes precedence, because installing a package must not change the meaning of a name.
    """
    plugins = [plugin for plugin in registered(group).get(name, ()) if not plugin.is_gone]
    plugins = [plugin for plugin in plugins if plugin.is_ours] or plugins
    if not plugins:
        raise KeyError(name)
    if len(plugins) > 1:
        which = " and ".join(f"{plugin.distribution} {plugin.version}" for plugin in plugins)
        fix = f"Uninstall one of them: python -m pip uninstall {plugins[-1].distribution}"
        raise PluginError(what=f"{which} register the same name", where=plugins[0].where, fix=fix)
    return plugins[0]


def or_package(fix: str) -> str:
    """Return the fix for an unknown name, including the package that may register it."""
    end = "" if not fix or fix.endswith(("?", ".")) else "."
    return f"{fix}{end} If a package registers the name, install it (docs/plugins.md)".strip()


def every() -> Iterator[Plugin]:
    """Yield all registered plugins of all groups, including missing ones."""
    for group in GROUPS:
        for plugins in registered(group).values():
            yield from plugins


@cache
def _all() -> dict[str, dict[str, list[Plugin]]]:
    """Return group -> name -> plugins, from all installed distributions."""
    groups: dict[str, dict[str, list[Plugin]]] = {}
    installed, ours = entry_points(), _of_checkout()
    for group in GROUPS:
        plugins = [_plugin(group, point) for point in installed.select(group=f"{PREFIX}{group}")]
        if ours is not None:
            plugins = [plugin for plugin in plugins if plugin.distribution != OURS]
            plugins += [
                Plugin(group, name, value, OURS, "") for name, value in ours.get(f"{PREFIX}{group}", {}).items()
            ]
        for plugin in sorted(set(plugins), key=lambda plugin: (plugin.name, plugin.distribution)):
            groups.setdefault(group, {}).setdefault(plugin.name, []).append(plugin)
    return groups


def _of_checkout() -> dict[str, dict[str, str]] | None:
    """Return group -> name -> value of a checkout's own plugins; None if the library is installed.

    The copy of an editable install is out of date after a `git pull`, and a checkout on PYTHONPATH has no copy.
    """
    try:
        project = tomllib.loads((LIBRARY / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return None
    return dict(project.get("entry-points", {})) if project.get("name") == OURS else None


def _plugin(group: str, point: EntryPoint) -> Plugin:
    name, version = (point.dist.name, point.dist.version) if point.dist else ("an unknown distribution", "")
    return Plugin(group, point.name, point.value, name, version)
