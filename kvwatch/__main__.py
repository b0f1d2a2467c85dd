"""``python -m kvwatch`` is the same as ``kvwatch``."""

import sys

from kvwatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
