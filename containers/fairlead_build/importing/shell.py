"""Shell scripts cut into commands, as far as that is safe.

Commands that run one after another (`&&`, `;`, a new line) come out singly. Anything with a
condition, a loop, a pipe or a background job comes out as one opaque piece: what is inside may never
run. (POSIX.1-2017, Shell Command Language, 2.3, 2.9 and 2.10.) ``shlex`` splits words only: it knows
neither operators' scope nor where a word came from, nor which words a shell would expand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fairlead_build.importing.located import Located

# What opens a compound command at the place of a command's name, and what closes it.
_COMPOUND = {
    "if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "select": "done",
    "{": "}", "[[": "]]", "function": "}",
}  # fmt: skip
# Followed by a command's name, like the beginning of a line.
_BEFORE_COMMANDS = {"then", "else", "elif", "do", "!", "time", "{", "if", "while", "until"}
_OPERATORS = re.compile(r"&&|\|\||;;&?|;&|\|&|[;&|()\n]")
# Operators that make a piece opaque.
_OPAQUE = {
    "|": "it is a pipe",
    "|&": "it is a pipe",
    "||": "it runs only when another command fails, or another when it does",
    "&": "it runs in the background",
}
_REDIRECTION = re.compile(r"\d*(<<<|<<-?|<>|<&|>&|>>|>\||&>>?|<|>)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
_SIMPLE_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


@dataclass(frozen=True)
class Word:
    """One word of a command. ``value`` is None when only a running shell could know it."""

    value: str | None
    raw: str


@dataclass(frozen=True)
class Command:
    """One simple command, or an opaque piece.

    Attributes:
        where: its text and lines.
        words: without redirections; empty for an opaque piece.
        redirections: operator and target of each.
        why: why the piece is opaque; empty for a simple command.
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

    @property
    def raw(self) -> str:
        return self.word.raw


def commands(script: Located, variables: Mapping[str, str] | None = None) -> list[Command]:
    """The commands of a script, in order.

    Args:
        variables: what is known of the environment; words that need others have no value.
    """
    pieces: list[Command] = []
    tokens = _tokens(script.text, variables or {})
    at = 0
    while at < len(tokens):
        if tokens[at].kind == "operator" and tokens[at].raw in ("\n", ";"):
            at += 1
            continue
        piece = _Piece(tokens, at)
        end = max(piece.end, at + 1)  # a stray operator is a piece too
        where = script[tokens[at].start : tokens[end - 1].end].strip()
        pieces.append(
            Command(where, why=piece.why) if piece.why else _simple(where, tokens[at:end])
        )
        at = end
        if at < len(tokens) and tokens[at].kind == "operator" and tokens[at].raw == "&&":
            at += 1
    return pieces


def _simple(where: Located, tokens: list[_Token]) -> Command:
    words, redirections = [], []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token.kind == "redirection":
            named = _is_word(tokens, position + 1)
            target = tokens[position + 1].word.value if named else None
            redirections.append((token.raw, target if target is not None else "?"))
            position += 1 + named
            continue
        words.append(token.word)
        position += 1
    return Command(where, tuple(words), tuple(redirections))


