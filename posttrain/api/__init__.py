"""The training loop, the sampler and the evaluation as Python functions, on models and tokenizers of transformers."""

from posttrain.api.evaluate import Evaluation, evaluate_model
from posttrain.api.model import Samples, load_model, sample
from posttrain.api.models import load_models
from posttrain.api.online import train_online
from posttrain.api.reward_model import load_reward_model, reward_model, score
from posttrain.api.train import train_model
from posttrain.online.config import OnlineConfig
from posttrain.supervised.config import PreferenceTraining, RewardTraining, SftConfig
from posttrain.train.trained import Trained

__all__ = [
    "Evaluation",
    "OnlineConfig",
    "PreferenceTraining",
    "RewardTraining",
    "Samples",
    "SftConfig",
    "Trained",
    "evaluate_model",
    "load_model",
    "load_models",
    "load_reward_model",
    "reward_model",
    "sample",
    "score",
    "train_model",
    "train_online",
]
