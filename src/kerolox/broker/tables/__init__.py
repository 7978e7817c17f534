"""What the broker knows: topics, groups, offsets, filters, clients and locks."""
