"""Shell scripts cut into commands, as far as that is safe.

Commands that run one after another (`&&`, `;`, a new line) come out singly. Anything with a
condition, a loop, a pipe or a background job comes out as one opaque piece: what is inside may never
run. (POSIX.1-2017, Shell Command Language, 2.3, 2.9 and 2.10.) ``shlex`` splits words only: it knows
neither operators' scope nor where a word came from, nor which words a shell would expand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlead_build.importing.located import Located

# What opens a compound command at the place of a command's name, and what closes it.
_COMPOUND = {
    "if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "select": "done",
    "{": "}", "[[": "]]", "function": "}",
}  # fmt: skip
# Followed by a command's name, like the beginning of a line.
_BEFORE_COMMANDS = {"then", "else", "elif", "do", "!", "time", "{", "if", "while", "until"}
_BLANK = re.compile(r"(?:[ \t\r]|\\\n)*(?:#[^\n]*)?")
_OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\|&|[;|()\n]|&(?!>)")
_REDIRECTION = re.compile(r"\d*(<<<|<<-?|<>|<&|>&|>>|>\||&>>?|<|>)")
_SEPARATORS = " \t\r\n;&|()<>"
# Operators that make a piece opaque.
_OPAQUE = {
    "|": "it is a pipe",
    "|&": "it is a pipe",
    "||": "it runs only when another command fails, or another when it does",
    "&": "it runs in the background",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
_SIMPLE_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_NESTING = re.compile(r"\\.|'[^']*(?:'|$)|[(){}]", re.DOTALL)


class Token(NamedTuple):
    """A part of a script.

    Attributes:
        kind: word, operator, redirection (its value is its target), or body of here-documents.
        value: None when only a running shell could know it.
    """

    kind: str
    start: int
    end: int
    raw: str
    value: str | None = None


@dataclass(frozen=True)
class Command:
    """One simple command, or an opaque piece.

    Attributes:
        where: its text and lines.
        words: without redirections; empty for an opaque piece.
        written: the target of each redirection, ``?`` where it is not known.
        why: why the piece is opaque; empty for a simple command.
        joined: it follows `&&`, so it runs only where what stands before succeeds.
    """

    where: Located
    words: tuple[Token, ...] = ()
    written: tuple[str, ...] = ()
    why: str = ""
    joined: bool = False


def commands(script: Located, variables: Mapping[str, str] | None = None) -> list[Command]:
    """The commands of a script, in order.

    Args:
        variables: what is known of the environment; words that need others have no value.
    """
    pieces: list[Command] = []
    tokens = _tokens(script.text, variables or {})
    at, joined = 0, False
    while at < len(tokens):
        if tokens[at].kind == "operator" and tokens[at].raw in ("\n", ";"):
            at += 1
            continue
        piece, begin = _Piece(), at
        while at < len(tokens) and piece.take(tokens[at]):
            at += 1
        at = max(at, begin + 1)  # a stray operator is a piece too
        where = script[tokens[begin].start : tokens[at - 1].end].strip()
        parts = [] if piece.opaque else tokens[begin:at]
        words = tuple(t for t in parts if t.kind != "redirection")
        targets = (t.value for t in parts if t.kind == "redirection")
        written = tuple("?" if target is None else target for target in targets)
        pieces.append(Command(where, words, written, piece.opaque, joined))
        joined = at < len(tokens) and tokens[at].raw == "&&"
        at += joined
    return pieces


class _Piece:
    """The tokens of one list of commands, taken in one after another."""

    def __init__(self) -> None:
        self._why = ""
        self._expected: list[str] = []  # what closes the compound commands that are open
        self._fresh = True  # a command's name may come next
        self._joined = False  # what comes next belongs to the same list, also on the next line

    @property
    def opaque(self) -> str:
        """Why the piece is opaque; empty when it is not."""
        return f"its `{self._expected[-1]}` is missing" if self._expected else self._why

    def take(self, token: Token) -> bool:
        """Takes in a token; False when the piece ends before it."""
        if token.kind == "operator":
            return self._operator(token.raw)
        self._joined = False
        if token.kind == "word":
            self._word(token.raw)
        elif token.kind == "body":
            self._refuse("its input is written out below it")
        return True

    def _refuse(self, why: str) -> None:
        self._why = self._why or why

    def _operator(self, raw: str) -> bool:
        inside_case = self._expected[-1:] == ["esac"]
        if raw == "(":
            self._expected += [] if inside_case else [")"]
            self._refuse("a part of it runs in a separate shell")
        elif raw == ")" and self._expected[-1:] == [")"]:
            self._expected.pop()
        elif raw == ")" and not inside_case:
            self._refuse("its brackets do not match")
        elif raw in _OPAQUE:
            self._refuse(_OPAQUE[raw])
        elif raw == "\n" and self._joined:
            return True
        elif not self._expected and raw in (";", "\n", "&&"):
            return False
        self._fresh, self._joined = True, raw in ("|", "|&", "||", "&&")
        return True

    def _word(self, raw: str) -> None:
        if self._expected[-1:] == [raw] and (self._fresh or raw == "]]"):
            self._expected.pop()
            self._fresh = False
        elif self._fresh and raw in _COMPOUND:
            self._expected.append(_COMPOUND[raw])
            self._refuse(f"what is in it runs as `{raw}` decides")
            self._fresh = raw in _BEFORE_COMMANDS
        elif self._fresh and raw in _BEFORE_COMMANDS:
            self._refuse(f"`{raw}` changes what it means")
        elif not (self._fresh and _ASSIGNMENT.fullmatch(raw)):
            self._fresh = False


def _tokens(text: str, variables: Mapping[str, str]) -> list[Token]:
    """Words, operators and redirections; the bodies of a line's here-documents are one token."""
    tokens: list[Token] = []
    pending: list[str] = []  # patterns of the lines that end here-documents still to come
    at = 0
    while (at := _skip(text, at)) < len(text):
        redirection = _REDIRECTION.match(text, at)
        if text[at] == "\n" and pending:
            end = _bodies(text, at + 1, pending)
            tokens += [Token("body", at, end, ""), Token("operator", end, end, "\n", "\n")]
            pending.clear()
        elif operator := _OPERATOR.match(text, at):
            end = operator.end()
            tokens.append(Token("operator", at, end, operator[0], operator[0]))
        elif redirection is None:
            end, value = _word(text, at, variables)
            tokens.append(Token("word", at, end, text[at:end], value))
        else:
            end, target, value = redirection.end(), _skip(text, redirection.end()), None
            if text[target : target + 1] not in _SEPARATORS and not _REDIRECTION.match(
                text, target
            ):
                end, value = _word(text, target, variables)
            tokens.append(Token("redirection", at, end, redirection[0], value))
            if redirection[1] in ("<<", "<<-"):
                tabs = "\t*" if redirection[1] == "<<-" else ""
                pending.append(tabs + re.escape(re.sub(r"[\\'\"]", "", text[target:end])))
        at = end
    return tokens


