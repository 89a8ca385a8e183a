"""What changes a policy's weights: from transitions to a gradient and a step."""
