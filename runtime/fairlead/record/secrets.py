"""What a record may say of words and variables: what is a secret, by its name or by its look, is withheld.

A record is made to be passed on. Only variables that are known to change what ranks do are kept at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fairlead.record.model import Environment

WITHHELD = "(withheld)"
_NAME = re.compile(
    r"(?:^|[-_.])\w*(?:passw(?:or)?d|passphrase|secret|token|credential|cookie|connection[-_]?string|"
    r"(?:api|access|private|signing|account|encryption|ssh|license|wandb)[-_]?key)s?(?:$|[-_.]\w*$)",
    re.IGNORECASE,
)
_WHOLE_NAME = re.compile(r"(?:^|[-_.])(?:key|pass|pwd|pat|psk|auth|bearer|jwt|dsn)$", re.IGNORECASE)
# Words that count tokens, or name a file with a key: no secrets.
_HARMLESS = re.compile(
    r"(?:^|[-_.])(?:(?:max|min|num|n|new|total|vocab|pad|eos|bos|unk|mask|special|context|per)[-_]\w*tokens?\w*|"
    r"tokens?[-_](?:per|count|size|length|dim|embed\w*|type)\w*|\w*(?:primary|foreign|sort|query)[-_]key)$",
    re.IGNORECASE,
)
# Secrets whose look is fixed: those of GitHub, GitLab, Hugging Face, AWS, Google, Slack, OpenAI and the like; JSON Web
# Tokens; keys in PEM.
_LOOKS = re.compile(
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}|"
    r"AIza[\w-]{30,}|xox[abprs]-[\w-]{10,}|\bsk-[\w-]{20,}|pypi-[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|"
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)
_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")
_QUERY = re.compile(r"([?&;])([^=&\s#]+)=([^&\s#]+)")
_HEADER = re.compile(
    r"((?:authorization|x-[\w-]*(?:token|key)|cookie)\s*[:=]\s*)\S.*", re.IGNORECASE | re.DOTALL
)
_BEARER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)
_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)$")
# A name, a sign, and a value: `--token=…`, `API_KEY=…`, and Hydra's `+db.password=…`.
_PAIR = re.compile(r"(-{0,2}\+{0,2}[A-Za-z_][\w./-]*)=(.+)", re.DOTALL)
_VALUE = r"(\"[^\"]*\"|'[^']*'|[^\s\"',;&}]+)"
_INSIDE = (
    re.compile(rf"(?<![\w?&;])(-{{0,2}}[A-Za-z_][\w.-]*)(\s*=\s*|\"?\s*:\s*\"?){_VALUE}"),
    re.compile(rf"(?<![\w?&;])(--?[A-Za-z][\w.-]*)([ \t]+){_VALUE}"),  # `the key is` is prose
)

# Variables that change what ranks compute, or how fast.
_KEPT = (
    "BLIS_", "CRAY_", "CUBLAS_", "CUDA_", "CUDNN_", "FAIRLEAD_", "FI_", "GOMP_", "GPU_", "HIP_", "HSA_", "HYDRA_",
    "I_MPI_", "JAX_", "KERAS_", "KMP_", "MALLOC_", "MIOPEN_", "MKL_", "MPICH_", "MPIEXEC_", "MPIR_CVAR_", "MV2_",
    "NCCL_", "NVIDIA_", "OMPI_MCA_", "OMP_", "OPENBLAS_", "PMIX_MCA_", "PMI_", "PRTE_MCA_", "PYTORCH_", "RCCL_",
    "ROCR_", "SLURM_CPU", "SLURM_HINT", "SLURM_JOB_", "SLURM_MPI", "SLURM_NNODES", "SLURM_NTASKS", "TF_CPP_", "TF_CUDNN_", "TF_DETERMINISTIC_",
    "TF_DISABLE_", "TF_ENABLE_", "TF_FORCE_", "TF_GPU_", "TF_NUM_", "TF_USE_", "TF_XLA_", "TORCH_",
    "UCX_", "VECLIB_", "XLA_",
)  # fmt: skip
_NAMED = {
    "LANG", "LC_ALL", "LC_NUMERIC", "LD_LIBRARY_PATH", "LD_PRELOAD", "PBS_JOBID", "PYTHONHASHSEED", "PYTHONPATH",
    "TZ",
}  # fmt: skip
_ENGINE = ("APPTAINERENV_", "SINGULARITYENV_")


def is_secret(name: str) -> bool:
    """Whether a variable or an option of that name holds a secret.

    >>> [is_secret(name) for name in ("HF_TOKEN", "db-password", "max_tokens", "OMP_NUM_THREADS")]
    [True, True, False, False]
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("-+")
    return _is_surely_secret(name) or (
        bool(_WHOLE_NAME.search(name)) and not _HARMLESS.search(name)
    )


