"""The commands in the text of a POSIX shell or bash, where all of them can be seen.

What a text starts is known only if every command in it stands there by its name. Of a text with ``eval``, a sourced file,
a function, ``case``, a command in a variable, or a new search path nothing is said.
"""

from __future__ import annotations

import posixpath
import re

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh"})
LONGEST = 64 << 10  # bytes of a text that is looked at
_MOST = 200  # commands
_BLANK, _ENDS = " \t", " \t\n;|&<>()"
_OPENING = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time"})
_CLOSING = frozenset({"fi", "done", "}"})
_UNSEEN = frozenset(
    {"case", "select", "function", "coproc", "eval", "source", ".", "trap", "alias", "enable", "builtin", "mapfile"}
)  # fmt: skip
_BUILTIN = frozenset(
    {
        ":", "[", "break", "cd", "continue", "declare", "dirs", "disown", "echo", "exit", "export", "false", "getopts",
        "hash", "jobs", "kill", "let", "local", "popd", "printf", "pushd", "pwd", "read", "readonly", "return", "set",
        "shift", "shopt", "test", "times", "true", "type", "typeset", "ulimit", "umask", "unset", "wait",
    }
)  # fmt: skip
# After which, by `&&`, the next is sure to run.
_SURE = frozenset({":", "cd", "echo", "export", "set", "true", "ulimit", "umask", "unset"})
_SETTING = frozenset({"declare", "export", "local", "read", "readonly", "typeset", "unset"})
# What decides which file a name is, or what that loads.
_SEARCHED = re.compile(
    r"(PATH|LD_\w+|PYTHONPATH|PYTHONHOME|PYTHONSTARTUP|BASH_ENV|ENV|IFS|R_LIBS\w*)(\+?=|$)"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>&|>>|>\||<|>")
_ARITHMETIC = re.compile(r"\$\(\((?:[^()`$]|\$\w|\([^()`$]*\))*\)\)")
_PARAMETER = re.compile(r"\$\{(?:[^{}`$]|\$\w)*\}|\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_PROFILE = re.compile(r"-\w*[lis]|--")
_LOGIN = re.compile(r"-\w*l\w*|--login")
_OPTION = re.compile(r"-\w+")


def is_shells(first_line: str) -> bool:
    """Whether a script's first line names a shell, and none that reads a profile first.

    >>> is_shells("#!/usr/bin/env bash"), is_shells("#!/bin/bash -l"), is_shells("#!/usr/bin/python3")
    (True, False, False)
    """
    words = _interpreter(first_line)
    return bool(words) and not any(map(_PROFILE.match, words[1:]))


def is_login_shells(first_line: str) -> bool:
    """Whether a script's first line names a login shell.

    >>> is_login_shells("#!/bin/bash -l"), is_login_shells("#!/usr/bin/env -S sh --login"), is_login_shells("#!/bin/sh -e")
    (True, True, False)
    """
    return any(map(_LOGIN.fullmatch, _interpreter(first_line)[1:]))


def _interpreter(first_line: str) -> list[str]:
    """The shell that a script's first line names, and its options; empty for another program."""
    words = first_line.removeprefix("#!").split() if first_line.startswith("#!") else []
    if words and words[0].endswith("/env"):
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    return words if words and words[0].rpartition("/")[2] in SHELLS else []


class _UnseenError(Exception):
    """Something is started that the text does not name."""


def commands(text: str, folder: str = "") -> tuple[tuple[str, ...], ...] | None:
    """The programs that a text starts, each with its words; None where not all can be seen.

    What the shell does itself is left out. A word has ``$`` where a value is put in. A program that is named by a relative
    path is named by an absolute one where ``cd`` says in which folder.

    >>> commands("cd /data && OMP_NUM_THREADS=1 lmp -in in.melt >$LOG 2>&1 | tee log")
    (('lmp', '-in', 'in.melt'), ('tee', 'log'))
    >>> commands("cd /opt/app && ./solver in.txt")
    (('/opt/app/solver', 'in.txt'),)
    >>> commands("$PROGRAM") is None
    True

    Args:
        folder: where the text starts; empty if that is not known.
    """
    reader = _Reader(text, folder)
    try:
        reader.read()
    except (_UnseenError, RecursionError):
        return None
    words = reader.placed if reader.plain else reader.commands
    return tuple(words) if len(words) <= _MOST else None


class _Reader:
    """Reads one text, once.

    Attributes:
        commands: the commands so far.
        placed: the same, with relative paths of programs as absolute ones, by the ``cd`` before.
        plain: each ``cd`` was a step of the text itself, and of no loop, condition or subshell.
    """

    def __init__(self, text: str, folder: str = ""):
        self.commands: list[tuple[str, ...]] = []
        self.placed: list[tuple[str, ...]] = []
        self.plain = True
        self._folder, self._inside = folder, False
        # The operators before a command, and the command before these.
        self._before = self._last = ""
        self._text, self._at, self._tests = text, 0, False
        self._documents: list[tuple[str, bool]] = []  # here-documents whose text is to come

    def read(self, closing: bool = False) -> None:
        """Up to the end, or the ``)`` that belongs to a ``(`` before."""
        words: list[str] = []
        while char := self._next():
            if char == ")":
                if not closing:
                    raise _UnseenError
                self._at += 1
                return self._command(words)
            words = self._token(char, words)
        if closing or self._documents:
            raise _UnseenError
        return self._command(words)

    def _token(self, char: str, words: list[str]) -> list[str]:
        """Reads one token; the words of the command that it leaves unfinished."""
        if char in _BLANK:
            self._at += 1
        elif self._text.startswith("\\\n", self._at):
            self._at += 2
        elif char == "#":
            self._at = self._line_end()
        elif char == "(":
            if words or self._text.startswith("((", self._at):
                raise _UnseenError  # a function, an array, arithmetic
            self._at += 1
            self._subshell()
        elif char in "\n;|" or (char == "&" and not self._text.startswith("&>", self._at)):
            self._at += 1
            self._command(words)
            self._before = char if words else self._before + char
            if char == "\n":
                self._skip_documents()
            return []
        elif match := _REDIRECTION.match(self._text, self._at):
            self._redirected(match[0])
        else:
            word = self._word()
            if not (word.isdecimal() and self._next() in ("<", ">")):  # 2>&1
                words.append(word)
        return words

    def _subshell(self) -> None:
        inside, self._inside = self._inside, True
        self.read(closing=True)
        self._inside = inside

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _line_end(self) -> int:
        end = self._text.find("\n", self._at)
        return len(self._text) if end < 0 else end

    def _redirected(self, operator: str) -> None:
        self._at += len(operator)
        if self._next() == "(":
            raise _UnseenError  # <(COMMAND)
        while self._next() and self._next() in _BLANK:
            self._at += 1
        begin = self._at
        target = self._word()
        if operator in ("<<", "<<-"):
            raw = self._text[begin : self._at]
            self._documents.append((target, any(quote in raw for quote in "'\"\\")))

    def _skip_documents(self) -> None:
        for end, quoted in self._documents:
            while True:
                if self._at >= len(self._text):
                    raise _UnseenError
                line = self._text[self._at : self._line_end()]
                self._at = min(self._line_end() + 1, len(self._text))
                if line.lstrip("\t") == end:
                    break
                if not quoted and ("$(" in line or "`" in line):
                    raise _UnseenError
        self._documents = []

    def _word(self) -> str:
        begin, parts = self._at, list[str]()
        while (char := self._next()) and char not in _ENDS:
            if char == "'":
                end = self._text.find("'", self._at + 1)
                if end < 0:
                    raise _UnseenError
                parts.append(self._text[self._at + 1 : end])
                self._at = end + 1
            elif char == '"':
                self._at += 1
                while (inner := self._next()) != '"':
                    parts.append(self._character(inner))
                self._at += 1
            else:
                parts.append(self._character(char))
        if self._at == begin:
            raise _UnseenError
        return "".join(parts)

    def _character(self, char: str) -> str:
        """One character, or what stands for it: an escaped one, or ``$`` for a value."""
        if char in ("", "`"):
            raise _UnseenError
        if char == "\\":
            escaped = self._text[self._at + 1 : self._at + 2]
            self._at += 2
            return "" if escaped == "\n" else escaped
        if char != "$":
            self._at += 1
            return char
        if match := _ARITHMETIC.match(self._text, self._at) or _PARAMETER.match(
            self._text, self._at
        ):
            self._at = match.end()
        elif self._text.startswith("$(", self._at) and not self._text.startswith("$((", self._at):
            self._at += 2
            self._subshell()
        else:
            raise _UnseenError
        return "$"

    def _command(self, words: list[str]) -> None:
        """Keeps a command, without what stands before its program."""
        while words:
            first, *rest = words
            if first in _CLOSING:
                return
            self._inside |= first == "for" or first in _OPENING
            if first == "for":
                if "do" in rest:
                    raise _UnseenError
                return
            if first in _OPENING:
                words = rest[1:] if first == "time" and rest[:1] == ["-p"] else rest
            elif _ASSIGNMENT.match(first) and not _SEARCHED.match(first):
                words = rest
            elif first in ("exec", "command"):
                if first == "command" and rest[:1] in (["-v"], ["-V"]):
                    return
                if rest and _OPTION.match(rest[0]):
                    raise _UnseenError
                words = rest
            else:
                return self._keep(words)

    def _keep(self, words: list[str]) -> None:
        first = words[0]
        if self._tests or first == "[[":  # in which && and || join no commands
            self._tests = words[-1] != "]]"
            return
        if first in _UNSEEN or "$" in first or any(map(_SEARCHED.match, words)):
            raise _UnseenError
        if first in _SETTING and any(word.startswith("$") for word in words):
            raise _UnseenError  # which variables is not known
        if first in ("cd", "pushd", "popd"):
            self._moved(words)
        elif first not in _BUILTIN:
            self.commands.append(tuple(words))
            self.placed.append(tuple(self._placed(w, not i) for i, w in enumerate(words)))
        self._last = first

    def _moved(self, words: list[str]) -> None:
        """Follows a ``cd`` that is sure to run before all that comes after it."""
        follows = self._text[self._at - 1 : self._at + 1]
        joined = self._before.strip("\n;")
        sure = not joined or (joined == "&&" and self._last in _SURE)
        alone = follows[:1] not in ("|", "&") or follows in ("||", "&&")
        self.plain &= words[0] == "cd" and sure and alone and not self._inside
        target = [word for word in words[1:] if word not in ("--", "-L", "-P")]
        known = len(target) == 1 and not target[0].startswith(("~", "-")) and "$" not in target[0]
        self._folder = self._joined(target[0]) if known else ""

    def _placed(self, word: str, is_program: bool) -> str:
        relative = "/" in word and not word.startswith(("/", "~")) and "$" not in word
        named = is_program or word.startswith(("./", "../"))
        return (self._joined(word) or word) if relative and named else word

    def _joined(self, path: str) -> str:
        """A path from the folder that the text is in; empty where that is not known."""
        path = posixpath.normpath(posixpath.join(self._folder, path))
        return path if path.startswith("/") else ""
