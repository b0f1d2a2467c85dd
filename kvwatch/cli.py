"""The command line: parses arguments, runs a command of `kvwatch.commands`, prints errors, sets the exit code."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from kvwatch import __version__
from kvwatch.commands import output
from kvwatch.commands.output import print_error
from kvwatch.settings import SettingsError, debugging
from kvwatch.settings.values import nearest

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

COMMANDS = ("run", "demo", "check", "record", "replay", "compare", "plan", "explain", "render")
"""The commands in the order of the help. Each is a module of `kvwatch.commands`."""

_EPILOG = """\
examples:
  kvwatch demo                                plays a recorded incident; needs no GPU and no vLLM
  kvwatch check http://localhost:8000         reports what is wrong with a server now
  kvwatch run --targets http://localhost:8000/metrics
                                              runs the sidecar: /metrics and a page on port 9477

`kvwatch COMMAND --help` explains a command. Settings can also come from the environment (KVWATCH_INTERVAL=2s for
--interval 2s) or from a TOML file (--config FILE); `kvwatch run --show-config` prints those in force.
"""
_NOT_WRITTEN, _INTERRUPTED, _BROKEN_PIPE, _INTERNAL = 1, 130, 141, 70
"""Exit codes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. Users never see a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    output.prepare_streams()
    try:
        code = _run(words)
        output.flush()
    except SettingsError as error:
        for problem in error.problems:
            print_error(problem)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        output.discard_rest()  # the reader (head, less) is gone
        return _BROKEN_PIPE
    except output.OutputError as error:
        output.discard_rest()
        print_error(str(error))
        return _NOT_WRITTEN
    except Exception as error:  # noqa: BLE001 - the last resort
        return _unexpected(error)
    return code


class _Parser(argparse.ArgumentParser):
    """Prints an error as one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"ignored explicit argument .*", "takes no value", message, flags=re.DOTALL)
        print_error(f"{message}; `{self.prog} --help` explains")
        self.exit(2)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Prints the help through `output`: argparse itself ignores failed writes."""
        if message and file is sys.stdout:
            output.say(message, end="")
        else:
            super()._print_message(message, file)


def _run(words: list[str]) -> int:
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        print_error(f"there is no command {words[0]}{nearest(words[0], COMMANDS)}")
        print_error(f"commands: {', '.join(COMMANDS)}; `kvwatch --help` explains them")
        return 2
    chosen = words[0] if words and words[0] in COMMANDS else None
    parser, commands = _parsers(chosen)
    if not words:
        parser.print_help()
        return 0
    try:
        args, unknown = parser.parse_known_args(words)
    except SystemExit as end:  # --help, --version or a wrong argument
        return int(end.code or 0)
    if unknown:
        known = re.findall(
            r"--[a-z][a-z-]*", commands[chosen].format_help() if chosen else parser.format_help()
        )
        # Print only names of options: an argument beside one may be a secret.
        for word in [_name(word) for word in unknown if word.startswith("-")] or unknown:
            print_error(f"{word}: no such option or argument{nearest(word, known)}")
        return 2
    if "main" not in args:
        parser.print_help(sys.stderr)
        return 2
    from kvwatch.recording import RecordingError, WriteError

    try:
        return int(args.main(args))
    except RecordingError as error:
        print_error(str(error))
        return _NOT_WRITTEN if isinstance(error, WriteError) else 2


def _parsers(chosen: str | None) -> tuple[_Parser, dict[str, _Parser]]:
    """The parser and its sub-parsers: only that of `chosen`, which starts faster, or all of them for the help."""
    parser = _Parser(
        prog="kvwatch",
        description="Watches the metrics of vLLM servers and reports what is wrong with the KV cache.",
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
    """The name in an option with a value: ``--name=value`` or ``-nvalue``."""
    return option.partition("=")[0] if option.startswith("--") else option[:2]


def _unexpected(error: Exception) -> int:
    if debugging():
        raise error
    line = " ".join(str(error).split())
    print_error(f"unexpected {type(error).__name__}{f': {line[:300]}' if line else ''}")
    print_error(
        "this is a bug in kvwatch; please report it with the output of KVWATCH_DEBUG=1"
        f" (kvwatch {__version__}, Python {sys.version.split()[0]})"
    )
    return _INTERNAL
