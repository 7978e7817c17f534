"""``kerolox store``: the files of a store, read, repaired, copied."""
