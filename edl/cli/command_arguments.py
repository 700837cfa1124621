"""The parts of a command's description: a command, a job, a switch, a value, and settings of `edl.config`."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol, TypeAlias

import msgspec

from edl.config import TABLE, Given, Setting
from edl.errors import ConfigError, UsageError, did_you_mean


class Action(Protocol):
    """A command: it takes its arguments, and returns the exit code."""

    def __call__(self, arguments: argparse.Namespace, /) -> int: ...


class Parser(argparse.ArgumentParser):
    """Report an error in one line, instead of the usage of the whole command."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Raises UsageError for an unknown command, or for a value outside the choices."""
        if action.choices is not None and value not in action.choices:
            kind = "command" if isinstance(action.choices, dict) else action.dest
            near = did_you_mean(KNOWN_ELSEWHERE.get(str(value), str(value)), map(str, action.choices))
            raise UsageError(f"unknown {kind} {value}{near}; {self.hint}")

    @property
    def hint(self) -> str:
        return f"see '{self.prog} --help'"

    def unknown(self, word: str) -> UsageError:
        """Return the error for a word that no flag or argument of this command takes."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        name = word.partition("=")[0]
        near = did_you_mean(KNOWN_ELSEWHERE.get(name, name), flags) if word.startswith("-") else ""
        return UsageError(f"unknown flag or argument {word}{near}; {self.hint}")

    def error(self, message: str) -> NoReturn:
        missing = "the following arguments are required: "
        if message.startswith(missing):
            message = f"missing: {', '.join(map(self._shown, message.removeprefix(missing).split(', ')))}"
        raise UsageError(f"{message.removeprefix('argument ')}; {self.hint}")

    def _shown(self, name: str) -> str:
        """Show a missing flag with its value, and a missing command with the words that it may be."""
        for action in self._actions:
            if name == "/".join(action.option_strings):
                return f"{name} {action.metavar}"
            if name == action.metavar and isinstance(action.choices, dict):
                return f"{name} ({', '.join(action.choices)})"
        return name


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # of edl, or of a group
Flags: TypeAlias = "Parser | argparse._ArgumentGroup"
TWINS: set[str] = set()  # variables of all flags that are no settings, once the parser is built
# Words that other tools use: torchrun, horovodrun, kubectl, docker, ray.
KNOWN_ELSEWHERE = {"list": "status", "ls": "status", "ps": "status", "get": "status", "kill": "stop", "delete": "stop",
                   "start": "run", "launch": "run", "resize": "scale", "--nproc-per-node": "-np",
                   "--nproc_per_node": "-np", "--name": "--job", "--config-file": "--config"}  # fmt: skip


def later(module: str, name: str) -> Action:
    """Return a command that is imported when it is carried out: `edl hosts` runs each second and needs none of the
    others.
    """

    def act(arguments: argparse.Namespace, /) -> int:
        carried_out: Action = getattr(importlib.import_module(f"edl.cli.{module}"), name)
        return carried_out(arguments)

    return act


def command(found: Commands, name: str, act: Action, summary: str, examples: str) -> Parser:
    parser = _parser(found, name, summary, examples)
    parser.set_defaults(act=act, typed=parser)
    return parser


def group(found: Commands, name: str, summary: str, examples: str) -> Commands:
    """Add the first word of commands of two words."""
    return _parser(found, name, summary, examples).add_subparsers(metavar="COMMAND", required=True)


def _parser(found: Commands, name: str, summary: str, examples: str) -> Parser:
    return found.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_job(parser: Parser, nargs: str | None = None) -> None:
    """Add the job's name, and the settings that locate a job started elsewhere."""
    parser.add_argument("job", metavar="JOB", nargs=nargs, help="name of the job")
    add_settings(parser.add_argument_group("where the job is"), "coordinator", "secret_file", "home")


def add_switch(parser: Flags, flag: str, text: str, *short: str) -> None:
    variable = _variable(flag)
    value = os.environ.get(variable, "").lower()
    if value not in {"", "0", "1", "false", "true", "no", "yes"}:
        raise ConfigError(f"{variable}={value}: must be 1 or 0")
    on = value in {"1", "true", "yes"}
    parser.add_argument(*short, flag, action="store_true", default=on, help=f"{text} [{variable}]")


def add_value(  # noqa: PLR0913 - as argparse's own
    parser: Flags,
    flag: str,
    metavar: str,
    text: str,
    *,
    default: str | None = None,
    required: bool = False,
    field: str | None = None,
    also: tuple[str, ...] = (),
) -> None:
    """Add a flag with a value, which its environment variable may give too. `field`: the name in the arguments, if it
    differs from the flag's. `also`: other names of the flag.
    """
    variable = _variable(flag)
    value = os.environ.get(variable) or default
    needed = required and value is None
    told = f"{text} [{variable}]"
    parser.add_argument(flag, *also, dest=field, metavar=metavar, default=value, required=needed, help=told)


def add_values(
    parser: Flags, flags: Mapping[str, tuple[str, str]], groups: Mapping[str, argparse._ArgumentGroup] | None = None
) -> None:
    """`flags`: name -> (metavar, help)."""
    for name, (metavar, text) in flags.items():
        add_value((groups or {}).get(name, parser), f"--{name}", metavar, text)


def grouped(parser: Parser, groups: Mapping[str, Sequence[str]]) -> dict[str, argparse._ArgumentGroup]:
    """Make groups of the help; return the group of each flag or setting, by name."""
    made = {title: parser.add_argument_group(title) for title in groups}
    return {name: made[title] for title, names in groups.items() for name in names}


def add_list(parser: Flags, flag: str, metavar: str, text: str) -> None:
    """Add a flag that may be repeated; its environment variable holds all values, separated by blanks."""
    variable = _variable(flag)
    values = os.environ.get(variable, "").split()
    told = f"{text}; may be given again [{variable}]"
    parser.add_argument(flag, metavar=metavar, action="append", default=values, help=told)


def _variable(flag: str) -> str:
    name = f"EDL_{flag.removeprefix('--').upper().replace('-', '_')}"
    if not any(name in setting.variables for setting in TABLE):  # as EDL_STRAGGLERS, of `edl simulate`
        TWINS.add(name)
    return name


def add_settings(parser: Flags, *fields: str, text: str = "") -> None:
    """Add flags of settings. `text`: their help here, if it differs from the table's."""
    for setting in TABLE:
        if setting.field in fields:
            add_setting(parser, msgspec.structs.replace(setting, help=text) if text else setting)


def add_setting(parser: Flags, setting: Setting) -> None:
    parser.add_argument(
        *setting.flags,
        action=_Keep,
        field=setting.field,
        dest="given",
        default={},
        metavar=setting.metavar,
        help=f"{setting.help} [{setting.variables[0]}]",
    )


class _Keep(argparse.Action):
    """Keep the text of a setting, and the flag as it was typed: `edl.config` parses it, as it does variables."""

    def __init__(self, field: str, **keywords: object) -> None:
        super().__init__(**keywords)  # type: ignore[arg-type]
        self._field = field

    def __call__(
        self,
        _: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        before: Mapping[str, Given] = getattr(namespace, self.dest)
        setattr(namespace, self.dest, {**before, self._field: Given(str(values), f"{option_string} {values}")})
