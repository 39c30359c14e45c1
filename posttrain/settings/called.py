"""Settings that a script creates by calling their class. Mistakes are ParamsErrors; algorithms provide defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import ValidationError

from posttrain.errors import ParamsError
from posttrain.settings.host import HOST
from posttrain.settings.params import EXPLAINED, Params, faults

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(Params)


class Called(ModelMetaclass):
    """The metaclass of settings that a script may create by a call. Validation of plain data bypasses it."""

    if not TYPE_CHECKING:  # the fields are the arguments

        def __call__(cls, *args: Any, **given: Any) -> Any:  # noqa: N805  of a metaclass
            """Return the settings.

            A class with a preset starts from the algorithm's values: `OnlineConfig(algorithm="grpo", ...)` equals
            `OnlineConfig.preset("grpo", ...)`.
            """
            named = cls.__name__
            if args:
                what = f"settings must be passed by name, but {len(args)} came without a name"
                raise ParamsError(what=what, where=named, fix=f"Write {named}(seed=1), or {named}(**settings)")
            if "preset" in vars(cls):
                return cls.preset(**given) if "algorithm" in given else _refuse_no_algorithm(cls, given)
            try:
                return super().__call__(**given)
            except ValidationError as error:
                what, fix = faults(error, cls, given, named), HOST.fix("settings", EXPLAINED)
                raise ParamsError(what=what, where="arguments", fix=fix) from error


def _refuse_no_algorithm(cls: Any, given: Mapping[str, Any]) -> NoReturn:
    """Raise because the algorithm is missing. Also report keys that the class does not have for any algorithm."""
    what = f"{cls.__name__}.algorithm is missing"
    try:
        cls.preset(cls.example, **given)
    except ParamsError as error:
        what += f"; {error.what}" if "unknown key" in error.what else ""
    raise ParamsError(what=what, where="arguments", fix=f'Write {cls.__name__}.preset("{cls.example}", seed=1)')
