"""Shell scripts cut into commands, as far as that is safe.

Commands that run one after another (`&&`, `;`, a new line) come out singly. Whatever decides,
repeats, pipes or runs beside others comes out as one piece that nobody takes apart: what is inside
may never run. (POSIX.1-2017, Shell Command Language, 2.3, 2.9 and 2.10.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from fairlead_build.importing.located import Located

# What opens a compound command at the place of a command's name, and what closes it.
_COMPOUND = {
    "if": "fi",
    "case": "esac",
    "for": "done",
    "while": "done",
    "until": "done",
    "select": "done",
    "{": "}",
    "[[": "]]",
    "function": "}",
}
# Followed by a command's name, like the beginning of a line.
_BEFORE_COMMANDS = {"then", "else", "elif", "do", "!", "time", "{", "if", "while", "until"}
_OPERATORS = re.compile(r"&&|\|\||;;&?|;&|\|&|[;&|()\n]")
_REDIRECTION = re.compile(r"\d*(<<<|<<-?|<>|<&|>&|>>|>\||&>>?|<|>)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIMPLE_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


@dataclass(frozen=True)
class Word:
    """One word of a command. ``value`` is None when only a shell at work could tell it."""

    value: str | None
    raw: str


@dataclass(frozen=True)
class Command:
    """One simple command, or a piece that was not taken apart.

    Attributes:
        where: its text and lines.
        words: without redirections; empty for a piece that was not taken apart.
        redirections: operator and target of each.
        why: why it was not taken apart; empty otherwise.
    """

    where: Located
    words: tuple[Word, ...] = ()
    redirections: tuple[tuple[str, str], ...] = ()
    why: str = ""


@dataclass(frozen=True)
class _Token:
    kind: Literal["word", "operator", "redirection", "body"]
    start: int
    end: int
    word: Word


def commands(script: Located, variables: Mapping[str, str] | None = None) -> list[Command]:
    """The commands of a script, in order.

    Args:
        variables: what is known of the environment; words that need others have no value.
    """
    found: list[Command] = []
    text = script.text
    tokens = _tokens(text, variables or {})
    at = 0
    while at < len(tokens):
        if tokens[at].kind == "operator" and tokens[at].word.raw in ("\n", ";"):
            at += 1
            continue
        end, why = _piece(tokens, at)
        end = max(end, at + 1)  # a stray operator is a piece too
        begin, stop = tokens[at].start, tokens[end - 1].end
        where = script[begin:stop].strip()
        if why:
            found.append(Command(where, why=why))
        else:
            found.append(_simple(where, tokens[at:end]))
        at = end
        if at < len(tokens) and tokens[at].word.raw == "&&" and tokens[at].kind == "operator":
            at += 1
    return found


def _simple(where: Located, tokens: list[_Token]) -> Command:
    words, redirections = [], []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token.kind == "redirection":
            named = _is_word(tokens, position + 1)
            target = tokens[position + 1].word.value if named else None
            redirections.append((token.word.raw, target if target is not None else "?"))
            position += 1 + named
            continue
        words.append(token.word)
        position += 1
    return Command(where, tuple(words), tuple(redirections))


def _is_word(tokens: list[_Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].kind == "word"


def _piece(tokens: list[_Token], at: int) -> tuple[int, str]:
    """Where the piece that begins at ``at`` ends, and why it cannot be taken apart, if so."""
    why = ""
    expected: list[str] = []  # what closes the compound commands that are open
    fresh = True  # a command's name may stand here
    joined = False  # what comes next belongs to the same list of commands, also on the next line
    position = at
    while position < len(tokens):
        token = tokens[position]
        raw = token.word.raw
        if token.kind == "operator":
            inside_case = bool(expected) and expected[-1] == "esac"
            if raw == "(":
                if not inside_case:
                    expected.append(")")
                why = why or "a part of it runs in a shell of its own"
            elif raw == ")":
                if expected and expected[-1] == ")":
                    expected.pop()
                elif not inside_case:
                    why = why or "its brackets do not match"
            elif raw in ("|", "|&"):
                why = why or "it is a pipe"
            elif raw == "||":
                why = why or "it runs only when another command fails, or another when it does"
            elif raw == "&":
                why = why or "it runs beside others"
            elif raw == "\n" and joined:
                position += 1
                continue
            elif not expected and raw in (";", "\n", "&&"):
                return position, why
            fresh, joined = True, raw in ("|", "|&", "||", "&&")
            position += 1
            continue
        joined = False
        if token.kind != "word":
            if token.kind == "body":
                why = why or "its input is written out below it"
            position += 1 + (token.kind == "redirection" and _is_word(tokens, position + 1))
            continue
        if fresh and expected and raw == expected[-1]:
            expected.pop()
            fresh = False
        elif not fresh and expected and expected[-1] == "]]" and raw == "]]":
            expected.pop()
        elif fresh and raw in _COMPOUND:
            expected.append(_COMPOUND[raw])
            why = why or f"what is in it runs as `{raw}` decides"
            fresh = raw in _BEFORE_COMMANDS
        elif fresh and raw in _BEFORE_COMMANDS:
            why = why or f"`{raw}` changes what it means"
            fresh = True
        elif not (fresh and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", raw, re.DOTALL)):
            fresh = False
        position += 1
    if expected:
        why = f"its `{expected[-1]}` is missing"
    return position, why


def _tokens(text: str, variables: Mapping[str, str]) -> list[_Token]:
    """Words, operators and redirections; the bodies of a line's here-documents are one token."""
    found: list[_Token] = []
    pending: list[tuple[str, bool]] = []  # here-documents whose bodies are still to come
    at = 0
    while at < len(text):
        char = text[at]
        if char in " \t\r":
            at += 1
        elif text.startswith("\\\n", at):
            at += 2
        elif char == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif char == "\n" and pending:
            end = _bodies(text, at + 1, pending)
            found.append(_Token("body", at, end, Word(None, "")))
            found.append(_Token("operator", end, end, Word("\n", "\n")))
            pending.clear()
            at = end
        elif redirection := _REDIRECTION.match(text, at):
            raw = redirection[0]
            found.append(_Token("redirection", at, redirection.end(), Word(raw, raw)))
            at = redirection.end()
            if raw.endswith(("<<", "<<-")):
                while text[at : at + 1] in (" ", "\t"):
                    at += 1
                end, word = _word(text, at, variables)
                found.append(_Token("word", at, end, word))
                pending.append((re.sub(r"[\\'\"]", "", word.raw), raw.endswith("-")))
                at = end
        elif operator := _OPERATORS.match(text, at):
            found.append(_Token("operator", at, operator.end(), Word(operator[0], operator[0])))
            at = operator.end()
        else:
            end, word = _word(text, at, variables)
            found.append(_Token("word", at, end, word))
            at = end
    return found


