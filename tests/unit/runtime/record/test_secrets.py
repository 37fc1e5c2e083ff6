"""What a record keeps of words and variables, and what it withholds."""

from __future__ import annotations

import pytest

from fairlead.record import secrets
from fairlead.record.secrets import WITHHELD

SECRET = "s3cr3t-Value_0123456789"


@pytest.mark.parametrize(
    "line",
    [
        ["train", "--token", SECRET],
        ["train", "--token=" + SECRET],
        ["train", "--api-key", SECRET],
        ["train", "--wandb_api_key=" + SECRET],
        ["train", "--db.password", SECRET],
        ["train", "+db.password=" + SECRET],
        ["train", "-password", SECRET],
        ["train", "--key", SECRET],
        ["train", "--auth=" + SECRET],
        ["env", "HF_TOKEN=" + SECRET, "train"],
        ["env", "AWS_SECRET_ACCESS_KEY=" + SECRET, "train"],
        ["env", "MYSQL_PWD=" + SECRET, "train"],
        ["--env", "GITHUB_TOKEN=" + SECRET],
        ["sh", "-c", f"export HF_TOKEN={SECRET}; train"],
        ["sh", "-c", f"HF_TOKEN='{SECRET}' train"],
        ["sh", "-c", f"train --api-key {SECRET} --epochs 3"],
        ["python3", "-c", f'password = "{SECRET}"'],
        ["train", f'{{"apiToken": "{SECRET}"}}'],
        ["get", f"https://me:{SECRET}@example.org/data"],
        ["get", f"https://{SECRET}@example.org/data"],
        ["get", f"postgresql://me:{SECRET}@db/trials"],
        ["get", f"https://example.org/data?n=3&token={SECRET}"],
        ["get", f"https://example.org/data?X-Amz-Security-Token={SECRET}&n=3"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}"],
        ["curl", "-H", f"X-Auth-Token: {SECRET}"],
        ["train", "ghp_" + "a1B2" * 9],
        ["train", "hf_" + "a1B2" * 9],
        ["train", "AKIA" + "ABCD" * 4],
        ["train", "sk-" + "a1B2" * 9],
        ["train", "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl"],
        ["train", f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----"],
    ],
)  # fmt: skip
def test_words_with_a_secret_are_kept_without_it(line: list[str]) -> None:
    kept = " ".join(secrets.words(line))
    assert WITHHELD in kept
    assert SECRET not in kept and "a1B2" not in kept and "ABCD" not in kept and "c2ln" not in kept


@pytest.mark.parametrize(
    "line",
    [
        ["python3", "train.py", "--epochs", "3", "--lr=0.1"],
        [
            "train",
            "--max-tokens",
            "2048",
            "--max_new_tokens=5",
            "--vocab-size",
            "9",
            "--tokenizer",
            "bpe",
        ],
        ["train", "--key_dim=64", "--num-keys", "3", "--passes", "2", "--author", "me"],
        ["train", "--token-type-embeddings=2", "--monkey", "1", "--keyboard=us"],
        ["sh", "-c", "set -e; for key in a b; do echo $key; done"],
        ["python3", "-c", "print(sorted([3, 1], key=abs))"],
        ["get", "https://example.org/data?n=3", "scp://node:/data"],
        ["solver", "input.nml", "a=b", "x:y"],
    ],
)
def test_words_without_a_secret_are_kept_as_they_are(line: list[str]) -> None:
    assert secrets.words(line) == tuple(line)


def test_environment_keeps_what_changes_ranks_and_names_secrets_only() -> None:
    shell = {
        "OMP_NUM_THREADS": "4", "NCCL_DEBUG": "INFO", "APPTAINERENV_FI_PROVIDER": "cxi", "PYTHONHASHSEED": "0",
        "FAIRLEAD_KEY_PASSPHRASE": SECRET, "HF_TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET, "HOME": "/home/me",
        "SSH_AUTH_SOCK": "/tmp/ssh", "TF_VAR_db": SECRET, "MY_SETTING": "kept as it was named",
        "UCX_PROXY": f"http://me:{SECRET}@proxy", "CUDA_API_KEY": SECRET,
    }  # fmt: skip
    container = {
        "LD_LIBRARY_PATH": "/opt/fairlead/mpi/lib",
        "API_KEY": SECRET,
        "DATA": f"s3://{SECRET}@bucket",
    }
    kept = secrets.environment(shell, container, ("MY_SETTING", "API_KEY"))
    assert SECRET not in repr(kept)
    assert kept.shell == {
        "APPTAINERENV_FI_PROVIDER": "cxi", "MY_SETTING": "kept as it was named", "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4", "PYTHONHASHSEED": "0", "UCX_PROXY": f"http://{WITHHELD}@proxy",
    }  # fmt: skip
    assert kept.container == {
        "DATA": f"s3://{WITHHELD}@bucket",
        "LD_LIBRARY_PATH": "/opt/fairlead/mpi/lib",
    }
    assert kept.withheld == ("API_KEY", "CUDA_API_KEY", "FAIRLEAD_KEY_PASSPHRASE")
