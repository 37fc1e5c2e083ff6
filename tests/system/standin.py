"""Stands in for an engine that cannot be had here: takes the words of its documents and no others, and
starts Apptainer with what they say. Its own name, ``shifter``, ``sarus``, ``enroot`` or ``srun`` (with CSCS'
Container Engine in it), tells which it is.

    shifter --image=id:ID [--module=M,…] [--volume=S:T[:ro]]… [--env=N=V]… [--workdir=D] COMMAND…
    sarus run [--mount=…]… [--env=N=V]… [--workdir=D] NAME:TAG COMMAND…
    enroot start [--mount F]… [--env N[=V]]… IMAGE COMMAND…     with environ.d, mounts.d, hooks.d of ~/.config/enroot
    srun … --environment=EDF COMMAND…      the rest goes to Slurm's own srun, STANDIN_SRUN

What it cannot read ends it with code 64. Shifter and Sarus open what their stores have of a name, by the
configuration below the prefix of the program. Apptainer comes by STANDIN_APPTAINER.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
import tomllib

PREFIX = os.path.dirname(os.path.dirname(os.path.realpath(sys.argv[0])))  # noqa: PTH120


def wrong(why: str) -> None:
    print(f"{sys.argv[0]}: {why}", file=sys.stderr)
    raise SystemExit(64)


def container_engine(words: list[str]) -> None:
    """srun: an EDF by the rules of its documentation, in which ``$$`` is a plain ``$``."""
    real = os.environ["STANDIN_SRUN"]
    at = next((i for i, word in enumerate(words) if word.startswith("--environment=")), None)
    if at is None:
        os.execv(real, [real, *words])
    with open(words[at].partition("=")[2], "rb") as stream:
        edf = tomllib.load(stream)
    known = {"base_environment", "image", "workdir", "entrypoint", "writable", "mounts", "env"}
    if unknown := set(edf) - known - {"annotations", "devices"}:
        wrong(f"unknown keys: {unknown}")

    def plain(text: object) -> str:
        if not isinstance(text, str) or re.search(r"(?<!\$)(\$\$)*\$(?!\$)", text):
            wrong(f"not a text, or it is expanded: {text!r}")
        return str(text).replace("$$", "$")

    image = plain(edf["image"])
    if not image.startswith("/") or not image.endswith((".squashfs", ".sqsh")):
        wrong(f"no squashfs: {image}")
    argv = [os.environ["STANDIN_APPTAINER"], "--quiet", "exec"]
    argv += os.environ.get("STANDIN_OPTIONS", "").split()
    for mount in edf.get("mounts", []):
        source, target, *flags = plain(mount).split(":")
        if len(flags) > 1 or flags not in ([], ["ro"]) or source[0] + target[0] != "//":
            wrong(f"not a mount: {mount}")
        argv += ["--bind", ":".join([source, target, *flags])]
    if "workdir" in edf:
        argv += ["--pwd", plain(edf["workdir"])]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "APPTAINER"))}
    for name, value in edf.get("env", {}).items():
        environ[f"APPTAINERENV_{name}"] = plain(value)
    environ["APPTAINER_NO_EVAL"] = "1"
    os.execve(real, [real, *words[:at], *argv, image, *words[at + 1 :]], environ)


def setting(file: str, key: str) -> str:
    """A value of a file in ``etc``: ``key=value`` lines, or JSON."""
    with open(f"{PREFIX}/etc/{file}") as stream:
        text = stream.read()
    if file.endswith(".json"):
        return str(json.loads(text)[key])
    return dict(line.partition("=")[::2] for line in text.splitlines())[key]


def kept_by(name: str, image: str) -> str:
    """The file that an engine opens for ``image``."""
    if name == "enroot":
        path = image
    elif name == "sarus":
        user = pwd.getpwuid(os.geteuid()).pw_name
        base = setting("sarus.json", "localRepositoryBaseDir")
        path = f"{base}/{user}/.sarus/images/{image.replace(':', '/')}.squashfs"
    else:
        store = f"{setting('udiRoot.conf', 'imagePath')}/{image}"
        with open(f"{store}.meta") as stream:
            if "FORMAT: squashfs" not in stream.read().splitlines():
                wrong("FAILED to stat udi source")
        path = f"{store}.squashfs"
    if not os.path.isfile(path):  # noqa: PTH113
        wrong(f"No such file or directory: {path}")
    return path


def enroots_own() -> tuple[list[str], dict[str, str]]:
    """Binds and variables by the files in ~/.config/enroot, as enroot's src/runtime.sh reads them."""
    folder = os.path.expanduser("~/.config/enroot")  # noqa: PTH111

    def inside(name: str, suffix: str) -> list[str]:
        place = f"{folder}/{name}"
        found = os.listdir(place) if os.path.isdir(place) else []  # noqa: PTH112, PTH208
        return sorted(f"{place}/{file}" for file in found if file.endswith(suffix))

    with tempfile.TemporaryDirectory() as work:
        places = {"ENROOT_ENVIRON": f"{work}/environ", "ENROOT_MOUNTS": f"{work}/fstab"}
        for place, parts in zip(
            places.values(),
            (inside("environ.d", ".env"), inside("mounts.d", ".fstab")),
            strict=True,
        ):
            with open(place, "w") as out:
                for part in parts:
                    with open(part) as stream:
                        out.write(stream.read())
        for hook in inside("hooks.d", ".sh"):
            if os.access(hook, os.X_OK):
                subprocess.run([hook], env={**os.environ, **places}, check=True)
        with open(places["ENROOT_ENVIRON"]) as stream:
            env = dict(line.rstrip("\n").partition("=")[::2] for line in stream if line.strip())
        with open(places["ENROOT_MOUNTS"]) as stream:
            lines = [line.split() for line in stream if line.strip() and line[0] != "#"]
    binds = []
    for source, target, kind, options, *_ in lines:
        parts = options.split(",")
        if kind != "none" or not any(part.endswith("bind") for part in parts):
            wrong(f"not a mount: {source}")
        binds.append(f"{source}:{target}" + (":ro" if "ro" in parts else ""))
    return binds, env