def _bodies(text: str, at: int, pending: list[tuple[str, bool]]) -> int:
    """Where the bodies of these here-documents end."""
    for delimiter, tabs in pending:
        while at < len(text):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            line = text[at:end]
            at = min(end + 1, len(text))
            if (line.lstrip("\t") if tabs else line) == delimiter:
                break
    return at


def _word(text: str, at: int, variables: Mapping[str, str]) -> tuple[int, Word]:
    """The word that begins at ``at``: its end, and its value where that is certain."""
    begin, sure = at, True
    value: list[str] = []
    while at < len(text):
        char = text[at]
        if char in " \t\r\n;&|()<>":
            break
        if char == "'":
            end = text.find("'", at + 1)
            sure, end = (sure, end) if end >= 0 else (False, len(text))
            value.append(text[at + 1 : end])
            at = end + 1
        elif char == '"':
            at, inner, certain = _double(text, at + 1, variables)
            value.append(inner)
            sure = sure and certain
        elif char == "\\":
            if text[at + 1 : at + 2] != "\n":
                value.append(text[at + 1 : at + 2])
            at += 2
        elif char in "$`":
            at, inner, certain = _expansion(text, at, variables)
            # Unquoted, a value is split at blanks and its stars find files.
            certain = certain and not re.search(r"[\s*?]", inner) and inner != ""
            value.append(inner)
            sure = sure and certain
        else:
            sure = sure and char not in "*?{"
            if char == "~" and at == begin:
                sure = False
            value.append(char)
            at += 1
    at = min(max(at, begin + 1), len(text))
    return at, Word("".join(value) if sure else None, text[begin:at])


def _double(text: str, at: int, variables: Mapping[str, str]) -> tuple[int, str, bool]:
    """What follows an opening double quote: the end behind the closing one, value, certainty."""
    sure = True
    value: list[str] = []
    while at < len(text):
        char = text[at]
        if char == '"':
            return at + 1, "".join(value), sure
        if char == "\\":
            follows = text[at + 1 : at + 2]
            value.append(
                "" if follows == "\n" else follows if follows in '$`"\\' else char + follows
            )
            at += 2
        elif char in "$`":
            at, inner, certain = _expansion(text, at, variables)
            value.append(inner)
            sure = sure and certain
        else:
            value.append(char)
            at += 1
    return len(text), "".join(value), False


def _expansion(text: str, at: int, variables: Mapping[str, str]) -> tuple[int, str, bool]:
    """What stands at a `$` or a backtick: its end, its value, and whether that is certain."""
    if simple := _SIMPLE_VARIABLE.match(text, at):
        name = simple[1] or simple[2]
        return simple.end(), variables.get(name, ""), name in variables
    if text[at] == "`":
        end = text.find("`", at + 1)
        return (len(text) if end < 0 else end + 1), "", False
    if text[at + 1 : at + 2] in ("(", "{"):
        return _balanced(text, at + 1), "", False
    if text[at + 1 : at + 2] and text[at + 1] in "0123456789@*#?-$!'\"":
        return at + 2 if text[at + 1] not in "'\"" else at + 1, "", False
    return at + 1, "$", True


def _balanced(text: str, at: int) -> int:
    """The end of what an opening bracket at ``at`` begins, quotes considered."""
    pairs = {"(": ")", "{": "}"}
    expected = [pairs[text[at]]]
    at += 1
    while at < len(text) and expected:
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "'":
            end = text.find("'", at + 1)
            at = len(text) if end < 0 else end
        elif char in pairs:
            expected.append(pairs[char])
        elif char == expected[-1]:
            expected.pop()
        at += 1
    return min(at, len(text))


def assignments(words: tuple[Word, ...]) -> Iterator[tuple[str, str | None]]:
    """``NAME=value`` at the beginning of a command, each with its value where that is certain."""
    for word in words:
        name, equals, _ = word.raw.partition("=")
        if not equals or not _NAME.fullmatch(name):
            return
        yield name, None if word.value is None else word.value.partition("=")[2]
