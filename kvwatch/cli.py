"""The command line: which command, what went wrong, which exit code. The commands themselves are in `commands`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from kvwatch import __version__
from kvwatch.settings import SettingsError, debugging
from kvwatch.settings.values import nearest

#: Command -> module in `kvwatch.commands`, in the order of the help.
COMMANDS = ("run", "demo", "check", "record", "replay", "render")

_EPILOG = """\
examples:
  kvwatch demo                                see it find a real incident, without a GPU or a vLLM
  kvwatch check http://localhost:8000         what is wrong with my server now?
  kvwatch run --targets http://localhost:8000/metrics
                                              the sidecar: serves /metrics and a page on port 9477

`kvwatch COMMAND --help` explains a command. Settings may also stand in the environment (KVWATCH_INTERVAL=2s for
--interval 2s) or in a TOML file (--config FILE); `kvwatch run --show-config` prints what is in force.
"""
_INTERRUPTED, _BROKEN_PIPE, _INTERNAL = 130, 141, 70


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code. No traceback reaches a user."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        sys.stdout.flush()
    except SettingsError as error:
        for problem in error.problems:
            _complain(problem)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) went away. What Python still wants to write at exit must go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last resort
        return _unexpected(error)
    return code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in a line, not in a page."""

    def error(self, message: str) -> NoReturn:
        _complain(f"{message}; `{self.prog} --help` explains")
        self.exit(2)


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
    args, strange = parser.parse_known_args(words)
    if strange:
        known = re.findall(
            r"--[a-z][a-z-]*", commands[chosen].format_help() if chosen else parser.format_help()
        )
        for word in [word for word in strange if word.startswith("-")] or strange:
            _complain(f"{word}: no such option or argument{nearest(word.partition('=')[0], known)}")
        return 2
    if "main" not in args:
        parser.print_help(sys.stderr)
        return 2
    from kvwatch.recording import RecordingError

    try:
        return int(args.main(args))
    except RecordingError as error:
        _complain(str(error))
        return 2


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


def _complain(line: str) -> None:
    print(f"kvwatch: {line}", file=sys.stderr)


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
