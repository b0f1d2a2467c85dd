"""From the bytes of a /metrics page to one `Snapshot` per engine."""
