"""Programs that start the one their words name, with words of their own before it: env, gosu, setpriv, chroot, timeout, su.

A program that starts others may start anything, unless its form is known and the words can be read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True)
class _Form:
    """``PROGRAM [OPTIONS] [OPERANDS] COMMAND …``.

    Attributes:
        operands: how many words of its own stand before the command.
        short, long: its options that take a value, in the next word where it does not follow at once.
        only: what the operands have to be, so that the command is what it looks like.
        unseen: its options with which the words do not show the command: it is in another root, or in the option.
        assigns: variables stand before the command, as NAME=VALUE.
    """

    operands: int = 0
    short: str = ""
    long: frozenset[str] = frozenset()
    only: str = ""
    unseen: str = ""
    assigns: bool = False


def _long(text: str) -> frozenset[str]:
    return frozenset(text.split())


_USER_FIRST = _Form(operands=1)
# Source: the manual pages of util-linux, coreutils, numactl(8) and gosu's README.
_FORMS = {
    "env": _Form(
        short="uC", long=_long("unset chdir"), unseen=r"-[iv0]*S|--split-string", assigns=True
    ),
    "unshare": _Form(
        short="SGw",
        long=_long("setgroups map-user map-group map-users map-groups propagation setuid setgid wd"),
        unseen=r"-R|--root",
    ),
    "gosu": _USER_FIRST,
    "su-exec": _USER_FIRST,
    "setuidgid": _USER_FIRST,
    "s6-setuidgid": _USER_FIRST,
    "setpriv": _Form(
        long=_long(
            "ambient-caps inh-caps bounding-set ruid euid rgid egid reuid regid groups securebits pdeathsig"
            " selinux-label apparmor-profile landlock-access landlock-rule seccomp-filter ptracer"
        )
    ),
    "chroot": _Form(operands=1, long=_long("userspec groups"), only="/"),
    "timeout": _Form(operands=1, short="ks", long=_long("kill-after signal")),
    "nice": _Form(short="n", long=_long("adjustment")),
    "ionice": _Form(short="cn", long=_long("class classdata")),
    "chrt": _Form(
        operands=1, short="TPD", long=_long("sched-runtime sched-period sched-deadline")
    ),
    "taskset": _Form(operands=1),
    "numactl": _Form(
        short="iwpPmNC",
        long=_long("interleave weighted-interleave preferred preferred-many membind cpunodebind physcpubind"),
    ),
    "stdbuf": _Form(short="ioe", long=_long("input output error")),
}  # fmt: skip
_OWN_NAMESPACE = re.compile(r"-[a-zA-Z]*[rcUp]|--(user|pid|map-)")
_MANY_IN_ONE = ("busybox", "toybox")
_SU = ("su", "runuser")
_SU_VALUES = {
    "c": "command", "s": "shell", "g": "group", "G": "supp-group", "u": "user", "w": "whitelist-environment",
}  # fmt: skip


def is_known(command: Sequence[str]) -> bool:
    """Whether :func:`behind` knows the form of a command's program."""
    return posixpath.basename(command[0]) in _FORMS


def behind(command: Sequence[str]) -> tuple[str, ...]:
    """The command that a known wrapper starts; empty where its words do not show it.

    >>> behind(("gosu", "nobody", "lmp", "-in", "x")), behind(("setpriv", "--reuid", "1", "--clear-groups", "lmp"))
    (('lmp', '-in', 'x'), ('lmp',))
    >>> behind(("chroot", "--userspec=1:1", "/", "lmp")), behind(("chroot", "/other", "lmp"))
    (('lmp',), ())
    >>> behind(("env", "-u", "LD_PRELOAD", "A=1", "lmp")), behind(("unshare", "-r", "lmp")), behind(("env", "-S", "lmp -v"))
    (('lmp',), ('lmp',), ())
    """
    form = _FORMS[posixpath.basename(command[0])]
    words = list(command[1:])
    while words and words[0].startswith("-") and words[0] != "-":
        option = words.pop(0)
        if option == "--":
            break
        if form.unseen and re.match(form.unseen, option):
            return ()
        if _takes_next(form, option) and words:
            words.pop(0)
    while form.assigns and words and ("=" in words[0] or words[0] == "-"):
        words.pop(0)
    own, words = words[: form.operands], words[form.operands :]
    if len(own) < form.operands or (form.only and any(word != form.only for word in own)):
        return ()
    return tuple(words)