def module_of_shifter(name: str) -> tuple[list[str], dict[str, str]]:
    """Binds and variables of a module, as Shifter's src/shifter_core.c reads them; a copied folder is shown here."""
    binds, env = [], {}
    with open(f"{PREFIX}/etc/udiRoot.conf") as stream:
        pairs = [line.rstrip("\n").partition("=") for line in stream if line[0] != "#"]
    own = {
        k.removeprefix(f"module_{name}_"): v for k, _, v in pairs if k.startswith(f"module_{name}_")
    }
    if not own:
        wrong(f"no such module: {name}")
    for key, value in own.items():
        if key == "copyPath":
            binds.append(f"{value}:/opt/udiImage/modules/{name}")
        elif key == "siteFs":
            binds += [":".join(mount.split(":")[:2]) for mount in value.split(";")]
        elif key in ("siteEnv", "siteEnvPrepend"):
            env |= dict(word.partition("=")[::2] for word in value.split(" "))
        else:
            wrong(f"no such part of a module: {key}")
    return binds, env


def shifter(words: list[str]) -> None:
    """The words of Shifter, whose binds are folders."""
    image, argv, environ = "", [], dict(os.environ)
    for name in [k for k in environ if k.startswith(("LD_", "APPTAINER", "SINGULARITY"))]:
        del environ[name]
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        if option == "--image" and value.startswith("id:"):
            image = value.removeprefix("id:")
        elif option == "--volume" and re.fullmatch(r"/[^\s:;,]+:/[^\s:;,]+(:ro)?", value):
            if not os.path.isdir(value.partition(":")[0]):  # noqa: PTH112
                wrong(f"not a folder: {value}")
            argv += ["--bind", value]
        elif option == "--env" and "=" in value:
            key, _, text = value.partition("=")
            environ[f"APPTAINERENV_{key}"] = text
        elif option == "--workdir":
            argv += ["--pwd", value]
        elif option == "--module" and equals:
            for module in () if value in ("", "none") else value.split(","):
                binds, env = module_of_shifter(module)
                argv += [word for bind in binds for word in ("--bind", bind)]
                environ |= {f"APPTAINERENV_{key}": text for key, text in env.items()}
        else:
            wrong(f"no such option: {option}={value}")
    if not image or not words:
        wrong("an image and a command are missing")
    started = [os.environ["STANDIN_APPTAINER"], "--quiet", "exec"]
    started += os.environ.get("STANDIN_OPTIONS", "").split()
    environ["APPTAINER_NO_EVAL"] = "1"
    os.execve(started[0], [*started, *argv, kept_by("shifter", image), *words], environ)


