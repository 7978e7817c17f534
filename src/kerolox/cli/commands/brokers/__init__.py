"""``kerolox broker``: one module for each of its subjects."""
