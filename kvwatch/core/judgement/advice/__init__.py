"""What to do about a finding: levers as data, chosen and ordered by the evidence and the server's configuration."""
