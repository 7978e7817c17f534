"""``python -m kerolox.demo``."""

import sys

from kerolox.demo.run import main

if __name__ == "__main__":
    sys.exit(main())