def cleans(command: Sequence[str], needed: Collection[str] = ()) -> str:
    """How a command starts another without the variables that it has itself, or without one of those that are ``needed``;
    empty where it does not, or that is not known.

    >>> cleans(("env", "-i", "lmp")), cleans(("env", "-u", "X", "A=1", "lmp")), cleans(("busybox", "env", "-", "lmp"))
    ('env -i', '', 'env -')
    >>> cleans(("su", "-", "nobody", "-c", "lmp")), cleans(("setpriv", "--reset-env", "lmp")), cleans(("sudo", "-E", "lmp"))
    ('su -', 'setpriv --reset-env', '')
    >>> cleans(("env", "-i", "PMI_RANK=0", "lmp")), cleans(("env", "A=1", "-u", "PMI_FD", "lmp"), ("PMI_FD",))
    ('', '')
    >>> cleans(("env", "-uPMI_FD", "lmp"), ("PMI_FD",)), cleans(("env", "-u", "A", "--unset=PMI_FD", "lmp"), ("PMI_FD",))
    ('env -u PMI_FD', 'env -u PMI_FD')
    """
    name, words = posixpath.basename(command[0]), list(command[1:])
    if name in _MANY_IN_ONE and words:
        name, words = words[0], words[1:]
    own = list(takewhile(lambda word: word.startswith("-"), words))
    if name == "env":
        return _cleaned_by_env(own, words, needed)
    if name == "sudo":
        return "" if any(re.match(r"-[A-Za-z]*E|--preserve-env", word) for word in own) else "sudo"
    if name == "setpriv":
        return "setpriv --reset-env" if "--reset-env" in own else ""
    asked, kept = su(command), any(re.match(r"-w|--whitelist", word) for word in words)
    return f"{name} -" if asked and asked.login and not kept else ""


def _cleaned_by_env(own: Sequence[str], words: Sequence[str], needed: Collection[str]) -> str:
    """See :func:`cleans`; ``own`` are its options that come first, of all its ``words``."""
    for word in own:
        if word in ("-", "--ignore-environment") or re.match(r"-[0v]*i", word):
            # What stands before the command may set them again.
            return "" if "=" in "".join(words[len(own) : len(own) + 1]) else f"env {word}"
    options = words[: len(words) - len(behind(("env", *words)))]
    for at, word in enumerate(options):
        match = re.fullmatch(r"(?:-[0iv]*u|--unset=?)(\w*)", word)
        name = match and (match[1] or "".join(options[at + 1 : at + 2]))
        if name in needed and not any(w.startswith(f"{name}=") for w in options):
            return f"env -u {name}"
    return ""


def closes(command: Sequence[str]) -> bool:
    """Whether a command, which keeps its variables, closes all but the first three descriptors (sudo's closefrom).

    >>> closes(("sudo", "-E", "lmp")), closes(("sudo", "-E", "-C", "99", "lmp")), closes(("sudo", "lmp"))
    (True, False, False)
    """
    own = [*takewhile(lambda word: word.startswith("-"), command[1:])]
    is_sudo = posixpath.basename(command[0]) == "sudo" and not cleans(command)
    return is_sudo and not any(re.match(r"-[A-Za-z]*C|--close-from", word) for word in own)


def parts(command: Sequence[str]) -> str:
    """How a command starts another in a user or PID namespace of its own; empty where it does not, or that is not known.

    >>> parts(("unshare", "-r", "lmp")), parts(("/usr/bin/unshare", "--fork", "-mp", "lmp")), parts(("unshare", "-m", "lmp"))
    ('unshare -r', 'unshare -mp', '')
    """
    if posixpath.basename(command[0]) != "unshare":
        return ""
    own = command[1 : len(command) - len(behind(command))]
    option = next((word for word in own if _OWN_NAMESPACE.match(word)), "")
    return f"unshare {option}" if option else ""


def _takes_next(form: _Form, option: str) -> bool:
    """Whether the value of an option is the next word."""
    if option.startswith("--"):
        return option[2:] in form.long
    return option[-1:] in form.short and not any(letter in form.short for letter in option[1:-1])


@dataclass(frozen=True)
class Su:
    """What su or runuser runs.

    Attributes:
        command: of ``runuser -u USER COMMAND``.
        text: of ``-c``, for the user's shell.
        login: it sets PATH and all variables anew.
        shell: of ``-s``.
    """

    command: tuple[str, ...] = ()
    text: str = ""
    login: bool = False
    shell: str = ""


def su(command: Sequence[str]) -> Su | None:
    """What the words of su or runuser say; None for another program.

    >>> su(("su", "-", "nobody", "-c", "lmp")), su(("runuser", "-u", "nobody", "--", "lmp", "-v"))
    (Su(command=(), text='lmp', login=True, shell=''), Su(command=('lmp', '-v'), text='', login=False, shell=''))
    """
    name = posixpath.basename(command[0])
    if name not in _SU:
        return None
    words, operands, given = list(command[1:]), list[str](), dict[str, str]()
    login = False
    while words:
        word = words.pop(0)
        if word == "--":
            operands += words
            break
        if word == "-":
            login = True
        elif word.startswith("--"):
            key, _, value = word[2:].partition("=")
            login |= key == "login"
            if key in _SU_VALUES.values() or key == "session-command":
                given[key] = value or (words.pop(0) if words else "")
        elif word.startswith("-"):
            login |= _short(word[1:], words, given)
        elif name == "runuser" and "user" in given:
            operands = [word, *words]
            break
        else:
            operands.append(word)
    text = given.get("command") or given.get("session-command", "")
    if "user" in given and not text:
        return Su(tuple(operands), login=login)
    return Su((), text, login, given.get("shell", ""))


def _short(letters: str, words: list[str], given: dict[str, str]) -> bool:
    """Takes short options in one word into ``given``; whether ``-l`` is among them."""
    login = False
    for at, letter in enumerate(letters):
        login |= letter == "l"
        if letter in _SU_VALUES:
            given[_SU_VALUES[letter]] = letters[at + 1 :] or (words.pop(0) if words else "")
            break
    return login