def _skip(text: str, at: int) -> int:
    """Where the next token begins."""
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _bodies(text: str, at: int, closings: list[str]) -> int:
    """Where the bodies of these here-documents end."""
    for closing in closings:
        ends = re.compile(f"^{closing}$", re.MULTILINE).search(text, at)
        at = min(ends.end() + 1, len(text)) if ends else len(text)
    return at


def _word(
    text: str, begin: int, variables: Mapping[str, str], *, quoted: bool = False
) -> tuple[int, str | None]:
    """The word that begins at ``begin``: its end, and its value where that is certain.

    Args:
        quoted: it is the inside of double quotes instead, which ends before the closing one.
    """
    at, sure, value = begin, True, ""
    while at < len(text) and (char := text[at]) not in ('"' if quoted else _SEPARATORS):
        inner: str | None = char
        if char == "\\":
            inner = text[at + 1 : at + 2].replace("\n", "")
            if quoted and inner not in '$`"\\':
                inner = char + inner
            at += 2
        elif char in "$`":
            at, inner = _expansion(text, at, variables)
            # Unquoted, a value is split at blanks and its stars match files.
            sure = sure and (quoted or (bool(inner) and not re.search(r"[\s*?]", inner or "")))
        elif char == "'" and not quoted:
            end = text.find("'", at + 1)
            inner, at = (text[at + 1 : end], end + 1) if end >= 0 else (None, len(text))
        elif char == '"':
            at, inner = _word(text, at + 1, variables, quoted=True)
            sure, at = sure and at < len(text), at + 1
        else:
            at += 1
            sure = sure and (quoted or (char not in "*?{" and (char, at - 1) != ("~", begin)))
        sure, value = sure and inner is not None, value + (inner or "")
    return min(at, len(text)), value if sure else None


def _expansion(text: str, at: int, variables: Mapping[str, str]) -> tuple[int, str | None]:
    """What stands at a `$` or a backtick: its end, and its value where that is certain."""
    if simple := _SIMPLE_VARIABLE.match(text, at):
        return simple.end(), variables.get(simple[1] or simple[2])
    if text[at] == "`":
        return text.find("`", at + 1) + 1 or len(text), None
    follows = text[at + 1 : at + 2]
    if follows in ("(", "{"):
        return _balanced(text, at + 1), None
    if follows and follows in "0123456789@*#?-$!'\"":
        return at + 1 + (follows not in "'\""), None
    return at + 1, "$"


def _balanced(text: str, at: int) -> int:
    """The end of what an opening bracket at ``at`` begins, quotes considered."""
    expected: list[str] = []
    for match in _NESTING.finditer(text, at):
        if match[0] in "({":
            expected.append(")" if match[0] == "(" else "}")
        elif match[0] == expected[-1]:
            expected.pop()
        if not expected:
            return match.end()
    return len(text)


def assignments(words: Sequence[Token]) -> Iterator[tuple[str, str | None]]:
    """``NAME=value`` at the beginning of a command, each with its value where that is certain."""
    for word in words:
        name, equals, _ = word.raw.partition("=")
        if not equals or not _NAME.fullmatch(name):
            return
        yield name, None if word.value is None else word.value.partition("=")[2]
