"""The training loop and the sampler as Python functions, on a model and a tokenizer of transformers."""

from posttrain.api.model import Samples, load_model, sample
from posttrain.api.online import train_online
from posttrain.api.train import train_model

__all__ = ["Samples", "load_model", "sample", "train_model", "train_online"]
