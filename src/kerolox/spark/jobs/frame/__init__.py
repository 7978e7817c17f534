"""What all jobs share: checked options, progress, summaries, errors, the session."""
