"""The commands, one per module: `add` adds its options to a parser, `main` runs it and returns the exit code."""
