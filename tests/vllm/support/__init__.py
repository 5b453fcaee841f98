"""What the real-engine tests share: checkpoints, engines, comparison, fault injection, expected numbers."""
