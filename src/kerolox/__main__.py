"""``python -m kerolox``: the command line."""

from kerolox.cli.app import main

if __name__ == "__main__":
    main()
