#!/bin/sh
# Starts a Python process of Spark before other work of this run: Spark gives it ten seconds, and no
# setting changes that. Where we may not do so it starts as all others.
renice -n -15 -p $$ >/dev/null 2>&1
if [ -n "$KEROLOX_FORKS" ] && [ "$1" = -m ]; then
  exec "$KEROLOX_PYTHON" -I -S "${0%/*}/python_forked.py" "$@"
fi
exec "$KEROLOX_PYTHON" "$@"
