"""Where a store's files are: disks, folders, consume queues."""
