# The types of the names that __init__.py imports when they are first used.
from posttrain import losses as losses
from posttrain.api import Evaluation as Evaluation
from posttrain.api import OnlineConfig as OnlineConfig
from posttrain.api import PreferenceTraining as PreferenceTraining
from posttrain.api import RewardTraining as RewardTraining
from posttrain.api import Samples as Samples
from posttrain.api import SftConfig as SftConfig
from posttrain.api import Trained as Trained
from posttrain.api import evaluate_model as evaluate_model
from posttrain.api import load_model as load_model
from posttrain.api import load_models as load_models
from posttrain.api import load_reward_model as load_reward_model
from posttrain.api import reward_model as reward_model
from posttrain.api import sample as sample
from posttrain.api import score as score
from posttrain.api import train_model as train_model
from posttrain.api import train_online as train_online
from posttrain.numerics import fix_numerics as fix_numerics

__version__: str
