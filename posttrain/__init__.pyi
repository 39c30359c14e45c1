# The types of the names that __init__.py imports when they are first used.
from posttrain import losses as losses
from posttrain.api.evaluate import evaluate_model as evaluate_model
from posttrain.api.likelihood import evaluate_likelihood as evaluate_likelihood
from posttrain.api.model import Samples as Samples
from posttrain.api.model import load_model as load_model
from posttrain.api.model import sample as sample
from posttrain.api.models import load_models as load_models
from posttrain.api.online import train_online as train_online
from posttrain.api.scored import sample_and_score as sample_and_score
from posttrain.api.scorers import load_reward_model as load_reward_model
from posttrain.api.scorers import reward_model as reward_model
from posttrain.api.scorers import score as score
from posttrain.api.stored import train_on_rollouts as train_on_rollouts
from posttrain.api.teacher import distill as distill
from posttrain.api.train import train_model as train_model
from posttrain.errors import ParamsError as ParamsError
from posttrain.errors import PosttrainError as PosttrainError
from posttrain.evaluate.config import EvaluateConfig as EvaluateConfig
from posttrain.evaluate.policy import Evaluation as Evaluation
from posttrain.numerics import fix_numerics as fix_numerics
from posttrain.online.config import OnlineConfig as OnlineConfig
from posttrain.online.distill import StudentConfig as StudentConfig
from posttrain.online.stored import LoggedRollouts as LoggedRollouts
from posttrain.online.stored import OfflineConfig as OfflineConfig
from posttrain.sampling.frozen import load_frozen as load_frozen
from posttrain.sampling.scored import SampleConfig as SampleConfig
from posttrain.sampling.scored import ScoredSamples as ScoredSamples
from posttrain.supervised.preference import PreferenceTraining as PreferenceTraining
from posttrain.supervised.reward import RewardTraining as RewardTraining
from posttrain.supervised.sft import SftConfig as SftConfig
from posttrain.train.trained import Trained as Trained

__version__: str
