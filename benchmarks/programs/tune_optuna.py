"""The search by Optuna, in two processes of joblib: ``python3 tune_optuna.py TRIALS JOURNAL``."""

import sys

import joblib
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from tune_objective import train


# begin
def objective(trial):
    return train(
        trial.suggest_float("rate", 0.001, 1.0, log=True), trial.suggest_int("width", 16, 64)
    )


def work(seed, trials, journal):
    sampler = optuna.samplers.RandomSampler(seed)
    storage = JournalStorage(JournalFileBackend(journal))
    study = optuna.create_study(
        study_name="s", storage=storage, sampler=sampler, load_if_exists=True
    )
    study.optimize(objective, n_trials=trials)
    return study.best_value


half = int(sys.argv[1]) // 2
print(min(joblib.Parallel(2)(joblib.delayed(work)(seed, half, sys.argv[2]) for seed in (1, 2))))
# end
