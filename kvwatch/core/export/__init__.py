"""What leaves the judgement: metrics, findings, evidence, JSON, alerts."""
