"""Images of prompts: reads image files, and computes from them what a vision-language model reads."""
