"""What users give beside their agent: import strings, inputs, rewards, and how their functions are called."""
