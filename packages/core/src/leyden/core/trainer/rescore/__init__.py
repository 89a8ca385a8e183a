"""Re-scoring: stored rollouts scored by another reward, and what that would change."""
