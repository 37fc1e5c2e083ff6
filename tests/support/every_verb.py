"""A line for each command of fairlead, for what must hold of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from fairlead.cli.main import main

# {image}: a SIF; {folder}: an empty folder; {checkout}: the sources.
LINES = {
    "recipe list": "",
    "recipe show": "tensorflow",
    "recipe requirements": "tensorflow",
    "recipe check": "tensorflow",
    "recipe new": "{folder}/new",
    "recipe schema": "",
    "recipe lock": "mpi-base",
    "recipe render": "mpi-base",
    "recipe import": "{checkout}/containers/rendered/pytorch/Containerfile",
    "build": "mpi-base",
    "push": "{image} localhost:1/x:1",
    "pull": "localhost:1/x:1",
    "images list": "",
    "images remove": "no-such-image",
    "images prune": "--dry-run",
    "inspect": "{image}",
    "diff": "{image} {image}",
    "key new": "",
    "key list": "",
    "key trust": "{folder}/k.pub",
    "key untrust": "0123456789",
    "sign": "{image}",
    "verify": "{image}",
    "site list": "",
    "site show": "laptop",
    "site new": "{folder}/site",
    "site schema": "",
    "site capture": "-o {folder}/capture.json",
    "site detect": "",
    "site why-not": "laptop",
    "site compare": "",
    "site check": "laptop",
    "site export": "--for apptainer -o {folder}/export --image {image}",
    "doctor": "",
    "preflight": "{image}",
    "explain": "{image}",
    "run": "-n 2 --timeline {folder}/t.json {image} -- true",
    "replay": "{folder}/no-such-record",
    "shell": "--dry-run {image}",
    "script": "-n 2 --scheduler slurm {image} -- true",
    "train": "hepcnn -n 2 --image {image} -o {folder}/report",
    "tune": "{checkout}/examples/tune/train.py --space {checkout}/examples/tune/space.toml --trials 2 --image {image}"
    " -o {folder}/tune",
    "notebook": "--list",
    "serve start": "--dry-run {checkout}/examples/serve/offers.toml",
    "serve check": "{checkout}/examples/serve/offers.toml",
    "serve token": "alice --folder {folder}/serve",
    "serve tokens": "--folder {folder}/serve",
    "serve revoke": "alice --folder {folder}/serve",
    "data list": "{folder}",
    "data describe": "{folder}",
    "data pack": "{checkout}/examples {folder}/shards",
    "data verify": "{folder}",
    "data sync": "--dry-run {folder} s3://no-such-bucket/x",
    "data share": "s3://no-such-bucket/x",
    "data cache": "--in {folder}",
    "bridge serve": "-n 2 {image}",
    "bridge status": "",
    "bridge libraries": "",
    "bridge stop": "no-such-session",
    "bench collectives": "-n 2 {image}",
    "validate": "--quick --image {image} -o {folder}/validation",
    "project": "{checkout}/benchmarks/results/comm-scaling.json --fabric slingshot",
    "report": "",
}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by what is typed after `fairlead`."""
    context = click.Context(main)
    for verb in main.list_commands(context):
        command = main.get_command(context, verb)
        assert command is not None, verb
        if isinstance(command, click.Group):
            yield from ((f"{verb} {name}", inner) for name, inner in command.commands.items())
        else:
            yield verb, command


def words(name: str, image: Path, folder: Path, checkout: Path) -> list[str]:
    """A command line for a command, without `fairlead`."""
    line = LINES[name].format(image=image, folder=folder, checkout=checkout)
    return [*name.split(), *line.split()]
