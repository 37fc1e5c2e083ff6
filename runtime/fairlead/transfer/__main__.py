"""``python3 -m fairlead.transfer``: staging on one node, as a step of a job or by hand.

    python3 -m fairlead.transfer in FOLDER --item SOURCE NAME …
    python3 -m fairlead.transfer out FOLDER --item NAME TARGET …
    python3 -m fairlead.transfer copy FOLDER --item NAME TARGET …
    python3 -m fairlead.transfer clear FOLDER
    python3 -m fairlead.transfer mount FOLDER --mount SOURCE TARGET IDENTITY …
    python3 -m fairlead.transfer unmount FOLDER

``out`` also fetches what a run could not copy back, and then removes the folder; ``copy`` leaves it, and may be any folder's.
``mount`` leaves a process that holds the mounts; ``unmount`` ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence

from fairlead.base import bounded_json
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.progress import human_bytes
from fairlead.base.serde import from_json, to_json
from fairlead.objects.model import Listing
from fairlead.transfer import mount, node
from fairlead.transfer.model import InItem, Links, NodeReport, OutItem
from fairlead.transfer.remote import Remote


def main(argv: Sequence[str] | None = None) -> int:
    """Does one step, writes its report if requested, and returns an exit code."""
    signal.signal(signal.SIGTERM, _interrupted)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, _interrupted)
    args, me = _parser().parse_args(argv), os.uname().nodename
    try:
        report = _done(args)
    except FairleadError as exc:
        report = NodeReport(me, True, findings=exc.findings, error=int(exc.code))
    except KeyboardInterrupt:
        report = NodeReport(me, True, error=int(ExitCode.INTERRUPTED))
    if args.report:
        _write(args.report, report)
    else:
        _print(report)
    if not report.acted and not args.step:
        return ExitCode.FAILED
    return report.error


def _done(args: argparse.Namespace) -> NodeReport:
    if args.what == "mount":
        wanted = {mount.MountItem(source, target): same for source, target, same in args.mount}
        mount.hold(args.folder, wanted)
        return NodeReport(os.uname().nodename, acted=True)
    if args.what == "unmount":
        return NodeReport(os.uname().nodename, mount.release(args.folder, args.home))
    if args.what == "in":
        links = Links.FOLLOW if args.follow else Links.REFUSE
        # The command runs when this process has ended: it holds no lock.
        how = _remote(args)
        options = node.InOptions(links, args.job, args.keep, args.step, hold=False, remote=how)
        items = [InItem(source, name) for source, name in args.item]
        return node.stage_in(args.folder, items, options).report
    results = [OutItem(name, target) for name, target in args.item if args.what != "clear"]
    if args.what == "copy":
        return node.copy_out(args.folder, results, _remote(args))
    return node.stage_out(args.folder, results, each=args.each, step=args.step, how=_remote(args))


def _remote(args: argparse.Namespace) -> Remote:
    pins = {}
    if args.pins:
        with open(args.pins, encoding="ascii") as stream:
            pins = from_json(dict[str, Listing], bounded_json.loads(stream.read()))
    return Remote(pins, args.rate, args.cache)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m fairlead.transfer")
    parser.add_argument("what", choices=("in", "out", "copy", "clear", "mount", "unmount"))
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--item", nargs=2, action="append", default=[])
    parser.add_argument("--mount", nargs=3, action="append", default=[])
    parser.add_argument("--step", action="store_true", help="other processes do the same")
    parser.add_argument(
        "--each", action="store_true", help="copy into a folder of this node's name"
    )
    parser.add_argument("--follow", action="store_true", help="copy what links lead to")
    parser.add_argument("--job", default="", help="use what an earlier run of this job has left")
    parser.add_argument("--keep", action="store_true", help="leave it to the next run of that job")
    parser.add_argument("--pins", default="", help="file with the versions of objects to copy")
    parser.add_argument(
        "--rate", type=float, default=0, help="bytes per second, to and from stores"
    )
    parser.add_argument("--cache", type=int, default=0, help="bytes of objects that may stay here")
    parser.add_argument("--home", default="", help="the node that ends its mounts itself")
    parser.add_argument("--report", default="", help="folder for a report, instead of words")
    return parser


def _write(folder: str, report: NodeReport) -> None:
    path = f"{folder}/{report.node}.{os.getpid()}"
    with open(f"{path}.partial", "w", encoding="ascii") as stream:
        json.dump(to_json(report), stream)
    os.replace(f"{path}.partial", f"{path}.json")


def _print(report: NodeReport) -> None:
    for item in report.items:
        rate = "there already" if item.reused else f"{human_bytes(item.rate)}/s"
        size = f"{human_bytes(item.bytes)} in {item.files} files"
        print(f"{item.name}: {size} to {item.target}, {rate}, verified", file=sys.stderr)
    for finding in report.findings:
        label = f"{finding.severity.value}[{finding.check}]"
        print(f"{label}: {finding.what}\nwhere: {finding.where}", file=sys.stderr)
        print(f"why:   {finding.why}\nnext:  {finding.remedy}", file=sys.stderr)
    if not report.acted:
        print("nothing to do: you have no folder there", file=sys.stderr)


def _interrupted(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
