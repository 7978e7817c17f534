"""Consumer groups: their settings, members, progress and offsets; producers too."""
