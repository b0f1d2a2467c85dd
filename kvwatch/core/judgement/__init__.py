"""From snapshots to verdicts: thresholds, derived numbers, symptoms, their life cycle, and the one seam `advance`."""
