"""What a server process needs: the loop, signals, logs, the word to systemd."""
