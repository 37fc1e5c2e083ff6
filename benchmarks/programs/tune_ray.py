"""The search by Ray Tune: ``python3 tune_ray.py TRIALS``."""

import sys

import ray
from ray import tune
from tune_objective import train

# begin
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
space = {"rate": tune.loguniform(0.001, 1.0), "width": tune.randint(16, 65)}
tuner = tune.Tuner(
    tune.with_resources(
        lambda config: {"loss": train(config["rate"], config["width"])}, {"cpu": 1}
    ),
    param_space=space,
    tune_config=tune.TuneConfig(num_samples=int(sys.argv[1]), metric="loss", mode="min"),
)
print(tuner.fit().get_best_result().metrics["loss"])
# end
