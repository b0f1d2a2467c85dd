"""The commands, one a module: `add` says how it is called, `main` does it and returns the exit code."""
