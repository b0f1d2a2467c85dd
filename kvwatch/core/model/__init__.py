"""The nouns of the judgement: signals, snapshots, outcomes of scrapes, GPU readings."""
