"""The parts of a lite pull consumer: pulls, its membership of a group, topics that are watched."""
