"""Scalar heads: a family's `...ForSequenceClassification`, also where transformers has none.

On disk both are the same: the backbone's tensors under the family's own prefix, `score.weight` [1, hidden] beside them
and `num_labels` 1 in config.json. transformers loads the first kind, `load_scorer` both.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from posttrain.errors import ModelError
from posttrain.models.forward import backbone

SUFFIX = "ForSequenceClassification"


def is_scorer(model: Any) -> bool:
    """Whether the model scores text and writes none."""
    return type(model).__name__.endswith(SUFFIX)


def scorer_name(model_type: str) -> str:
    """The architecture of a family's scorer: transformers' own name, or one made like it."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )

    own = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(model_type)
    return own or re.sub("(ForCausalLM|LMHeadModel)$", "", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]) + SUFFIX


def model_class(config: Any) -> Any:
    """The class that config.architectures names, which must be one of transformers' or a scorer."""
    import transformers

    name = config.architectures[0]
    found = getattr(transformers, name, None)
    if found is None and name == scorer_name(config.model_type):
        return _generic(name, config.model_type)
    if found is None:
        fix = "Use an architecture of this version of transformers; code from the Hub is never run"
        raise ModelError(what=f"unknown architecture '{name}'", where="config.json", fix=fix)
    return found


def with_score(model: Any, where: str) -> Any:
    """The language model's backbone, with a scalar head that starts at 0 in place of the head that writes."""
    config = model.config
    config.architectures, config.num_labels = [scorer_name(config.model_type)], 1
    with torch.device("meta"):
        scorer = model_class(config)(config)
    head = getattr(scorer, "score", None)
    same = type(scorer.base_model) is type(backbone(model))
    if not same or not isinstance(head, nn.Linear) or dict(head.named_parameters()).keys() != {"weight"}:
        what = f"{type(scorer).__name__} is not the backbone of {type(model).__name__} with one matrix `score`"
        raise ModelError(what=what, where=where, fix="Use a family that docs/models.md lists")
    setattr(scorer, scorer.base_model_prefix, backbone(model))
    scorer.score = nn.Linear(head.in_features, 1, bias=False)
    nn.init.zeros_(scorer.score.weight)
    return scorer


def _generic(name: str, model_type: str) -> Any:
    """The family's scorer by transformers' own recipe, for a family that has none."""
    import transformers
    from transformers.modeling_layers import GenericForSequenceClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    causal = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
    family = next(cls for cls in causal.__mro__ if cls.__name__.endswith("PreTrainedModel"))
    # transformers converts weights for classes of its own modules only
    own = {"__module__": family.__module__, "base_model_prefix": family.base_model_prefix or "model"}
    return type(name, (GenericForSequenceClassification, family), own)