def _is_surely_secret(name: str) -> bool:
    return bool(_NAME.search(name)) and not _HARMLESS.search(name)


def text(value: str) -> str:
    """A value, with what looks like a secret in it withheld.

    >>> text("https://me:s3cret@example.org/data?token=abc&n=3")
    'https://(withheld)@example.org/data?token=(withheld)&n=3'
    """
    value = _LOOKS.sub(WITHHELD, _USERINFO.sub(f"{WITHHELD}@", value))
    value = _BEARER.sub(lambda m: f"{m[1]} {WITHHELD}", _HEADER.sub(rf"\g<1>{WITHHELD}", value))
    value = _QUERY.sub(lambda m: f"{m[1]}{m[2]}={WITHHELD}" if is_secret(m[2]) else m[0], value)
    for pattern in _INSIDE:  # a value may be a script: `sh -c 'TOKEN=… train --api-key …'`
        value = pattern.sub(_one_inside, value)
    return value


def _one_inside(match: re.Match[str]) -> str:
    name, sign, value = match.groups()
    if not _is_surely_secret(name) or value.startswith(("-", "(")):
        return match[0]
    return f"{name}{sign}{WITHHELD}"


def words(line: Sequence[str]) -> tuple[str, ...]:
    """A command line, with its secrets withheld: those behind an option, in ``NAME=VALUE``, in addresses.

    >>> words(["fetch", "--token", "abc", "--api-key=abc", "DB_PASSWORD=abc", "--max-tokens", "9"])
    ('fetch', '--token', '(withheld)', '--api-key=(withheld)', 'DB_PASSWORD=(withheld)', '--max-tokens', '9')
    """
    kept: list[str] = []
    follows = False
    for word in line:
        flag, pair = _FLAG.fullmatch(word), _PAIR.fullmatch(word)
        if follows and not flag:
            kept.append(WITHHELD)
        elif pair and is_secret(pair[1]):
            kept.append(f"{pair[1]}={WITHHELD}")
        else:
            kept.append(text(word))
        follows = bool(flag and is_secret(flag[1]))
    return tuple(kept)


def environment(
    shell: Mapping[str, str], container: Mapping[str, str], asked: Iterable[str]
) -> Environment:
    """The variables that a record keeps.

    Args:
        shell: the caller's.
        container: those that fairlead gives to the ranks.
        asked: names of those that the user has given.
    """
    named = {*asked}
    kept = {name: value for name, value in shell.items() if name in named or _is_kept(name)}
    withheld = sorted(name for name in {**kept, **container} if is_secret(name))

    def shown(values: Mapping[str, str]) -> dict[str, str]:
        return {n: text(v) for n, v in sorted(values.items()) if n not in withheld}

    return Environment(shown(kept), shown(container), tuple(withheld))


def _is_kept(name: str) -> bool:
    for prefix in _ENGINE:
        name = name.removeprefix(prefix)
    return name in _NAMED or name.startswith(_KEPT)
