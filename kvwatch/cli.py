"""The command line: which command, what went wrong, which exit code. The commands themselves are in `commands`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from kvwatch import __version__
from kvwatch.commands import output
from kvwatch.commands.output import complain as _complain
from kvwatch.settings import SettingsError, debugging
from kvwatch.settings.values import nearest

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

#: Command -> module in `kvwatch.commands`, in the order of the help.
COMMANDS = ("run", "demo", "check", "record", "replay", "compare", "plan", "explain", "render")

_EPILOG = """\
examples:
  kvwatch demo                                see it find a real incident, without a GPU or a vLLM
  kvwatch check http://localhost:8000         what is wrong with my server now?
  kvwatch run --targets http://localhost:8000/metrics
                                              the sidecar: serves /metrics and a page on port 9477

`kvwatch COMMAND --help` explains a command. Settings may also stand in the environment (KVWATCH_INTERVAL=2s for
--interval 2s) or in a TOML file (--config FILE); `kvwatch run --show-config` prints what is in force.
"""
_NOT_WRITTEN, _INTERRUPTED, _BROKEN_PIPE, _INTERNAL = 1, 130, 141, 70


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code. No traceback reaches a user."""
    words = list(sys.argv[1:] if argv is None else argv)
    output.prepare()
    try:
        code = _run(words)
        output.finish()
    except SettingsError as error:
        for problem in error.problems:
            _complain(problem)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        output.give_up()  # the reader (head, less) went away
        return _BROKEN_PIPE
    except output.OutputError as error:
        output.give_up()
        _complain(str(error))
        return _NOT_WRITTEN
    except Exception as error:  # noqa: BLE001 - the last resort
        return _unexpected(error)
    return code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in a line, not in a page."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"ignored explicit argument .*", "takes no value", message, flags=re.DOTALL)
        _complain(f"{message}; `{self.prog} --help` explains")
        self.exit(2)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """As every text goes out: argparse itself says nothing of one that could not be written."""
        if message and file is sys.stdout:
            output.say(message, end="")
        else:
            super()._print_message(message, file)


def _run(words: list[str]) -> int:
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        _complain(f"there is no command {words[0]}{nearest(words[0], COMMANDS)}")
        _complain(f"commands: {', '.join(COMMANDS)}; `kvwatch --help` explains them")
        return 2
    chosen = words[0] if words and words[0] in COMMANDS else None
    parser, commands = _parsers(chosen)
    if not words:
        parser.print_help()
        return 0
    try:
        args, strange = parser.parse_known_args(words)
    except SystemExit as told:  # the help, or a mistake in the words
        return int(told.code or 0)
    if strange:
        known = re.findall(
            r"--[a-z][a-z-]*", commands[chosen].format_help() if chosen else parser.format_help()
        )
        # Only names of options: what stands beside one may be a secret.
        for word in [_name(word) for word in strange if word.startswith("-")] or strange:
            _complain(f"{word}: no such option or argument{nearest(word, known)}")
        return 2
    if "main" not in args:
        parser.print_help(sys.stderr)
        return 2
    from kvwatch.recording import RecordingError, WriteError

    try:
        return int(args.main(args))
    except RecordingError as error:
        _complain(str(error))
        return _NOT_WRITTEN if isinstance(error, WriteError) else 2


def _parsers(chosen: str | None) -> tuple[_Parser, dict[str, _Parser]]:
    """The parser; only the chosen command's options are loaded, for the help all of their titles."""
    parser = _Parser(
        prog="kvwatch",
        description="Watches a vLLM server's metrics and says what is wrong with its KV cache.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvwatch {__version__}")
    choices = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands = {}
    for name in COMMANDS if chosen is None else (chosen,):
        module = import_module(f"kvwatch.commands.{name}")
        commands[name] = choices.add_parser(
            name,
            help=module.HELP,
            description=module.HELP[:1].upper() + module.HELP[1:] + ".",
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add(commands[name])
        commands[name].set_defaults(main=module.main)
    return parser, commands


def _name(option: str) -> str:
    """The name of an option without the value that is written to it, as ``--name=value`` or ``-nvalue``."""
    return option.partition("=")[0] if option.startswith("--") else option[:2]


def _unexpected(error: Exception) -> int:
    if debugging():
        raise error
    line = " ".join(str(error).split())
    _complain(f"unexpected {type(error).__name__}{f': {line[:300]}' if line else ''}")
    _complain(
        "this is a fault in kvwatch; please report it with what KVWATCH_DEBUG=1 prints"
        f" (kvwatch {__version__}, Python {sys.version.split()[0]})"
    )
    return _INTERNAL
