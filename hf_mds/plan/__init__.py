"""Which sample goes where: pure functions of spec, world, epoch and position; no I/O, NumPy only."""

from hf_mds.plan.batching import BATCHING_METHODS
from hf_mds.plan.epoch import EpochPlan, plan_epoch
from hf_mds.plan.mixing import StreamSpec
from hf_mds.plan.partition import PARTITION_ALGOS
from hf_mds.plan.sampling import SAMPLING_METHODS
from hf_mds.plan.shuffle import SHUFFLE_ALGOS
from hf_mds.plan.spec import EpochSpec
from hf_mds.plan.world import World

__all__ = [
    "BATCHING_METHODS",
    "PARTITION_ALGOS",
    "SAMPLING_METHODS",
    "SHUFFLE_ALGOS",
    "EpochPlan",
    "EpochSpec",
    "StreamSpec",
    "World",
    "plan_epoch",
]