def main() -> None:
    name = os.path.basename(sys.argv[0])  # noqa: PTH119
    if name == "shifter":
        shifter(sys.argv[1:])
    if name == "srun":
        container_engine(sys.argv[1:])
    binds: list[str] = []
    env: dict[str, str] = {}
    workdir = ""
    words = sys.argv[1:]
    if words[:1] != [{"sarus": "run", "enroot": "start"}[name]]:
        wrong(f"no such command: {words[:1]}")
    words = words[1:]
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if name == "enroot":
            value = words.pop(0)
            if word == "--mount":
                if not re.fullmatch(r"[^\s]+(:[^\s]+)*", value):
                    wrong(f"Invalid argument: {value}")
                source, target, kind, options = value.split(":")
                parts = options.split(",")
                if kind != "none" or "x-create=auto" not in parts or "rbind" not in parts:
                    wrong(f"not a mount: {value}")
                binds.append(f"{source}:{target}" + (":ro" if "ro" in parts else ""))
            elif word == "--env":
                if not re.match(r"[A-Za-z_]\w*(=|$)", value) or "\n" in value:
                    wrong(f"Invalid argument: {value}")
                key, equals, text = value.partition("=")
                env[key] = text if equals else os.environ[key]
            else:
                wrong(f"no such option: {word}")
            continue
        option, equals, value = word.partition("=")
        if not equals:
            wrong(f"no such option: {word}")
        elif option == "--mount":
            given = dict(part.partition("=")[::2] for part in value.split(","))
            if given.pop("type", "") != "bind":
                wrong("'type' must be specified")
            source, target = given.pop("source", ""), given.pop("destination", "")
            read_only = given.pop("readonly", None) is not None
            if given or not source.startswith("/") or not target.startswith("/"):
                wrong(f"Invalid mount request '{value}'")
            binds.append(f"{source}:{target}" + (":ro" if read_only else ""))
        elif option == "--env":
            key, equals, text = value.partition("=")
            env[key] = text
            if not equals:
                wrong("Invalid environment variable")
        elif option == "--workdir":
            workdir = value
        else:
            wrong(f"no such option: {option}")
    if len(words) < 2:
        wrong("an image and a command are missing")
    image, command = words[0], words[1:]
    if name == "sarus" and not re.fullmatch(r"[\w.-]+/[\w./-]+:[\w.-]+", image):
        wrong(f"Invalid image reference '{image}'")
    kept = dict(os.environ) if name == "sarus" else {}  # enroot hands nothing on
    for key in [k for k in kept if k.startswith(("LD_", "APPTAINER", "SINGULARITY"))]:
        del kept[key]
    if name == "enroot":
        more, own = enroots_own()
        binds, env = [*more, *binds], {**own, **env}
    kept |= {f"APPTAINERENV_{key}": value for key, value in env.items()}
    kept |= {"PATH": os.environ["PATH"], "APPTAINER_NO_EVAL": "1"}
    argv = [os.environ["STANDIN_APPTAINER"], "--quiet", "exec"]
    argv += os.environ.get("STANDIN_OPTIONS", "").split()
    for bind in binds:
        argv += ["--bind", bind]
    if workdir:
        argv += ["--pwd", workdir]
    argv += [kept_by(name, image), *command]
    os.execve(argv[0], argv, kept)


if __name__ == "__main__":
    main()
