"""From what an event is asked for to the new masks; pure, nothing is changed here."""