def _is_word(tokens: list[_Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].kind == "word"


@dataclass
class _Piece:
    """The tokens from ``begin`` to the end of one list of commands.

    Attributes:
        why: why it is opaque, if it is.
        expected: what closes the compound commands that are open.
        fresh: a command's name may come next.
        joined: what comes next belongs to the same list, also on the next line.
        end: the position behind its last token.
    """

    tokens: list[_Token]
    begin: int
    why: str = ""
    expected: list[str] = field(default_factory=list)
    fresh: bool = True
    joined: bool = False
    end: int = 0

    def __post_init__(self) -> None:
        self.end = self.begin
        while self.end < len(self.tokens):
            token = self.tokens[self.end]
            if token.kind == "operator":
                if not self._operator(token.raw):
                    return
            else:
                self.joined = False
                if token.kind == "word":
                    self._word(token.raw)
                elif token.kind == "body":
                    self._opaque("its input is written out below it")
                elif _is_word(self.tokens, self.end + 1):
                    self.end += 1  # the target of a redirection
            self.end += 1
        if self.expected:
            self.why = f"its `{self.expected[-1]}` is missing"

    def _opaque(self, why: str) -> None:
        self.why = self.why or why

    def _operator(self, raw: str) -> bool:
        """Takes in an operator; False when the piece ends before it."""
        if raw in "()":
            self._bracket(raw)
        elif raw in _OPAQUE:
            self._opaque(_OPAQUE[raw])
        elif raw == "\n" and self.joined:
            return True
        elif not self.expected and raw in (";", "\n", "&&"):
            return False
        self.fresh, self.joined = True, raw in ("|", "|&", "||", "&&")
        return True

    def _bracket(self, raw: str) -> None:
        inside_case = self.expected[-1:] == ["esac"]
        if raw == "(":
            if not inside_case:
                self.expected.append(")")
            self._opaque("a part of it runs in a separate shell")
        elif self.expected[-1:] == [")"]:
            self.expected.pop()
        elif not inside_case:
            self._opaque("its brackets do not match")

    def _word(self, raw: str) -> None:
        awaited = self.expected[-1:] == [raw]
        if awaited and (self.fresh or raw == "]]"):
            self.expected.pop()
            self.fresh = False
        elif self.fresh and raw in _COMPOUND:
            self.expected.append(_COMPOUND[raw])
            self._opaque(f"what is in it runs as `{raw}` decides")
            self.fresh = raw in _BEFORE_COMMANDS
        elif self.fresh and raw in _BEFORE_COMMANDS:
            self._opaque(f"`{raw}` changes what it means")
        elif not (self.fresh and _ASSIGNMENT.fullmatch(raw)):
            self.fresh = False


def _tokens(text: str, variables: Mapping[str, str]) -> list[_Token]:
    """Words, operators and redirections; the bodies of a line's here-documents are one token."""
    tokens: list[_Token] = []
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
            tokens.append(_Token("body", at, end, Word(None, "")))
            tokens.append(_Token("operator", end, end, Word("\n", "\n")))
            pending.clear()
            at = end
        elif match := _REDIRECTION.match(text, at) or _OPERATORS.match(text, at):
            kind: Literal["redirection", "operator"] = (
                "redirection" if match.re is _REDIRECTION else "operator"
            )
            tokens.append(_Token(kind, at, match.end(), Word(match[0], match[0])))
            at = match.end()
            if kind == "redirection" and match[0].endswith(("<<", "<<-")):
                at += len(text[at:]) - len(text[at:].lstrip(" \t"))
                end, word = _word(text, at, variables)
                tokens.append(_Token("word", at, end, word))
                pending.append((re.sub(r"[\\'\"]", "", word.raw), match[0].endswith("-")))
                at = end
        else:
            end, word = _word(text, at, variables)
            tokens.append(_Token("word", at, end, word))
            at = end
    return tokens


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
    while at < len(text) and (char := text[at]) not in " \t\r\n;&|()<>":
        inner, certain = char, char not in "*?{" and (char, at) != ("~", begin)
        if char == "'":
            end = text.find("'", at + 1)
            certain, end = (True, end) if end >= 0 else (False, len(text))
            inner, at = text[at + 1 : end], end + 1
        elif char == '"':
            at, inner, certain = _double(text, at + 1, variables)
        elif char == "\\":
            inner, at = text[at + 1 : at + 2].replace("\n", ""), at + 2
        elif char in "$`":
            at, inner, certain = _expansion(text, at, variables)
            # Unquoted, a value is split at blanks and its stars match files.
            certain = certain and not re.search(r"[\s*?]", inner) and inner != ""
        else:
            at += 1
        value.append(inner)
        sure = sure and certain
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
