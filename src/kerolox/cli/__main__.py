"""``python -m kerolox.cli``."""

from kerolox.cli.app import main

if __name__ == "__main__":
    main()
