"""`edl completion`: the script that a shell runs at each Tab, and the words that fit there.

Owns: the words, taken from the parser, and a script for each shell that asks for them. Does not own: names of files,
which the shells complete themselves if no word fits.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence

from edl.cli.command_arguments import Parser
from edl.cli.parser import build
from edl.config import Settings
from edl.errors import EdlError

SCRIPTS = {
    "bash": """\
_edl() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _edl edl
""",
    "zsh": """\
#compdef edl
_edl() {
    local -a found
    found=(${(f)"$("$words[1]" completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _edl edl
""",
    "fish": """\
function __edl_words
    set -l typed (commandline -opc)
    set -l found ($typed[1] completion words $typed[2..-1] "$(commandline -ct)" 2>/dev/null)
    if set -q found[1]
        string join \\n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c edl -f -a '(__edl_words)'
""",
}


def complete(arguments: argparse.Namespace) -> int:
    if arguments.shell in SCRIPTS:
        sys.stdout.write(SCRIPTS[arguments.shell])
    else:
        sys.stdout.writelines(f"{word}\n" for word in fitting(build(), arguments.words, _jobs))
    return 0


def fitting(parser: Parser, typed: Sequence[str], jobs: Callable[[], Iterable[str]]) -> list[str]:
    """Return the words that the last typed one may become; none if it is a file or a word of the user's own command."""
    *before, begun = typed or [""]
    if before[:1] == ["help"]:  # only names of commands follow
        before, jobs = before[1:], list
    places = _positionals(parser)
    flag: argparse.Action | None = None  # the flag that awaits its value
    for word in before:
        if flag is not None:
            flag = None
        elif word.startswith("-"):
            named = parser._option_string_actions.get(word)
            flag = named if named is not None and named.nargs != 0 else None
        elif not places or places[0].nargs == argparse.REMAINDER:  # a command's own words begin here
            return []
        elif isinstance(places[0].choices, dict):
            if (chosen := places[0].choices.get(word)) is None:
                return []
            parser, places = chosen, _positionals(chosen)
        else:
            places = places[1:]
    if flag is None and begun.startswith("-"):
        known: Iterable[str] = (name for action in parser._actions for name in action.option_strings)
    else:
        known = _values(flag or next(iter(places), None), jobs)
    return sorted(word for word in known if word.startswith(begun))


def _positionals(parser: Parser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _values(of: argparse.Action | None, jobs: Callable[[], Iterable[str]]) -> Iterable[str]:
    shown = str(of.metavar) if of is not None else ""
    if shown == "JOB":
        return jobs()
    if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", shown):
        return shown.split("|")
    return [str(choice) for choice in of.choices or ()] if of is not None else []


def _jobs() -> Iterable[str]:
    from edl.launch.job_records import records  # only here: a Tab is to be quick

    try:
        return [record.job for _, record in records(Settings.from_given({}, os.environ).home)]
    except EdlError:
        return []
