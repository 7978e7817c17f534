"""One file per claim; each prints JSON and pairs ours with the peer in one run."""
