"""Files on disk: mapped files, preallocation, and the small files beside the log."""
